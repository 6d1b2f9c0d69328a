"""Definitions of the engine that an exported module carries along, as text: one place says how a tensor map is made,
how NVRTC is found and called, how the driver launches.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

ENGINE = Path(__file__).parents[1]

# file -> names, in the order in which they stand there
PARTS: dict[str, tuple[str, ...]] = {
    "compile/size_text.py": ("cdiv",),
    "compile/tensor_maps.py": ("MapShape", "map_shape"),
    "compile/model.py": ("Raw",),
    "compile/toolchain.py": (
        "_LIBRARY_PATTERNS", "_BUILTINS_PATTERNS", "NvrtcFiles", "_site_nvidia", "_toolkits", "_library_dirs", "_first",
        "find_nvrtc", "cuda_include_dirs",
    ),
    "compile/nvrtc.py": ("_ERROR_COMPILATION", "_ERROR_BAD_NAME_EXPRESSION", "Nvrtc", "load_nvrtc"),
    "compile/cache.py": ("cache_dir",),
    "device/driver.py": (
        "MULTIPROCESSORS", "CAPABILITY_MAJOR", "SHARED_OPT_IN", "MAX_DYNAMIC_SHARED", "MAP_DTYPES", "MAP_SWIZZLES",
        "MAP_L2_256", "MAP_BYTES", "CudaError", "DeviceInfo", "Driver", "load_driver",
    ),
}  # fmt: skip

IMPORTS = """\
from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
"""


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement defines at the top of a module."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


def definitions(text: str, names: tuple[str, ...]) -> list[str]:
    """The definitions of these names in a module's text, with the comments above them. Raises KeyError."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        wanted = _names(node) & set(names)
        if not wanted:
            continue
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        start = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        while start and lines[start - 1].startswith("#"):
            start -= 1
        found[min(wanted, key=names.index)] = "\n".join(lines[start : node.end_lineno])
    return [found[name] for name in names]


@lru_cache(maxsize=1)
def machinery() -> str:
    """Everything that is the same in all exported modules, without imports."""
    chosen = [one for file, names in PARTS.items() for one in definitions((ENGINE / file).read_text("utf-8"), names)]
    own = (Path(__file__).parent / "runtime.py").read_text("utf-8")
    body = own[own.index("# ---- what may be passed") :]
    return "\n\n\n".join(chosen) + "\n\n\n" + body


@lru_cache(maxsize=1)
def defined_names() -> frozenset[str]:
    """The names that the machinery defines at the top of a module."""
    return frozenset().union(*(_names(node) for node in ast.parse(machinery()).body))
