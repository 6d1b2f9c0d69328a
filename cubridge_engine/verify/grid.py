"""The shape grid, as data: every case has a name and the reason it is there.

Lengths are counted in tiles, so that one table serves every kernel: ``Length(3, 17)`` is three tiles and 17 rows more.
Cases derived from what the spec changes (bounds, nonlinearities, biases, masks) are added by `derive`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# How each tensor lies in memory, by the layout of a case: [B, H, S, D], [B, S, H, D], or with a gap behind each row.
LAYOUTS: dict[str, Mapping[str, str]] = {
    "contiguous": {"q": "bhsd", "k": "bhsd", "v": "bhsd", "o": "bhsd"},
    "bshd": {"q": "bshd", "k": "bshd", "v": "bshd", "o": "bshd"},
    "padded": {"q": "padded", "k": "padded", "v": "bhsd", "o": "padded"},
    "mixed": {"q": "bshd", "k": "padded", "v": "bhsd", "o": "bshd"},
}


@dataclass(frozen=True, slots=True)
class Length:
    """`tiles` whole tiles plus `extra` rows."""

    tiles: int
    extra: int

    def rows(self, tile: int) -> int:
        """The length for a tile of that many rows; at least 0."""
        return max(self.tiles * tile + self.extra, 0)


@dataclass(frozen=True, slots=True)
class Case:
    """One problem of the grid.

    `twists` are the changes made to random inputs, in order (names of `inputs.TWISTS`). `layout` says how q, k and v
    lie in memory, which only a real device or the simulator can tell apart. `q_scale` multiplies q.
    """

    name: str
    why: str
    B: int
    H: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    twists: tuple[str, ...] = ()
    layout: str = "contiguous"
    q_scale: float = 1.0
    seed: int = 0
    Dv: int = 0  # width of V and O; 0: D
    long: bool = False  # too many scores to repeat under every schedule and type: see `ir_level` and `simulated_level`

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by their names in the scalar language; Dv only where it is not D."""
        sizes = {"B": self.B, "H": self.H, "Hkv": self.Hkv, "Sq": self.Sq, "Sk": self.Sk, "D": self.D}
        return {**sizes, "Dv": self.Dv} if self.Dv not in (0, self.D) else sizes


@dataclass(frozen=True, slots=True)
class Heads:
    """The head counts the spec accepts: `few` for most cases, `grouped` with Hkv not in {1, H} and Hkv != H / Hkv where
    possible.
    """

    few: tuple[int, int]
    grouped: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    why: str
    batch: int
    grouped: bool
    sq: Length
    sk: Length
    twists: tuple[str, ...] = ()
    layout: str = "contiguous"


BASE: tuple[_Row, ...] = (
    _Row("square", "whole tiles, nothing ragged", 1, False, Length(2, 0), Length(2, 0)),
    _Row(
        "rising-max",
        "four KV tiles with the row max rising in the last; ragged; grouped heads",
        1,
        True,
        Length(3, 17),
        Length(3, 17),
        ("rising",),
    ),
    _Row("short-query", "Sq < Sk, both ragged, two batches", 2, False, Length(1, 9), Length(3, 5), (), "bshd"),
    _Row(
        "long-query",
        "Sq > Sk: rows without a key when aligned to the bottom right",
        1,
        False,
        Length(2, 35),
        Length(1, 9),
    ),
    _Row("below-tile", "lengths below one tile", 1, True, Length(0, 17), Length(0, 13), (), "padded"),
    _Row("one", "one query, one key", 1, False, Length(0, 1), Length(0, 1)),
    _Row("decode", "one query, many keys", 2, True, Length(0, 1), Length(2, 3), (), "mixed"),
    _Row("one-key", "many queries, one key", 1, False, Length(1, 1), Length(0, 1)),
    _Row(
        "large-logits",
        "scores far from zero: the max must be subtracted",
        1,
        False,
        Length(1, 7),
        Length(2, 7),
        ("large",),
    ),
    _Row(
        "row-shifts",
        "every score of a row shifted by a constant of either sign: m must start below any of them",
        1,
        False,
        Length(1, 3),
        Length(2, 11),
        ("row_shift",),
    ),
    _Row(
        "all-negative",
        "all scores strongly negative: masked keys must still weigh nothing, also after a saturating score",
        1,
        False,
        Length(2, 5),
        Length(2, 5),
        ("negative",),
    ),
    _Row("no-keys", "zero keys: every row is empty", 1, False, Length(0, 5), Length(0, 0)),
    _Row("no-queries", "zero queries: nothing may be written", 1, False, Length(0, 0), Length(0, 5)),
)


def base_cases(br: int, bc: int, d: int, heads: Heads) -> tuple[Case, ...]:
    """The fixed part of the grid for a kernel with tiles ``br x bc`` and head dimension `d`."""
    result: list[Case] = []
    for seed, row in enumerate(BASE):
        h, hkv = heads.grouped if row.grouped else heads.few
        result.append(
            Case(
                row.name,
                row.why,
                row.batch,
                h,
                hkv,
                row.sq.rows(br),
                row.sk.rows(bc),
                d,
                row.twists,
                row.layout,
                seed=seed + 1,
            )
        )
    return tuple(result)


def reseeded(cases: tuple[Case, ...], round_number: int) -> tuple[Case, ...]:
    """The same grid with other random inputs; round 0 is the grid itself."""
    return tuple(replace(case, seed=case.seed + 1000 * round_number) for case in cases)
