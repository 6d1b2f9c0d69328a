"""A kernel in a header is launched in another file of its project: which one, and where."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..compile.checkout import roots, sources_of

_MOST_BYTES = 1 << 20  # of a file that is looked at
_MOST_READ = 96 << 20  # bytes of a project
_INDIRECT = re.compile(rb"<<<|cudaLaunchKernel")


def launch_elsewhere(path: Path, kernel: str) -> tuple[Path, int] | None:
    """The file of the project that includes the file at `path` and launches `kernel` of it, and the line (from 0); of
    several the nearest, and one whose launch names the kernel before one that only has both. None where there is none,
    and where the file at `path` launches it itself.
    """
    path = path.absolute()
    name = re.escape(kernel.encode())
    direct = re.compile(rb"\b" + name + rb"\b[^;{}]{0,400}?<<<", re.S)
    named = re.compile(rb"\b" + name + rb"\s*<")
    own = re.compile(rb'#[ \t]*include[ \t]*[<"](?:[^>"\n]*/)?' + re.escape(path.name.encode()) + rb'[>"]')
    if direct.search(_read(str(path))):
        return None
    found: list[tuple[bool, int, str, int]] = []
    left = _MOST_READ
    for file in sources_of(str(roots(path)[-1])):
        if left <= 0:
            break
        if file == str(path):
            continue
        data = _read(file)
        left -= len(data)
        if kernel.encode() not in data or not own.search(data):
            continue
        match = direct.search(data) or (named.search(data) if _INDIRECT.search(data) else None)
        if match is not None:
            far = -len(os.path.commonpath((str(path.parent), os.path.dirname(file))))
            found.append((match.re is not direct, far, file, data.count(b"\n", 0, match.start())))
    return (Path(min(found)[2]), min(found)[3]) if found else None


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(_MOST_BYTES)
    except OSError:
        return b""
