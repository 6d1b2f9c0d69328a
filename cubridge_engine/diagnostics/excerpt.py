"""What emitters need of a source text: the line of a span, and columns counted in characters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .model import Span

Sources = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first line of a span. `text` has no line ending and no byte order mark; `start` and `end` are 0-based columns
    in characters, `end` at most the line's length (a span over several lines is cut there). `end_column` is the column
    of the span's own end on its last line."""

    text: str
    start: int
    end: int
    end_column: int


def excerpt(span: Span, sources: Sources) -> Excerpt | None:
    """The line that `span` begins on; None when its file is not among `sources` or does not reach that far."""
    data = sources.get(span.path)
    line_start = span.start - span.column
    if data is None or line_start < 0 or span.end > len(data):
        return None
    line = _line(data, line_start)
    last = _line(data, max(span.end - span.end_column, 0))
    text = _decode(line, len(line))
    start = len(_decode(line, span.column))
    end = len(_decode(line, span.end_column)) if span.end_line == span.line else len(text)
    return Excerpt(text, start, max(start, end), len(_decode(last, span.end_column)))


def _line(data: bytes, start: int) -> bytes:
    end = data.find(b"\n", start)
    return data[start : len(data) if end < 0 else end].rstrip(b"\r")


def _decode(line: bytes, size: int) -> str:
    return line[:size].decode("utf-8", "replace").removeprefix("\ufeff")
