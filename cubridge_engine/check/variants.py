"""Many edits of one text in one compiled kernel: each stands beside what it replaces, and a variable of the device says
which of them counts. So trying an edit costs a launch, not a compilation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..diagnostics import Span
from ..source import SourceFile
from .model import Edit

SWITCH = "cubridge_variant"
_HEAD = f'extern "C" __device__ int {SWITCH};\n#line 1\n'


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes `start`..`end` of an expression that becomes `text`; an empty range is a statement that is inserted."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An edit that may be what a kernel lacks. `places` are whole expressions, for the variant; `edits` the smallest
    change of the text. `why` says what would be wrong with the text if it is this; `family` sorts. `at`: the line that
    shows it, where that is not the one that changes.
    """

    family: str
    places: tuple[Place, ...]
    edits: tuple[Edit, ...]
    title: str
    why: str
    at: Span | None = None


def with_variants(source: SourceFile, candidates: Sequence[Candidate]) -> bytes:
    """The text in which variant n + 1 is candidate n, and 0 the text as it is. Lines keep their numbers."""
    at: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    for number, candidate in enumerate(candidates, 1):
        for place in candidate.places:
            at[place.start, place.end].append((number, place.text))
    ranges = sorted(at, key=lambda r: (r[0], r[0] != r[1], -r[1]))
    body = _rendered(source.data, 0, len(source.data), ranges, at)
    return _HEAD.encode() + body


def _rendered(
    data: bytes,
    start: int,
    end: int,
    ranges: Sequence[tuple[int, int]],
    at: dict[tuple[int, int], list[tuple[int, str]]],
) -> bytes:
    """The bytes of a range with what is guarded inside; `ranges` lie inside it, the outer ones first."""
    parts: list[bytes] = []
    here, n = start, 0
    while n < len(ranges):
        low, high = ranges[n]
        last = n + 1
        while last < len(ranges) and ranges[last][0] < high:
            last += 1
        parts.append(data[here:low])
        inner = _rendered(data, low, high, ranges[n + 1 : last], at)
        parts.append(_guarded(inner, at[low, high]))
        here, n = high, last
    parts.append(data[here:end])
    return b"".join(parts)


def _guarded(inner: bytes, variants: Iterable[tuple[int, str]]) -> bytes:
    if not inner:
        return " ".join(f"if ({SWITCH} == {number}) {{ {text} }}" for number, text in variants).encode() + b" "
    tests = "".join(f"{SWITCH} == {number} ? ({text}) : " for number, text in variants)
    return f"({tests}(".encode() + inner + b"))"
