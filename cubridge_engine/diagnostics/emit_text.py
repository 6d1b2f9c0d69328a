"""Diagnostics for people: the sentence, the source line with carets, related places, the way out."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TextIO

from .excerpt import Excerpt, Sources, excerpt
from .model import Diagnostic, Severity, Span

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note", Severity.HINT: "hint"}
_COLOURS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36", Severity.HINT: "1;32"}
_MARGIN_COLOUR = "1;34"
_TAB = 4


def wants_colour(stream: TextIO) -> bool:
    """Whether output to `stream` should be coloured: a terminal, and neither NO_COLOR nor TERM=dumb says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def render_text(diagnostics: Iterable[Diagnostic], sources: Sources | None = None, *, colour: bool = False) -> str:
    """All of `diagnostics` as text that ends in a newline ('' for none). `sources`: path -> bytes, for source lines.

    Lines and columns are 1-based; columns count characters.
    """
    paint = _Paint(colour)
    return "".join("\n".join(_one(diagnostic, sources or {}, paint)) + "\n" for diagnostic in diagnostics)


class _Paint:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and text else text


def _one(diagnostic: Diagnostic, sources: Sources, paint: _Paint) -> Iterator[str]:
    spans = [s for s in (diagnostic.span, *(related.span for related in diagnostic.related)) if s is not None]
    width = max((len(str(span.line + 1)) for span in spans), default=1)
    colour = _COLOURS[diagnostic.severity]
    yield paint(f"{_WORDS[diagnostic.severity]}[{diagnostic.code}]", colour) + paint(f": {diagnostic.message}", "1")
    if diagnostic.span is not None:
        yield from _place(diagnostic.span, "-->", "", "^", colour, width, sources, paint)
    for related in diagnostic.related:
        yield from _place(related.span, ":::", related.message, "-", _MARGIN_COLOUR, width, sources, paint)
    if diagnostic.help:
        lead = " " * width + (" = " if spans else " ")
        yield paint(lead, _MARGIN_COLOUR) + paint("help", "1") + f": {diagnostic.help}"


def _place(
    span: Span, arrow: str, label: str, mark: str, colour: str, width: int, sources: Sources, paint: _Paint
) -> Iterator[str]:
    """``--> path:line:column`` and, if the source is known, the line with `mark` below the span and `label` behind."""
    found = excerpt(span, sources)
    column = (found.start if found else span.column) + 1
    tail = f": {label}" if label and not found else ""
    yield " " * width + paint(arrow, _MARGIN_COLOUR) + f" {span.path}:{span.line + 1}:{column}{tail}"
    if found is None:
        return
    bar = paint(" |", _MARGIN_COLOUR)
    text, indent, length = _laid_out(found)
    yield " " * width + bar
    yield paint(f"{span.line + 1:>{width}}", _MARGIN_COLOUR) + bar + (f" {text}" if text else "")
    more = "..." if span.end_line > span.line else ""
    yield " " * width + bar + " " + " " * indent + paint(" ".join(filter(None, [mark * length + more, label])), colour)


def _laid_out(found: Excerpt) -> tuple[str, int, int]:
    """(the line as shown, columns before the mark, columns of the mark): tabs expanded, wide characters counted."""
    text = ""
    columns = [0]
    for char in found.text.rstrip():
        shown = " " * (_TAB - columns[-1] % _TAB) if char == "\t" else char if char.isprintable() else "\ufffd"
        text += shown
        columns.append(columns[-1] + (len(shown) if char == "\t" else _width(shown)))
    start = columns[min(found.start, len(columns) - 1)]
    end = columns[min(found.end, len(columns) - 1)]
    return text, start, max(1, end - start)


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
