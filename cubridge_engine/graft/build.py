"""Compiling a kernel whose headers may be changed: the files around each changed one are mirrored by links."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ..compile import Compiled, Contract, check_shared
from ..compile.alone import AloneOptions, header_search
from ..compile.build import compile_source
from ..compile.cache import cache_dir
from ..compile.hostcode import blank_host_code
from ..compile.prelude import HEADERS
from ..compile.search import Build
from ..compile.toolchain import cuda_include_dirs, find_nvcc, toolkit_include_dirs

_NVRTC = ("-lineinfo", "-w")
_NVCC = (*_NVRTC, "-DNDEBUG", "--expt-relaxed-constexpr", "--expt-extended-lambda")


@dataclass(frozen=True, slots=True)
class Built:
    """What was compiled, and for each mirrored folder the one that it stands for: line information names the former."""

    compiled: Compiled
    mirrors: Mapping[str, str]

    def original(self, path: str) -> Path:
        """The user's file behind a path of the line information."""
        for mirror, folder in self.mirrors.items():
            if path.startswith(mirror + os.sep):
                return Path(folder + path[len(mirror) :])
        return Path(os.path.realpath(path))


@dataclass(frozen=True, slots=True)
class Builder:
    """One kernel's build: its contract, its file, the architecture, the settings of its project."""

    contract: Contract
    path: Path
    arch: str
    build: Build = field(default_factory=Build)

    def compile(self, changed: Mapping[Path, bytes], want: Sequence[str] = ("ptx",)) -> Built:
        """The contract's instances with some files changed. NVRTC first; what it cannot do is left to nvcc."""
        data = changed.get(self.path, self.path.read_bytes())
        mirrors = _mirrored({p: d for p, d in changed.items() if p != self.path})
        options = AloneOptions(self.arch, include_dirs=tuple(Path(m) for m in mirrors))
        search = header_search(self.path, data, options)
        dirs = (*search.include_dirs(), *self.build.include_dirs)
        defines = tuple(dict.fromkeys((*search.build.defines, *self.build.defines)))
        system = (*cuda_include_dirs(), *toolkit_include_dirs())

        def resolves(header: str) -> bool:
            return header in HEADERS or any(
                (folder / header).is_file() for folder in (self.path.parent, *dirs, *system)
            )

        compiled: Compiled | None = None
        for backend in ("nvrtc", "nvcc"):
            hosted = backend == "nvcc"
            if hosted and compiled is not None and (compiled.ptx is not None or find_nvcc() is None):
                break
            compiled = compile_source(
                blank_host_code(data, (lambda _: True) if hosted else resolves).text,
                path=str(self.path),
                arch=self.arch,
                name_expressions=tuple(i.expression for i in self.contract.instances),
                defines=defines,
                want=tuple(want),
                backend=backend,
                include_dirs=(*dirs, *(() if hosted else toolkit_include_dirs())),
                options=_NVCC if hosted else _NVRTC,
            )
        assert compiled is not None
        return Built(self._with_shared(compiled), mirrors)

    def _with_shared(self, compiled: Compiled) -> Compiled:
        """`compiled` with a finding for each instance that asks for more shared memory than there is."""
        found = list(compiled.diagnostics)
        for instance in self.contract.instances:
            figures = compiled.figures(instance.expression)
            over = check_shared(figures, self.contract.dynamic_shared(instance), self.arch) if figures else None
            found += [over] if over is not None else []
        return replace(compiled, diagnostics=tuple(found))


def _mirrored(changed: Mapping[Path, bytes]) -> dict[str, str]:
    """A folder of links for each folder with a changed file, which is in it as it is now.

    Its name says what is in it, so that compiled results are found again.
    """
    folders: dict[Path, dict[str, bytes]] = {}
    for path, data in changed.items():
        folders.setdefault(path.parent, {})[path.name] = data
    out: dict[str, str] = {}
    for folder, files in folders.items():
        text = repr((str(folder), sorted(files.items()))).encode()
        home = _home() / hashlib.sha256(text).hexdigest()[:16]
        home.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (home / name).unlink(missing_ok=True)
            (home / name).write_bytes(data)
        for entry in folder.iterdir():
            link = home / entry.name
            if entry.name not in files and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(entry)
        out[str(home)] = str(folder)
    return out


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cubridge-")  # gone when the process ends


def _home() -> Path:
    """Beside the cache of compiled kernels; of this process alone where there is none."""
    kept = cache_dir()
    return kept / "mirrors" if kept is not None else Path(_scratch().name)
