"""The project that a file lies in, as a user sees it: its folders from the inside out, and which header is meant there.

A header that stands once is taken. Of several that are named alike: where all have one text, where a build script names
one's folder, or where they are copies of a library and one lies nearest. Else none is, and the caller is told all.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT_SIGNS = (".git", "setup.py", "pyproject.toml", "CMakeLists.txt", "cubridge.toml", "PKG-INFO", "WORKSPACE",
              "compile_commands.json")  # fmt: skip
SITE = frozenset({"site-packages", "dist-packages"})
MOST_UP = 10  # folders above the file in which roots of its project are looked for
MOST_FILES = 40_000  # of a project that are looked at for a header
KEPT_S = 10  # for so long a list of files holds: a header that was put there is found at the next try
_MOST_SCRIPT = 200_000  # bytes of a build script that are read
_SKIPPED = frozenset({".git", "node_modules", "build", "dist", "__pycache__", ".venv", "venv"})
_SOURCES = (".cpp", ".cc", ".h", ".cuh", ".hpp", ".inl", ".cu", ".inc", ".hxx")
_COPIED = re.compile(r"(cute|cutlass|cub|thrust|cuda)/")  # of which projects keep copies
_OWN_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder from which ``#include`` finds a header, and the reason for it, for a reader."""

    folder: Path
    why: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """Several files that a header may be; nothing says which."""

    folders: tuple[Path, ...]


def roots(path: Path) -> tuple[Path, ...]:
    """Folders above `path` that look like the root of a project, the nearest first: a library in a checkout has its own
    root, and the checkout another. A repository ends the way up, and so does site-packages: the package in it is a
    project. The folder of the file, where nothing above it looks like one.
    """
    found: list[Path] = []
    for folder in path.parents[:MOST_UP]:
        if folder.name in SITE or folder in (Path.home(), Path(folder.anchor)):
            break
        packaged = folder.parent.name in SITE
        if packaged or any((folder / sign).exists() for sign in ROOT_SIGNS):
            found.append(folder)
        if packaged or (folder / ".git").exists():
            break
    return tuple(found) or (path.parent,)


def site_of(path: Path) -> Path | None:
    """The site-packages folder that `path` lies in."""
    return next((folder for folder in path.parents if folder.name in SITE), None)


def in_checkout(path: Path, header: str) -> Place | Doubt | None:
    """Where the project of `path` has the header; the innermost root that has it decides."""
    plain = re.sub(r"^(\.\./|\./)+", "", header)
    for root in roots(path):
        hits = [Path(file[: -len(plain) - 1]) for file in sources_of(str(root)) if file.endswith(f"/{plain}")]
        if hits:
            return _chosen(path, root, plain, hits)
    return None


def _chosen(path: Path, root: Path, header: str, hits: Sequence[Path]) -> Place | Doubt:
    if len(hits) == 1:
        return Place(hits[0], "in the project")
    if _one_text([folder / header for folder in hits]):
        return Place(_nearest(path, hits)[0], f"{len(hits)} copies in the project, all alike")
    if (named := _named(path, root, hits)) is not None:
        return named
    near = _nearest(path, hits)
    if _COPIED.match(header) and len(near) == 1:
        return Place(near[0], f"the nearest of {len(hits)} copies in the project")
    return Doubt(tuple(hits))


def _nearest(path: Path, hits: Sequence[Path]) -> list[Path]:
    """Those that share most folders with `path`."""

    def shared(folder: Path) -> int:
        return len(Path(os.path.commonpath((path.parent, folder))).parts)

    most = max(map(shared, hits))
    return [folder for folder in hits if shared(folder) == most]


def _one_text(files: Sequence[Path]) -> bool:
    """True when all are the same text, which includes nothing that lies beside it (that may differ)."""
    try:
        texts = {file.read_bytes() for file in files}
    except OSError:
        return False
    names = [name.decode("utf-8", "replace") for text in texts for name in _OWN_INCLUDE.findall(text)]
    return len(texts) == 1 and not any((file.parent / name).is_file() for file in files for name in names)


def _named(path: Path, root: Path, hits: Sequence[Path]) -> Place | None:
    """The one whose folder a build script beside the file, or that of the project, spells out: ``a / "b" / "c"``."""
    for script in scripts(path, root):
        text = script_text(script)
        spelled = [folder for folder in hits if _spelling(_own_end(folder, hits)).search(text)]
        if len(spelled) == 1:
            return Place(spelled[0], f"{script.name} names it")
    return None


def _spelling(parts: Sequence[str]) -> re.Pattern[str]:
    return re.compile(r"\b" + r"\W{1,8}".join(map(re.escape, parts)) + r"\b")


def _own_end(folder: Path, hits: Sequence[Path]) -> tuple[str, ...]:
    """The end of a folder's path, of two parts at least, that no other has."""
    for count in range(2, len(folder.parts)):
        end = folder.parts[-count:]
        if all(other == folder or other.parts[-count:] != end for other in hits):
            return end
    return folder.parts


def scripts(path: Path, root: Path) -> Iterator[Path]:
    """Files that may say how `path` is built: those beside it, then those of the folders up to the root."""
    with suppress(OSError):
        yield from sorted(path.parent.glob("*.py"))[:40]
    for folder in path.parents:
        yield from (f for name in ("setup.py", "CMakeLists.txt", "Makefile") if (f := folder / name).is_file())
        if folder == root:
            return


def script_text(script: Path) -> str:
    """The beginning of a build script; '' where it cannot be read."""
    try:
        with script.open("rb") as opened:
            return opened.read(_MOST_SCRIPT).decode("utf-8", "replace")
    except OSError:
        return ""


def sources_of(root: str) -> tuple[str, ...]:
    """The C++ and CUDA files below a folder, headers too; of a large project a part."""
    return _listed(root, int(time.monotonic() / KEPT_S))


@lru_cache(maxsize=16)
def _listed(root: str, _when: int) -> tuple[str, ...]:
    found: list[str] = []
    for count, file in enumerate(_walk(root)):
        if count > MOST_FILES:
            break
        if file.endswith(_SOURCES):
            found.append(file)
    return tuple(found)


def _walk(root: str) -> Iterator[str]:
    for folder, below, files in os.walk(root):
        below[:] = sorted(f for f in below if f not in _SKIPPED and not f.startswith("."))
        yield from (f"{folder}/{name}" for name in files)
