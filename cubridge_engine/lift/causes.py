"""One mistake is one diagnostic: what follows from a name that is not declared is told under that name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..diagnostics import Diagnostic, Related, Span, make
from ..source import SourceFile
from .values import NotUnderstood

MAX_NAMES = 3  # told one by one; where more are missing, it is a header that is missing
MAX_RELATED = 12
_ENDING = " is not declared in this file"
_SENTENCE = re.compile(rf"(\w+){_ENDING}$")
# What a lift says because a name is unknown: not recognised, not understood, no grid.
_FOLLOWERS = ("CB122", "CB123", "CB126")


def undeclared(name: str) -> NotUnderstood:
    """The reason for a statement that uses a name which nobody declares."""
    return NotUnderstood(name + _ENDING)


def gathered(source: SourceFile, found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """`found`, in which undeclared names are one diagnostic each, at their first use. Further uses, and everything
    that was not understood beside them, are places related to the first.
    """
    uses: dict[str, list[Span]] = {}
    for item in found:
        name = _name(item)
        if name is not None and item.span is not None:
            uses.setdefault(name, []).append(_word(source, item.span, name))
    if not uses:
        return list(found)
    ordered = {name: sorted(uses[name], key=lambda span: span.start) for name in uses}
    names = sorted(ordered, key=lambda name: ordered[name][0].start)
    causes = [[name] for name in names] if len(names) <= MAX_NAMES else [names]
    followers = {item.message: item for item in reversed(found) if item.code in _FOLLOWERS and _name(item) is None}
    result: list[Diagnostic] = []
    for position, group in enumerate(causes):
        spans = sorted((span for name in group for span in ordered[name]), key=lambda span: span.start)
        related = [Related(span, "used here too") for span in spans[1:MAX_RELATED]]
        if position == 0:
            related += _related(reversed(followers.values()))
        result.append(make("CB128", spans[0], names=_listed(group), related=tuple(related)))
    return result + [item for item in found if item.code not in _FOLLOWERS]


def _name(item: Diagnostic) -> str | None:
    match = _SENTENCE.search(item.message) if item.code == "CB123" else None
    return match.group(1) if match else None


def _related(followers: Iterable[Diagnostic]) -> list[Related]:
    return [Related(item.span, item.message) for item in followers if item.span is not None][:MAX_RELATED]


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    shown = names if len(names) <= MAX_NAMES + 1 else (*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} more names")
    return f"{', '.join(shown[:-1])} and {shown[-1]} are"


def _word(source: SourceFile, span: Span, name: str) -> Span:
    """The name itself, within the statement that uses it."""
    match = re.compile(rb"\b%s\b" % name.encode()).search(source.code, span.start, span.end)
    return source.span_of(match.start(), match.end()) if match else span
