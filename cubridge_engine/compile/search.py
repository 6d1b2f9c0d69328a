"""Where the headers of a user's file are: the tree around it, compile_commands.json, cubridge.toml, packages of pip.

Nothing is compiled here. What is found is a list of folders, so that a compiler finds what the user's build finds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from .cache import cache_dir

_ROOT_SIGNS = (".git", "setup.py", "pyproject.toml", "CMakeLists.txt", "cubridge.toml", "PKG-INFO", "WORKSPACE",
               "compile_commands.json")  # fmt: skip
_USUAL = ("", "include", "csrc", "src", "csrc/include", "src/include", "third_party/cutlass/include",
          "csrc/cutlass/include", "cutlass/include", "3rdparty/cutlass/include")  # fmt: skip
_SKIPPED = frozenset({".git", "node_modules", "build", "dist", "__pycache__", ".venv", "venv"})
MOST_UP = 6  # folders above the file in which the root of its project is looked for
MOST_FILES = 20_000  # of a project that are looked at for a header

# first folder of a header -> folders of packages (below an entry of sys.path) and environment variables that hold it
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cute": ("cutlass_library/source/include", "flashinfer/data/cutlass/include"),
    "cutlass": ("cutlass_library/source/include", "flashinfer/data/cutlass/include"),
    "flashinfer": ("flashinfer/data/include",),
    "cuda": ("flashinfer/data/cccl/libcudacxx/include", "nvidia/cu13/include/cccl", "nvidia/cuda_cccl/include"),
    "cub": ("flashinfer/data/cccl/cub", "nvidia/cu13/include/cccl", "nvidia/cuda_cccl/include"),
    "thrust": ("flashinfer/data/cccl/thrust", "nvidia/cu13/include/cccl", "nvidia/cuda_cccl/include"),
}
_HOMES = ("CUTLASS_HOME", "CUTLASS_PATH", "CUTLASS_DIR")

# Headers of host libraries: device code needs no more of them than compile/stubs/torch.h has.
HOST_FAMILY = re.compile(
    r"(torch|ATen|c10|pybind11|tvm|nccl|nvToolsExt|nvtx3|cudnn|cublas|cublasLt|cusparse|curand|Python)\b"
    r"|(cublas|cublasLt|cudnn|curand|nvml)\w*\.h$"
)
_CUBLAS_FAMILY = re.compile(r"(.*/)?cublas\w*\.h$")
_TORCH_FAMILY = re.compile(r"(torch|ATen|c10|pybind11|Python)\b")
STUBS = Path(__file__).parent / "stubs"


@dataclass(frozen=True, slots=True)
class Build:
    """What the user's build says of one file: include folders, macros (``NAME`` or ``NAME=VALUE``), the standard."""

    include_dirs: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    std: str = ""


def project_root(path: Path) -> Path:
    """The nearest folder above `path` that looks like the root of a project, else the folder of the file."""
    folders = [path.parent, *list(path.parent.parents)[: MOST_UP - 1]]
    return next((f for f in folders if any((f / sign).exists() for sign in _ROOT_SIGNS)), path.parent)


def usual_dirs(path: Path) -> tuple[Path, ...]:
    """Folders in which projects keep headers: that of the file, those above it up to the root, the usual ones there."""
    path = path.absolute()  # a compiler that runs in another folder must find them
    root = project_root(path)
    above = [f for f in path.parents if f == root or root in f.parents]
    found = [*above, *(f / sub for f in above for sub in _USUAL if (f / sub).is_dir())]
    return tuple(dict.fromkeys(found))


def find_header(path: Path, header: str) -> Path | None:
    """The folder from which ``#include <header>`` finds a file, in the tree around `path` or in a package of pip."""
    return _in_tree(str(project_root(path.absolute())), header) or in_packages(header)


@lru_cache(maxsize=8)
def _headers_of(root: str) -> tuple[str, ...]:
    found: list[str] = []
    for count, file in enumerate(_walk(root)):
        if count > MOST_FILES:
            break
        if file.endswith((".h", ".cuh", ".hpp", ".inl", ".cu", ".inc", ".hxx")):
            found.append(file)
    return tuple(found)


def _walk(root: str) -> Iterator[str]:
    for folder, below, files in os.walk(root):
        below[:] = sorted(f for f in below if f not in _SKIPPED and not f.startswith("."))
        yield from (f"{folder}/{name}" for name in files)


def _in_tree(root: str, header: str) -> Path | None:
    plain = re.sub(r"^(\.\./|\./)+", "", header)
    hits = [file for file in _headers_of(root) if file.endswith(f"/{plain}")]
    # Two files of that name: no way to know which one the user means.
    return Path(hits[0][: -len(plain) - 1]) if len(hits) == 1 else None


def in_packages(header: str) -> Path | None:
    """The include folder of an installed package that has the header."""
    subs = _PACKAGES.get(header.partition("/")[0], ())
    homes = [Path(os.environ[name]) / "include" for name in _HOMES if os.environ.get(name)]
    folders = [*(homes if header.startswith(("cute/", "cutlass/")) else ()), *_site(subs)]
    return next((folder for folder in folders if (folder / header).is_file()), None)


def _site(subs: Iterable[str]) -> Iterator[Path]:
    for sub in subs:
        yield from (Path(entry) / sub for entry in sys.path if entry)


def stub_for(header: str) -> str | None:
    """What stands in for a header of a host library; None for one that must be found."""
    if _TORCH_FAMILY.match(header):
        return f'#include "{STUBS / "torch.h"}"\n'
    if _CUBLAS_FAMILY.match(header):
        return f'#include "{STUBS / "cublas.h"}"\n'
    return "#pragma once\n" if HOST_FAMILY.match(header) else None


def write_stubs(headers: Iterable[str], folder: Path | None = None) -> Path | None:
    """A folder with the stubs of these headers, kept beside the cache; None where there is no place for it."""
    base = folder or cache_dir()
    if base is None:
        return None
    wanted = {header: text for header in headers if (text := stub_for(header)) is not None}
    # The folder's name says what is in it: a stub made for one file must not hide a missing header of another.
    home = base / "stubs" / f"{abs(hash_text(repr(sorted(wanted.items())))):x}"
    try:
        for header, text in wanted.items():
            file = home / header
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    except OSError:
        return None
    return home


def hash_text(text: str) -> int:
    """A number that is the same in every process, unlike ``hash``."""
    import zlib

    return zlib.crc32(text.encode())


def build_of(path: Path, table: Mapping[str, Any] | None = None, base: Path | None = None) -> Build:
    """The build of `path`: keys ``include`` and ``define`` of `table` (cubridge.toml in folder `base`), then its entry
    in compile_commands.json, or that of a file beside it.
    """
    own = _settings(table or {}, base or path.parent)
    commands = _command(path)
    return Build(
        tuple(dict.fromkeys((*own.include_dirs, *commands.include_dirs))),
        tuple(dict.fromkeys((*own.defines, *commands.defines))),
        own.std or commands.std,
    )


def _settings(table: Mapping[str, Any], base: Path) -> Build:
    def texts(key: str) -> list[str]:
        value = table.get(key, [])
        return [str(v) for v in cast("list[object]", value)] if isinstance(value, list) else [str(value)]

    defines = table.get("define", [])
    if isinstance(defines, dict):
        rows = cast("dict[str, object]", defines)
        listed = [name if value is True else f"{name}={value}" for name, value in rows.items()]
    else:
        listed = texts("define")
    return Build(
        tuple((base / folder).resolve() for folder in texts("include")), tuple(listed), str(table.get("std", ""))
    )


def _command(path: Path) -> Build:
    root = project_root(path)
    for folder in (root, root / "build", path.parent, path.parent / "build"):
        file = folder / "compile_commands.json"
        try:
            rows = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        entries = [row for row in rows if isinstance(row, dict) and "file" in row] if isinstance(rows, list) else []
        found = _entry(cast("list[dict[str, Any]]", entries), path)
        if found is not None:
            return found
    return Build()


def _entry(rows: list[dict[str, Any]], path: Path) -> Build | None:
    def place(row: dict[str, Any]) -> Path:
        return Path(os.path.normpath(Path(str(row.get("directory", "."))) / str(row["file"])))

    exact = [row for row in rows if place(row) == path.resolve()]
    beside = [row for row in rows if place(row).parent == path.resolve().parent]
    for row in (*exact, *beside):
        words = row.get("arguments") or shlex.split(str(row.get("command", "")))
        return _flags([str(word) for word in words], Path(str(row.get("directory", "."))))
    return None


def _flags(words: list[str], base: Path) -> Build:
    dirs: list[Path] = []
    defines: list[str] = []
    std = ""
    queue = iter(words)
    for word in queue:
        flag = next((f for f in ("-isystem", "-I", "-D") if word.startswith(f)), "")
        if flag:
            value = word[len(flag) :].lstrip("=") or next(queue, "")
            if flag == "-D":
                defines.append(value)
            elif value:
                dirs.append((base / value).resolve())
        elif word.startswith(("-std=", "--std=")):
            std = word.partition("=")[2].replace("gnu", "c")
    return Build(tuple(dirs), tuple(defines), std)
