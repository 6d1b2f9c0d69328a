"""Diagnostics as JSON values, and back: one object each. The form is part of the JSON contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from .model import Diagnostic, Related, Severity, Span

VERSION = 1  # rises when a field changes its meaning or goes away


def to_json(diagnostics: Iterable[Diagnostic]) -> dict[str, Any]:
    """``{"version": 1, "diagnostics": [...]}``; each as `diagnostic_to_json` gives it."""
    return {"version": VERSION, "diagnostics": [diagnostic_to_json(diagnostic) for diagnostic in diagnostics]}


def diagnostic_to_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """One diagnostic. Lines and columns are 0-based, columns and offsets are bytes; `severity` is a word."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.name.lower(),
        "message": diagnostic.message,
        "help": diagnostic.help,
        "span": asdict(diagnostic.span) if diagnostic.span else None,
        "related": [{"span": asdict(related.span), "message": related.message} for related in diagnostic.related],
        "data": {key: _plain(value) for key, value in diagnostic.data.items()},
    }


def diagnostic_from_json(value: Mapping[str, Any]) -> Diagnostic:
    """The diagnostic that `diagnostic_to_json` wrote. Raises KeyError or TypeError for anything else."""
    return Diagnostic(
        code=value["code"],
        message=value["message"],
        severity=Severity[value["severity"].upper()],
        span=Span(**value["span"]) if value["span"] else None,
        help=value["help"],
        related=tuple(Related(Span(**related["span"]), related["message"]) for related in value["related"]),
        data=dict(value["data"]),
    )


def _plain(value: object) -> object:
    """`value` where JSON has it (finite numbers, strings, lists and objects of such), else its text."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
