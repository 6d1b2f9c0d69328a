"""Paths as other tools want them: relative to the repository where possible, with forward slashes."""

from __future__ import annotations

from pathlib import Path, PurePath


def relative(path: str, root: str | None) -> PurePath:
    """`path` relative to `root` if it lies below it (both taken as absolute), else `path` as it is."""
    if root is None:
        return PurePath(path)
    base = Path(root).absolute()
    whole = Path(path) if Path(path).is_absolute() else base / path
    try:
        return whole.relative_to(base)
    except ValueError:
        return whole
