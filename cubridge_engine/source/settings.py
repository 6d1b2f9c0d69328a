"""The project's settings: the nearest cubridge.toml above a file, else ``[tool.cubridge]`` of the nearest
pyproject.toml that has it.

This is the one place that reads them; each room takes the keys that are its own (``include`` and ``define`` for
compiling, ``check`` for findings).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cubridge_engine.diagnostics import Diagnostic, Span, make

from .overlay import read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

NAME = "cubridge.toml"
_LIMIT = 1 << 20  # bytes: no settings are larger


@dataclass(frozen=True, slots=True)
class Settings:
    """`table`: the settings, {} where there are none. `path`: the file they are from ('': none). `diagnostics`: CB114
    for a file that cannot be read.
    """

    table: Mapping[str, Any] = field(default_factory=dict[str, Any])
    path: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def folder(self) -> Path | None:
        """Where relative paths of the settings begin."""
        return Path(self.path).parent if self.path else None

    @property
    def start(self) -> Span | None:
        """The beginning of the file, for what is wrong in it."""
        return Span(self.path, 0, 0, 0, 0, 0, 0) if self.path else None


def find_settings(path: Path) -> Settings:
    """The settings for the file (or folder) at `path`. Never raises."""
    start = path if path.is_dir() else path.parent
    for folder in (start.absolute(), *start.absolute().parents):
        own = folder / NAME
        if own.is_file():
            return _read(own, ())
        project = folder / "pyproject.toml"
        if project.is_file():
            found = _read(project, ("tool", "cubridge"))
            if found.table:
                return found
    return Settings()


def _read(path: Path, keys: tuple[str, ...]) -> Settings:
    try:
        if path.stat().st_size > _LIMIT:
            raise ValueError("it is too large for settings")
        table = cast("dict[str, Any]", tomllib.loads(read_bytes(str(path)).decode("utf-8")))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        if keys:
            return Settings()  # a pyproject.toml that is not ours to judge
        span = Span(str(path), 0, 0, 0, 0, 0, 0)
        return Settings({}, str(path), (make("CB114", span, path=str(path), why=str(error)),))
    for key in keys:
        inner = table.get(key)
        table = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    return Settings(table, str(path))
