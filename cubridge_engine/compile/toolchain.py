"""Finding compilers: NVRTC's library (pip wheels first, then a CUDA toolkit), nvcc, and the header directories.

Nothing here loads a library or starts a process except `nvcc_version`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# File name patterns, most specific first, by sys.platform prefix.
_LIBRARY_PATTERNS = {
    "linux": ("libnvrtc.so.13*", "libnvrtc.so.12*", "libnvrtc.so"),
    "win32": ("nvrtc64_13*.dll", "nvrtc64_12*.dll"),
}
_BUILTINS_PATTERNS = {
    "linux": ("libnvrtc-builtins.so.1*", "libnvrtc-builtins.so"),
    "win32": ("nvrtc-builtins64_*.dll",),
}


@dataclass(frozen=True, slots=True)
class NvrtcFiles:
    """The library, and the builtins library it opens by name when it compiles (which must be loaded before it)."""

    nvrtc: Path
    builtins: Path | None


def _site_nvidia() -> list[Path]:
    roots = [Path(entry) / "nvidia" for entry in sys.path if entry]
    return [root for root in dict.fromkeys(roots) if root.is_dir()]


def _toolkits() -> list[Path]:
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")]
    nvcc = shutil.which("nvcc")
    beside = [str(Path(nvcc).resolve().parent.parent)] if nvcc else []
    paths = [Path(text) for text in [*named, *beside, "/usr/local/cuda"] if text]
    return [path for path in dict.fromkeys(paths) if path.is_dir()]


def _library_dirs() -> list[Path]:
    # Wheels for CUDA 13 share nvidia/cu13; those for CUDA 12 have one folder per package.
    wheels = [root / folder for root in _site_nvidia() for folder in ("cu13", "cuda_nvrtc")]
    homes = [*wheels, *_toolkits()]
    return [home / sub for home in homes for sub in ("lib", "lib64", "bin", "bin/x86_64") if (home / sub).is_dir()]


def _first(directory: Path, patterns: tuple[str, ...]) -> Path | None:
    for pattern in patterns:
        # Shared objects of the alternative ("alt") build cannot stand in for the default one.
        found = [path for path in sorted(directory.glob(pattern)) if ".alt." not in path.name]
        if found:
            return found[0]
    return None


def find_nvrtc() -> NvrtcFiles | None:
    """The NVRTC library of this Python environment, or of a CUDA toolkit; None when there is none."""
    platform = "win32" if sys.platform == "win32" else "linux"
    for directory in _library_dirs():
        library = _first(directory, _LIBRARY_PATTERNS[platform])
        if library is not None:
            return NvrtcFiles(library, _first(directory, _BUILTINS_PATTERNS[platform]))
    return None


def find_nvcc() -> Path | None:
    """nvcc on the PATH or in a CUDA toolkit."""
    found = shutil.which("nvcc")
    if found:
        return Path(found)
    name = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    return next((home / "bin" / name for home in _toolkits() if (home / "bin" / name).is_file()), None)


def find_ptxas() -> Path | None:
    """ptxas beside nvcc, or on the PATH."""
    nvcc = find_nvcc()
    name = "ptxas.exe" if sys.platform == "win32" else "ptxas"
    if nvcc is not None and (nvcc.parent / name).is_file():
        return nvcc.parent / name
    found = shutil.which("ptxas")
    return Path(found) if found else None


def cuda_include_dirs() -> tuple[Path, ...]:
    """Directories that hold cuda_fp16.h and its like: the first wheel or toolkit that has them."""
    wheels = [root / folder / "include" for root in _site_nvidia() for folder in ("cu13", "cuda_runtime")]
    candidates = [*wheels, *(home / "include" for home in _toolkits())]
    found = [path for path in candidates if (path / "cuda_fp16.h").is_file()]
    return tuple(found[:1])


def toolkit_include_dirs() -> tuple[Path, ...]:
    """The header folders of a CUDA toolkit, that of the C++ core libraries (cuda/std, cub, thrust) among them."""
    homes = [home / "include" for home in _toolkits()]
    wheels = [root / "cu13" / "include" / "cccl" for root in _site_nvidia()]
    return tuple(folder for home in homes for folder in (home / "cccl", home) if folder.is_dir()) + tuple(
        folder for folder in wheels if folder.is_dir()
    )


@lru_cache(maxsize=4)
def nvcc_version(nvcc: Path) -> str:
    """The release of an nvcc, such as 13.0; '' when it does not answer."""
    try:
        done = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match[1] if match else ""
