"""Labels of a tensor library's calls in the coverage of a kernel of which no whole program was read."""

from __future__ import annotations

import re
from dataclasses import replace

from ...diagnostics import Diagnostic, Span
from ...source import SourceFile
from .. import budget
from ..coverage import LANDMARKS, Coverage, Landmark
from .reading import CuteReading, CuteStep, read_cute
from .table import CALLS

_CALL = re.compile(r"the function (?:\w+::)*(\w+) is not defined|the method (?:[\w.]+\.)?(\w+)$")
SECONDS = 10.0  # of this thread's work


def with_cute(coverage: Coverage, source: SourceFile, kernel: str | None) -> tuple[Coverage, CuteReading]:
    """`coverage` with the steps that reading did not find but the library's calls show. Never raises."""
    try:
        with budget.limited(SECONDS):
            found = read_cute(source, kernel)
    except budget.OutOfTime:
        return coverage, CuteReading(why=f"reading took longer than {SECONDS:g} s")
    except Exception as error:  # the boundary of the room: any text may arrive here
        return coverage, CuteReading(why=f"{type(error).__name__}: {error}")
    if not found.steps:
        return coverage, found
    given = coverage.landmarks if any(m.found for m in coverage.landmarks) else _blank()
    marks = tuple(_filled(mark, found.step(mark.name), source) for mark in given)
    return replace(coverage, landmarks=marks), found


def is_of_cute(d: Diagnostic) -> bool:
    """Whether `d` only says that execution does not know a call which the table knows."""
    found = _CALL.search(d.message) if d.code == "CB123" else None
    return found is not None and (found[1] or found[2]) in CALLS


def _blank() -> tuple[Landmark, ...]:
    return tuple(Landmark(name, words, None) for name, words in LANDMARKS.items())


def _filled(mark: Landmark, step: CuteStep | None, source: SourceFile) -> Landmark:
    if mark.found or step is None:
        return mark
    return Landmark(mark.name, mark.words, shown(step.span, source), provenance="read")


def shown(span: Span, source: SourceFile) -> Span:
    """The place in the file itself: of a header's line that of its ``#include``."""
    if span.path == source.path:
        return span
    at = next((header.at for header in source.headers if header.source.path == span.path), (0, 0))
    return source.span_of(*at)
