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
from pathlib import Path
from typing import Any, cast

from .cache import cache_dir
from .checkout import Doubt, Place, in_checkout, roots, site_of
from .scripts import scripted

_USUAL = ("", "include", "csrc", "src", "csrc/include", "src/include", "third_party/cutlass/include",
          "csrc/cutlass/include", "cutlass/include", "3rdparty/cutlass/include",
          "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust")  # fmt: skip
# first folder of a header -> folders of packages (below an entry of sys.path) and environment variables that hold it
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cute": ("cutlass_library/source/include", "flashinfer/data/cutlass/include"),
    "cutlass": (
        "cutlass_library/source/include",
        "flashinfer/data/cutlass/include",
        "cutlass_library/source/tools/util/include",
        "flashinfer/data/cutlass/tools/util/include",
    ),
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
    """What the user's build says of one file: include folders, macros (``NAME`` or ``NAME=VALUE``), the standard.
    `read`: where that was read, in words. `choices`: macros that a build script gives under a condition, and where.
    """

    include_dirs: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    std: str = ""
    read: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()


def project_root(path: Path) -> Path:
    """The nearest folder above `path` that looks like the root of a project, else the folder of the file."""
    return roots(path)[0]


def usual_dirs(path: Path) -> tuple[Path, ...]:
    """Folders in which projects keep headers: that of the file, those above it up to the outermost root of its project,
    the usual ones there; the nearest first.
    """
    path = path.absolute()  # a compiler that runs in another folder must find them
    root = roots(path)[-1]
    above = [f for f in path.parents if f == root or root in f.parents]
    found = [*above, *(f / sub for f in above for sub in _USUAL if (f / sub).is_dir())]
    return tuple(dict.fromkeys(found))


def find_header(path: Path, header: str) -> Place | Doubt | None:
    """From where ``#include <header>`` is found: a folder of the project around `path` or of a package of pip."""
    found = in_checkout(path.absolute(), header)
    if found is None and (folder := in_packages(header, path.absolute())) is not None:
        return Place(folder, "a package of pip" if "site-packages" in folder.parts else "the environment")
    return found


def in_packages(header: str, path: Path | None = None) -> Path | None:
    """The include folder of an installed package that has the header: of this Python, of the environment that the file
    at `path` lies in, of the one that is active or lies in its project.
    """
    subs = _PACKAGES.get(header.partition("/")[0], ())
    if not subs:
        return None
    given = [Path(os.environ[name]) for name in _HOMES if os.environ.get(name)]
    homes = [home / below for home in given for below in ("include", "tools/util/include")]
    libraries = header.startswith(("cute/", "cutlass/"))
    folders = [*(homes if libraries else ()), *(site / sub for site in _sites(path) for sub in subs)]
    return next((folder for folder in folders if (folder / header).is_file()), None)


def _sites(path: Path | None) -> Iterator[Path]:
    yield from (Path(entry) for entry in sys.path if entry)
    if path is not None and (site := site_of(path)) is not None:
        yield site
    prefixes = [Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    prefixes += [root / ".venv" for root in roots(path)] if path is not None else []
    for prefix in prefixes:
        yield from sorted(prefix.glob("lib/python3.*/site-packages"))
        yield prefix / "Lib" / "site-packages"


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
    """The build of `path`: keys ``include``, ``define`` and ``std`` of `table` (cubridge.toml in folder `base`), then
    its entry in compile_commands.json, or that of a file beside it; where there is none, flags that a build script
    (setup.py, CMakeLists.txt, a loader beside the file) writes down.
    """
    own = _settings(table or {}, base or path.parent)
    commands, place = _command(path)
    script = scripted(path.absolute())
    from_script = script if commands is None else type(script)()
    read = [f"compile_commands.json ({place})"] if commands is not None else []
    commands = commands or Build()
    if from_script.std and not own.std:
        read.append(f"-std={from_script.std} of {from_script.std_from}")
    named = {macro.partition("=")[0] for macro in own.defines}
    more = tuple(macro for macro in from_script.defines if macro.partition("=")[0] not in named)
    if more:
        read.append(f"-D{' -D'.join(more)} of {from_script.defines_from}")
    return Build(
        tuple(dict.fromkeys((*own.include_dirs, *commands.include_dirs))),
        tuple(dict.fromkeys((*own.defines, *commands.defines, *more))),
        own.std or commands.std or from_script.std,
        tuple(read),
        script.choices,
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


def _command(path: Path) -> tuple[Build | None, str]:
    """The flags of compile_commands.json, and the folder that it is in."""
    places = [place for root in roots(path.absolute()) for place in (root, root / "build")]
    for folder in dict.fromkeys((path.parent, path.parent / "build", *places)):
        file = folder / "compile_commands.json"
        try:
            rows = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        entries = [row for row in rows if isinstance(row, dict) and "file" in row] if isinstance(rows, list) else []
        found = _entry(cast("list[dict[str, Any]]", entries), path)
        if found is not None:
            return found, folder.name
    return None, ""


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
