"""`cubridge doctor`: what is installed, and the command that installs what is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..compile.codes import PIP_INSTALL
from ..compile.toolchain import find_nvcc, find_nvrtc, nvcc_version


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked for. `required` things that are missing make the exit code 3; `fix` is a command or a
    sentence.
    """

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str


def _python() -> Check:
    ok = sys.version_info >= (3, 10)
    return Check("python", ok, True, platform.python_version(), "install Python 3.10 or later")


def _package(name: str, module: str, why: str, *, required: bool, install: str | None = None) -> Check:
    """Found by its metadata, without importing it: torch alone would take seconds."""
    fix = f"{sys.executable} -m pip install {install or name}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, required, f"not installed; {why}", fix)
    found = importlib.util.find_spec(module) is not None
    return Check(name, found, required, version if found else "installed, but cannot be imported", fix)


def _nvrtc() -> Check:
    files = find_nvrtc()
    detail = files.nvrtc.name if files else "not found; it compiles without a GPU and without a host compiler"
    return Check("NVRTC", files is not None, find_nvcc() is None, detail, PIP_INSTALL)


def _nvcc() -> Check:
    path = find_nvcc()
    detail = f"release {nvcc_version(path)}" if path else "not found; NVRTC does its work"
    return Check("nvcc", path is not None, False, detail, "install the CUDA toolkit, if you want nvcc as well")


def _gpu() -> Check:
    fix = "nothing to do on a machine without a GPU; else install the NVIDIA driver"
    try:
        from ..device import device_available
    except ImportError as error:
        return Check("GPU", False, False, f"cannot be asked: {error}", fix)
    info = device_available()
    detail = str(getattr(info, "name", info)) if info else "none; level 'gpu' is out of reach here"
    return Check("GPU", info is not None, False, detail, fix)


def cache_folder() -> Path:
    """Where compiled results are kept: CUBRIDGE_CACHE, else the user's cache folder."""
    named = os.environ.get("CUBRIDGE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cubridge"


def _cache() -> Check:
    folder = cache_folder()
    existing = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    ok = os.access(existing, os.W_OK)
    detail = str(folder) if ok else f"{folder} cannot be written; every run compiles anew"
    return Check("cache", ok, False, detail, "set CUBRIDGE_CACHE to a folder you may write to")


CHECKS: tuple[Callable[[], Check], ...] = (
    _python,
    lambda: _package("torch", "torch", "it reads the spec and computes the reference", required=True),
    lambda: _package("tree-sitter-cuda", "tree_sitter_cuda", "it reads CUDA", required=True),
    lambda: _package("numpy", "numpy", "it executes CuIR", required=True),
    lambda: _package("pydantic", "pydantic", "it holds the JSON contract", required=True),
    lambda: _package("pygls", "pygls", "the language server needs it", required=False),
    _nvrtc,
    _nvcc,
    _gpu,
    _cache,
)


def run(args: argparse.Namespace) -> int:
    """Print the table. 0 when everything required is there, 3 otherwise."""
    checks = [check() for check in CHECKS]
    failed = any(check.required and not check.ok for check in checks)
    if args.format == "json":
        print(json.dumps({"schema_version": 1, "command": "doctor", "checks": [asdict(c) for c in checks]}, indent=2))
        return 3 if failed else 0
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = "ok" if check.ok else "MISSING" if check.required else "-"
        print(f"{check.name:<{width}}  {mark:<7}  {check.detail}")
        if not check.ok:
            print(f"{'':<{width}}           {check.fix}")
    print("\nEverything required is there." if not failed else "\nSomething required is missing: see above.")
    return 3 if failed else 0
