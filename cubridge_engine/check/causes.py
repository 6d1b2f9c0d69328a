"""One finding per cause: what watching shows of a fault that reading has named already is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..diagnostics import Severity
from .model import Finding

# A finding of watching -> the findings of reading that name its cause. Of pairs of accesses, where they share a line.
_PAIRS = {
    "CB516": frozenset({"CB845", "CB850", "CB851", "CB852"}),
    "CB527": frozenset({"CB845", "CB851", "CB852"}),
    "CB517": frozenset({"CB850", "CB853"}),
    "CB518": frozenset({"CB850", "CB853"}),
}
_PLAIN = {
    "CB513": frozenset({"CB846", "CB873"}),
    "CB514": frozenset({"CB858"}),
    "CB515": frozenset({"CB856", "CB857"}),
    "CB519": frozenset({"CB854", "CB855"}),
    "CB520": frozenset({"CB854", "CB855"}),
    "CB521": frozenset({"CB860"}),
    "CB524": frozenset({"CB873"}),
    "CB534": frozenset({"CB856", "CB857"}),
    "CB537": frozenset({"CB858"}),
    "CB539": frozenset({"CB873"}),
}
_NUMBERS = frozenset({"CB880", "CB881", "CB882", "CB883"})
# A mask and a loop that disagree: either may be at fault, which an expectation decides when it names the mask.
_UNDECIDED = frozenset({"CB863", "CB864"})
# Faults of these kinds make wrong numbers, so that wrong numbers say nothing more.
_WRONG = frozenset({"softmax", "mask", "range", "heads", "numeric", "warp"})


def undecided_left(reading: Iterable[Finding], others: Sequence[Finding]) -> list[Finding]:
    """`reading` without what `others` (of watching and of expectation) decide."""
    decided = any(f.code == "CB882" and f.kind == "mask" for f in others)
    return [f for f in reading if not (decided and f.code in _UNDECIDED)]


def new_causes(reading: Sequence[Finding], others: Iterable[Finding]) -> list[Finding]:
    """Those of `others` (of watching and of expectation) that say something that `reading` does not."""
    errors = [f for f in reading if f.severity is Severity.ERROR]
    return [f for f in others if not _named(f, errors, reading)]


def _named(found: Finding, errors: Sequence[Finding], reading: Sequence[Finding]) -> bool:
    if found.code in _NUMBERS:
        line = found.span.line if found.span is not None else None
        return any(e.kind in _WRONG or (e.span is not None and e.span.line == line) for e in errors)
    codes = _PAIRS.get(found.code)
    if codes is not None:
        mine = _lines(found)
        return any(e.code in codes and _lines(e) & mine for e in reading)
    return any(e.code in _PLAIN.get(found.code, frozenset()) for e in reading)


def _lines(found: Finding) -> frozenset[tuple[str, int]]:
    """All lines that a finding names."""
    spans = [found.span, *(r.span for r in found.diagnostic.related)]
    return frozenset((span.path, span.line) for span in spans if span is not None)
