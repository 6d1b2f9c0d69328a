"""nvcc as the other backend: needs a toolkit and a host compiler, and compiles host code too."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .model import Raw

TIMEOUT_S = 300.0
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")


class NvccTimeout(Exception):
    """nvcc or ptxas ran past the limit."""


def _run(command: list[str], timeout: float) -> tuple[bool, str]:
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise NvccTimeout from error
    except OSError as error:
        return False, str(error)
    return done.returncode == 0, (done.stderr + done.stdout).decode("utf-8", "replace")


def entries(ptx: str) -> tuple[str, ...]:
    """The kernel names of a PTX text, in order."""
    return tuple(re.findall(r"^\s*(?:\.visible|\.weak)?\s*\.entry\s+([\w$]+)", ptx, re.M))


def _demangled(nvcc: Path, names: Sequence[str], timeout: float) -> dict[str, str]:
    """Demangled function name without return type and parameters -> mangled name."""
    tool = next((str(p) for p in (nvcc.parent / "cu++filt",) if p.is_file()), None) or shutil.which("c++filt")
    if tool is None or not names:
        return {}
    ok, text = _run([tool, *names], timeout)
    lines = text.splitlines()
    return {_normal(line): name for line, name in zip(lines, names, strict=False)} if ok else {}


def _normal(demangled: str) -> str:
    """``void f<__half, (int)64>(const T1 *)`` and ``f<__half, 64>`` in one spelling."""
    text = re.sub(r"\((?:unsigned )?(?:int|long|bool)\)", "", demangled)
    text = _UNNAMED.sub("", text)
    depth = 0
    for index, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            text = text[:index]
            break
    return re.sub(r"\s", "", re.sub(r"^void\s+", "", text.strip()))


def _kept(source: bytes, number: int, expression: str) -> str:
    """A line that instantiates an expression, in its own namespaces: constants among its arguments are found there."""
    spaces = expression.partition("<")[0].split("::")[:-1]
    if not all(re.search(rb"\bnamespace\b[^{;]*\b" + re.escape(s.encode()) + rb"\b", source) for s in spaces):
        spaces = []
    line = f"static void *cubridge_keep_{number} = (void *){expression};"
    return "".join(f"namespace {s} {{ " for s in spaces) + line + " }" * len(spaces) + "\n"


def _name_of(expression: str, expressions: Sequence[str], names: dict[str, str]) -> str:
    """The mangled name of an expression; where its arguments are spelt otherwise (constants, defaults), that of the
    only kernel of its name.
    """

    def plain(text: str) -> str:
        return text.partition("<")[0].split("::")[-1]

    key = _normal(expression)
    if key in names:
        return names[key]
    alike = [mangled for text, mangled in names.items() if plain(text) == plain(key)]
    asked = [e for e in expressions if plain(_normal(e)) == plain(key)]
    return alike[0] if "<" in key and len(alike) == len(asked) == 1 else ""


def compile_with_nvcc(
    nvcc: Path, source: bytes, name: str, options: Sequence[str], expressions: Sequence[str], want: Sequence[str]
) -> Raw:
    """Compile `source` as if it were the file `name`. Raises NvccTimeout.

    Templates are instantiated by taking the address of each name expression behind the user's text.
    """
    keep = "".join(_kept(source, i, e) for i, e in enumerate(expressions))
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    with tempfile.TemporaryDirectory(prefix="cubridge-") as folder:
        file, ptx_file, cubin_file = (Path(folder) / f"kernel.{suffix}" for suffix in ("cu", "ptx", "cubin"))
        file.write_bytes(f'#line 1 "{quoted}"\n'.encode() + source + b"\n" + keep.encode())
        ok, log = _run([str(nvcc), *options, "-ptx", str(file), "-o", str(ptx_file)], TIMEOUT_S)
        if not ok:
            return Raw(False, log)
        ptx = ptx_file.read_text("utf-8", "replace")
        names = _demangled(nvcc, entries(ptx), TIMEOUT_S)
        lowered = {e: found for e in expressions if (found := _name_of(e, expressions, names))}
        lowered.update({e: e for e in expressions if e not in lowered and e in entries(ptx)})
        if "cubin" not in want:
            return Raw(True, log, ptx, None, lowered)
        arch = next(option.partition("=")[2] for option in options if option.startswith("-arch="))
        ptxas = [str(nvcc.parent / "ptxas"), "-v", f"-arch={arch}", str(ptx_file), "-o", str(cubin_file)]
        ok, text = _run(ptxas, TIMEOUT_S)
        if not ok:
            return Raw(False, log + text)
        return Raw(True, log + text, ptx if "ptx" in want else None, cubin_file.read_bytes(), lowered)
