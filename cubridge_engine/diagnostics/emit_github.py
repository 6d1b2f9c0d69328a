"""Diagnostics as GitHub workflow commands: annotations on the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from .excerpt import Sources, excerpt
from .model import Diagnostic, Severity
from .paths import relative

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice", Severity.HINT: "notice"}


def to_github(diagnostics: Iterable[Diagnostic], sources: Sources | None = None, *, root: str | None = None) -> str:
    """One command per line, e.g. ``::error file=k.cu,line=3,col=5,title=CB103::message``; '' for none.

    Paths are made relative to `root` (the checkout). Lines and columns are 1-based, columns in characters.
    """
    return "".join(f"{_command(diagnostic, sources or {}, root)}\n" for diagnostic in diagnostics)


def _command(diagnostic: Diagnostic, sources: Sources, root: str | None) -> str:
    properties: dict[str, object] = {}
    span = diagnostic.span
    if span is not None:
        found = excerpt(span, sources)
        properties["file"] = relative(span.path, root).as_posix()
        properties["line"] = span.line + 1
        if span.end_line > span.line:
            properties["endLine"] = span.end_line + 1  # columns are for ranges within one line only
        else:
            start, end = (found.start, found.end) if found else (span.column, span.end_column)
            properties["col"] = start + 1
            properties["endColumn"] = max(end, start + 1)  # of the last character
    properties["title"] = diagnostic.code
    shown = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    related = [f"{relative(r.span.path, root).as_posix()}:{r.span.line + 1}: {r.message}" for r in diagnostic.related]
    lines = [diagnostic.message, *related, *([f"help: {diagnostic.help}"] if diagnostic.help else [])]
    return f"::{_COMMANDS[diagnostic.severity]} {shown}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
