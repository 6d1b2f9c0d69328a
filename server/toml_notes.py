"""What is wrong with the files beside a kernel: with a contract.toml on the line of the field, with the settings of the
project (cubridge.toml, pyproject.toml) at their beginning."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cubridge_engine.compile import contract_beside, parse_contract
from cubridge_engine.diagnostics import Diagnostic, Span
from cubridge_engine.source.settings import find_settings

from . import convert

if TYPE_CHECKING:
    from cubridge_engine.source import TextIndex

    from .app import CubridgeServer

CONTRACT = "contract.toml"
SETTINGS = "cubridge.toml"
_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")
_AT = re.compile(r"at line (\d+), column \d+")  # as the parser of TOML says it


def is_contract(uri: str) -> bool:
    """Whether `uri`, or a path, names a contract: by its file name."""
    return _name(uri) == CONTRACT


def _name(uri: str) -> str:
    return uri.replace("\\", "/").rpartition("/")[2]


def beside(path: str) -> list[str]:
    """Paths of the contract beside the kernel at `path`, and of the project's settings."""
    contract, settings = contract_beside(Path(path)), find_settings(Path(path)).path
    return [*((str(contract),) if contract is not None else ()), *((settings,) if settings else ())]


def digests_beside(ls: CubridgeServer, path: str) -> tuple[tuple[str, str], ...]:
    """(path, digest) of what decides, beside the text of the kernel at `path`, what a job says of it: the contract (one
    that is not there yet, too) and the settings.
    """
    files = dict.fromkeys([str(Path(path).parent / CONTRACT), *beside(path)])
    return tuple((file, convert.sha256(ls.documents.text(file).data)) for file in files)


def of_file(ls: CubridgeServer, path: str) -> list[Diagnostic]:
    """The diagnostics of the contract or the settings at `path`; none for any other file, and for one that is gone."""
    if _name(path) in (SETTINGS, "pyproject.toml"):
        from cubridge_engine.check import config_for

        return [item for item in config_for(Path(path))[1] if item.span is None or item.span.path == path]
    text = ls.documents.text(path) if is_contract(path) else None
    if text is None or not text.data:
        return []
    lines = text.data.decode("utf-8", "replace").split("\n")
    return [_placed(item, text, lines) for item in parse_contract("\n".join(lines), path)[1]]


def _placed(found: Diagnostic, text: TextIndex, lines: list[str]) -> Diagnostic:
    """`found` on the line of what it speaks of, where the engine says no more than the file."""
    if found.span is None or found.span.end > 0:
        return found
    at = _AT.search(found.message)
    line = int(at[1]) - 1 if at else line_of(str(found.data.get("field", "")), lines)
    line = min(line, text.line_count - 1)
    start, end = text.line_start(line), text.line_end(line)
    return replace(found, span=Span(found.span.path, start, end, line, 0, line, end - start))


def line_of(field: str, lines: list[str]) -> int:
    """The 0-based line of a field, named as in ``parameters[3].role``: as far down as it can be found."""
    line = 0
    for name, index in _STEP.findall(field):
        found = _table(lines, line, name, int(index or 0))
        if found is None:
            found = _key(lines, line, name)
            if found is not None and index:
                found = _row(lines, found, int(index))
        if found is None:
            return line
        line = found
    return line


def _table(lines: list[str], start: int, name: str, index: int) -> int | None:
    """The line of the `index`-th header ``[name]`` or ``[[name]]``."""
    head = re.compile(rf"\s*\[+\s*{name}\s*\]+")
    found = [n for n, line in enumerate(lines) if n >= start and head.match(line)]
    return found[index] if index < len(found) else None


def _key(lines: list[str], start: int, name: str) -> int | None:
    """The line of ``name = ``: on its own in the table that begins at `start`, or within the row of that line."""
    if re.search(rf"[{{,]\s*{name}\s*=", lines[start]):
        return start
    for n in range(start + bool(lines[start].lstrip().startswith("[")), len(lines)):
        if n > start and lines[n].lstrip().startswith("["):
            return None
        if re.match(rf"\s*{name}\s*=", lines[n]):
            return n
    return None


def _row(lines: list[str], start: int, index: int) -> int:
    """The line of the `index`-th row ``{ ... }`` of a list that begins at `start`."""
    rows = [n for n in range(start, len(lines)) if lines[n].lstrip().startswith("{")]
    return rows[index] if index < len(rows) else start
