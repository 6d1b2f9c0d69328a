"""Versions of what a result depends on, without importing any of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("cubridge", "torch", "numpy", "tree-sitter-cuda", "nvidia-cuda-nvrtc")


def versions() -> dict[str, str]:
    """Versions of what the result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
