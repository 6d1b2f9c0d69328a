"""The text of a kernel as an exported module carries it: device code, its own headers, and those that NVRTC lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..compile.hostcode import HOST_HEADER, blank_host_code, includes
from ..compile.prelude import HEADERS
from ..compile.toolchain import cuda_include_dirs
from ..diagnostics import Diagnostic, make

# What the header directory of every CUDA release has.
_CUDA = re.compile(r"(cuda|cooperative_groups|mma|cub/|cuda/|nv/|vector_types|device_functions|math_constants)")

_DIRECTIVE = re.compile(r"\s*#\s*(?P<word>if|else|endif)")
_NOT_NVRTC = re.compile(r"\s*#\s*(ifndef\s+|if\s+!\s*defined\s*\(?\s*)__CUDACC_RTC__\b")


@dataclass(frozen=True, slots=True)
class Sources:
    """The kernel's text, and headers by the name that they are included by."""

    text: str
    headers: dict[str, str] = field(default_factory=dict, hash=False)


def gather(path: Path, text: str) -> tuple[Sources | None, tuple[Diagnostic, ...]]:
    """What must go along with a file, or CB675 for a header that is not there or not unique. Host code is blanked."""
    own: dict[str, Path] = {}
    texts: dict[str, str] = {}
    found = _local(path.parent, text)
    while found:
        name, file = found.popitem()
        if name in own and own[name].resolve() != file.resolve():
            return None, (make("CB675", None, header=name, reason="means two different files"),)
        if name in own:
            continue
        try:
            own[name], texts[name] = file, file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            return None, (make("CB675", None, header=name, reason=f"cannot be read: {error}"),)
        found |= {n: f for n, f in _local(file.parent, texts[name]).items() if n not in own or own[n] != f}

    own_texts = tuple(texts.values())

    def resolves(header: str) -> bool:
        return header in HEADERS or header in own or _is_cuda(header)

    for one in (text, *own_texts):
        for _, header in includes(one.encode()):
            if header in HEADERS and header not in own:
                texts.setdefault(header, HEADERS[header])
            elif not resolves(header) and not HOST_HEADER.match(header):
                reason = "is neither beside the kernel nor a part of CUDA"
                return None, (make("CB675", None, header=header, reason=reason),)
    seen = _seen_by_nvrtc(text)
    host = "<<<" in seen or not all(resolves(header) for _, header in includes(seen.encode()))
    whole = blank_host_code(text.encode(), resolves).text.decode() if host else text
    return Sources(whole, dict(sorted(texts.items()))), ()


def _local(folder: Path, text: str) -> dict[str, Path]:
    names = [header for _, header in includes(text.encode()) if header not in HEADERS]
    return {name: folder / name for name in names if (folder / name).is_file()}


def _is_cuda(header: str) -> bool:
    there = any((folder / header).is_file() for folder in cuda_include_dirs())
    return there or _CUDA.match(header) is not None


def _seen_by_nvrtc(text: str) -> str:
    """`text` without what stands between ``#ifndef __CUDACC_RTC__`` and its #endif or #else."""
    kept: list[str] = []
    depth = 0  # of conditionals within one that NVRTC skips
    for line in text.splitlines():
        word = _DIRECTIVE.match(line)
        if depth:
            depth += {"if": 1, "endif": -1}.get(word["word"], 0) if word else 0
            depth -= depth == 1 and word is not None and word["word"] == "else"
        elif word and word["word"] == "if" and _NOT_NVRTC.match(line):
            depth = 1
        else:
            kept.append(line)
    return "\n".join(kept)
