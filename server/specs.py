"""Which Python files of the workspace look like attention specs: a bounded, textual look that executes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

IGNORED = frozenset(
    {"node_modules", "__pycache__", "site-packages", "build", "dist", "out", "venv", "env", "third_party", "tests"}
)
MAX_FILES = 3000
MAX_DEPTH = 8
MAX_BYTES = 200_000

_MODULE = r"\s*\(\s*(?:\w+\.)*Module\s*\)\s*:(?=.*^def\s+(?:example_inputs|get_inputs)\s*\()"

# What makes a file a spec: a module-level attention() that is no drop-in, a module whose forward takes q, k, v or that
# has example inputs, or FlexAttention's callables. Looked for by pattern, with no parsing: a file being typed, and
# broken for a moment, keeps its action.
ENTRIES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"^(?:async\s+)?def\s+attention\s*\((?![^)]*\*,\s*kernel\b)", re.MULTILINE)),
    ("forward", re.compile(r"^\s+def\s+forward\s*\(\s*self\s*,\s*(?:q|query)\b[^)]*\b(k|key)\b", re.M)),
    # A module with projections of its own needs example inputs to be run; the one named after attention comes first.
    ("module", re.compile(rf"^class\s+\w*(?:Attention|Attn)\w*{_MODULE}", re.M | re.S)),
    ("module", re.compile(rf"^class\s+\w+{_MODULE}", re.M | re.S)),
    (
        "score_mod",
        re.compile(r"^(?:def\s+(?:\w+_)?(?:score_mod|mask_mod)\s*\(|(?:\w+_)?(?:score_mod|mask_mod)\s*=(?!=))", re.M),
    ),
)


KERNEL = re.compile(r"__global__")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A candidate: its path and what was recognised in it (attention | forward | module | score_mod; of a
    kernel: kernel)."""

    path: str
    entry: str

    @property
    def name(self) -> str:
        """The file name, as shown in titles."""
        return os.path.basename(self.path)


def entry_of(text: str) -> str | None:
    """What makes `text` a spec, or None."""
    return next((name for name, pattern in ENTRIES if pattern.search(text)), None)


def line_of(text: str) -> int | None:
    """The 0-based line of what makes `text` a spec, or None."""
    found = next((match for _, pattern in ENTRIES if (match := pattern.search(text))), None)
    return text.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip())) if found else None


def scan(folders: Sequence[str]) -> tuple[SpecFile, ...]:
    """The specs below `folders`, at most MAX_FILES Python files looked at. Unreadable files are passed over."""
    found: dict[str, SpecFile] = {}
    for path in _files(folders, (".py",)):
        entry = entry_of(_head(path))
        if entry:
            found[path] = SpecFile(path, entry)
    return tuple(found.values())


def scan_kernels(folders: Sequence[str]) -> tuple[SpecFile, ...]:
    """The CUDA files below `folders` that define or declare a kernel, at most MAX_FILES looked at."""
    found = (path for path in _files(folders, (".cu", ".cuh")) if KERNEL.search(_head(path)))
    return tuple(dict.fromkeys(SpecFile(path, "kernel") for path in found))


def _files(folders: Sequence[str], suffixes: tuple[str, ...]) -> Iterator[str]:
    return islice((path for folder in folders for path in _files_below(folder, suffixes)), MAX_FILES)


def nearest_first(specs: Sequence[SpecFile], kernel: str) -> list[SpecFile]:
    """Specs ordered by how far their folder is from the kernel's, then by name."""

    def distance(spec: SpecFile) -> tuple[int, str]:
        here, there = Path(kernel).parent.parts, Path(spec.path).parent.parts
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False)))
        return len(here) + len(there) - 2 * shared, spec.path

    return sorted(specs, key=distance)


def _files_below(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    base = folder.rstrip(os.sep).count(os.sep)
    for root, folders, files in os.walk(folder):
        if root.count(os.sep) - base >= MAX_DEPTH:
            folders.clear()
        folders[:] = sorted(
            name
            for name in folders
            if name not in IGNORED
            and not name.startswith(".")
            and not os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
        )
        yield from (os.path.join(root, name) for name in sorted(files) if name.endswith(suffixes))


def _head(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return ""
