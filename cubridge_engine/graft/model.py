"""What grafting knows: places in the text, what was seen there, and the files that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..diagnostics import Diagnostic
from ..lower import Hunk

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A variable that holds scores: how one of its elements is written, and the loops that go over all of them.

    `element` has a ``{0}``, ``{1}`` .. for the loop variables; `extents` are their ends, as C++. A scalar has no loop.
    """

    name: str
    element: str
    extents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A candidate: byte offset in a file behind a statement, the fragment to look at there, and the integers in scope.

    `line` (0-based) is that of the statement; `constants` are the names among `integers` that never change;
    `indent` the white space of the statement's line.
    """

    path: Path
    at: int
    line: int
    fragment: Fragment
    integers: tuple[str, ...]
    constants: frozenset[str]
    body: str  # text of the function around it, comments blanked
    indent: str


@dataclass(frozen=True, slots=True)
class Term:
    """``(name >> shift & mask) * factor``; a mask of 0 takes the whole number."""

    name: str
    factor: int
    shift: int = 0
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Affine:
    """An index as a sum over what is in scope at a place, and the share of all scores at which it is right."""

    terms: tuple[Term, ...]
    constant: int
    exact: float


@dataclass(frozen=True, slots=True)
class Site:
    """A place that was seen to hold every one of its scores complete, in `units`, `indices` by canonical name.

    `sizes` spells Sq, Sk, H, Hkv and B; `scores` is how many different ones passed.
    """

    place: Place
    units: str
    indices: Mapping[str, Affine]
    sizes: Mapping[str, str]
    named: Mapping[int, tuple[str, ...]]  # a constant of the text that was seen to have this value
    scores: int


@dataclass(frozen=True, slots=True)
class RowSite:
    """A place behind the loop over keys at which maximum and sum of each row were seen complete, once for each row.

    The fragment of `place` holds the maximum in `units`, `total` the sum of exp(score - maximum), by the same loop
    variables. `lanes`: 1 where each element holds the whole sum, else how many hold the shares of a sum.
    `indices` are those of b, h and i.
    """

    place: Place
    total: Fragment
    units: str
    lanes: int
    indices: Mapping[str, Affine]
    sizes: Mapping[str, str]
    named: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One file before and after, and its hunks."""

    path: Path
    before: bytes
    after: bytes
    hunks: tuple[Hunk, ...]


class Refused(Exception):
    """Grafting ends here; carries what to say."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(diagnostics[0].message)
        self.diagnostics = diagnostics
