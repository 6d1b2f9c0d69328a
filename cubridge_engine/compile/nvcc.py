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
    depth = 0
    for index, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            text = text[:index]
            break
    return re.sub(r"\s", "", re.sub(r"^void\s+", "", text.strip()))


def compile_with_nvcc(
    nvcc: Path, source: bytes, name: str, options: Sequence[str], expressions: Sequence[str], want: Sequence[str]
) -> Raw:
    """Compile `source` as if it were the file `name`. Raises NvccTimeout.

    Templates are instantiated by taking the address of each name expression behind the user's text.
    """
    keep = "".join(f"static void *cubridge_keep_{i} = (void *){e};\n" for i, e in enumerate(expressions))
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    with tempfile.TemporaryDirectory(prefix="cubridge-") as folder:
        file, ptx_file, cubin_file = (Path(folder) / f"kernel.{suffix}" for suffix in ("cu", "ptx", "cubin"))
        file.write_bytes(f'#line 1 "{quoted}"\n'.encode() + source + b"\n" + keep.encode())
        ok, log = _run([str(nvcc), *options, "-ptx", str(file), "-o", str(ptx_file)], TIMEOUT_S)
        if not ok:
            return Raw(False, log)
        ptx = ptx_file.read_text("utf-8", "replace")
        names = _demangled(nvcc, entries(ptx), TIMEOUT_S)
        lowered = {e: names[_normal(e)] for e in expressions if _normal(e) in names}
        lowered.update({e: e for e in expressions if e not in lowered and e in entries(ptx)})
        if "cubin" not in want:
            return Raw(True, log, ptx, None, lowered)
        arch = next(option.partition("=")[2] for option in options if option.startswith("-arch="))
        ptxas = [str(nvcc.parent / "ptxas"), "-v", f"-arch={arch}", str(ptx_file), "-o", str(cubin_file)]
        ok, text = _run(ptxas, TIMEOUT_S)
        if not ok:
            return Raw(False, log + text)
        return Raw(True, log + text, ptx if "ptx" in want else None, cubin_file.read_bytes(), lowered)
