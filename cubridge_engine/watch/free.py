"""Weights against a reference that is no running maximum: ``P = exp(S - c)`` with the c of a row and a tile measured.

Some kernels subtract what only bounds the maximum (that of the first tile with room above, raised where it is
outgrown); c cancels in O / l. All weights that a lane makes of one row at one time share it: the differences of
their logarithms are differences of scores, which say which keys they are of, and then what c is. Nothing is assumed of
how the kernel chooses c; that one c explains many weights is the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .labels import Code
from .lookup import Groups
from .model import Array, Meaning
from .observed import Observed

_LOG = 6e-6  # of a logarithm: ex2.approx and the rounding of its argument
_LEAST = 8  # different keys that one c must explain
_PAIRS = 3  # pairs of neighbouring registers that a search starts from
_SAMPLE = 48  # groups that are looked at before all are
_ROWS = 4  # groups that must show a reference before any is believed


@dataclass(frozen=True, slots=True)
class _Group:
    """What one lane made at one place in one trip: logarithms, in the order of the code."""

    lane: int
    logs: Array


def references(
    observed: Sequence[Observed], code: Code, meaning: Meaning, rows: Groups, sites: set[int]
) -> Array | None:
    """The c of every score ``[B, H, Sq, Sk]`` that a sampled lane was seen to weigh, NaN elsewhere; where a weight was
    made again, the highest, which is the later. None where no row shows one. `rows`: which rows each lane holds, every
    row a group; `sites`: the instructions that may make weights.
    """
    groups = list(_groups([o for o in observed if o.site in sites and o.half < 0], code))
    rng = np.random.default_rng(11)
    table = _Rows(meaning)
    some = [groups[n] for n in rng.permutation(len(groups))[:_SAMPLE]]
    if sum(bool(list(_explained(g, table, rows))) for g in some) < max(_ROWS, len(some) // 4):
        return None
    found = np.full((table.count, meaning.scores.shape[-1]), -np.inf)
    for group in groups:
        for row, keys, c in _explained(group, table, rows):
            found[row, keys] = np.maximum(found[row, keys], c)
    return np.where(np.isfinite(found), found, np.nan).reshape(meaning.scores.shape)


def by_tile(found: Array, bc: int) -> Array | None:
    """The c of each row and tile ``[B, H, Sq, T]``, NaN where no lane saw it; None where a tile has several."""
    keys = found.shape[-1]
    tiles: list[Array] = []
    for start in range(0, keys, bc):
        part = found[..., start : start + bc]
        known = np.isfinite(part).any(-1)
        top = np.where(np.isfinite(part), part, -np.inf).max(-1)
        low = np.where(np.isfinite(part), part, np.inf).min(-1)
        apart = known & (np.where(known, top, 0) - np.where(known, low, 0) > 4 * _LOG)
        if apart.sum() > 0.02 * max(known.sum(), 1):
            return None
        tiles.append(np.where(known & ~apart, top, np.nan))
    return np.stack(tiles, -1)


def filled(tiles: Array, descending: bool) -> Array:
    """With the c of the tile before where too few keys are attended to tell, else of the one after: as if it had not
    been raised there. Where it was, nothing will agree.
    """
    made = tiles[..., ::-1].copy() if descending else tiles.copy()
    count = made.shape[-1]
    for at, other in (*((t, t - 1) for t in range(1, count)), *((t, t + 1) for t in range(count - 2, -1, -1))):
        made[..., at] = np.where(np.isnan(made[..., at]), made[..., other], made[..., at])
    return made[..., ::-1] if descending else made


class _Rows:
    """Scores of every row in ascending order, those that are attended."""

    def __init__(self, meaning: Meaning) -> None:
        shape = meaning.scores.shape
        masked = np.where(meaning.mask, meaning.scores, np.inf).reshape(-1, shape[-1])
        self.count = len(masked)
        self._order = np.argsort(masked, axis=1)
        self._sorted = np.take_along_axis(masked, self._order, 1)

    def row(self, number: int) -> tuple[Array, Array]:
        """(scores in order, their keys)."""
        attended = int(np.isfinite(self._sorted[number]).sum())
        return self._sorted[number, :attended], self._order[number, :attended]


def _groups(observed: Sequence[Observed], code: Code) -> Iterator[_Group]:
    """Weights by place, lane and trip. Copies of one line that was inlined at several places are several places."""
    places: dict[tuple[object, ...], list[Observed]] = {}
    for one in observed:
        chain = code.chain(one.site)
        place = tuple((s.path, s.line) for s in chain[1:]) or tuple((s.path, s.line) for s in chain)
        places.setdefault(place, []).append(one)
    for members in places.values():
        held: dict[tuple[int, int], list[float]] = {}
        for one in members:
            execution, lane = np.nonzero(one.ok & (one.values > 0))
            trips, values = one.trips[execution, lane], np.log(one.values[execution, lane])
            for key, value in zip(zip(lane.tolist(), trips.tolist(), strict=True), values.tolist(), strict=True):
                held.setdefault(key, []).append(value)
        for (lane, _), logs in held.items():
            if len(logs) >= _LEAST:
                yield _Group(lane, np.array(logs))


def _explained(group: _Group, table: _Rows, rows: Groups) -> Iterator[tuple[int, Array, float]]:
    """(row, keys, c) of every row that one c explains many of the weights of."""
    for row in rows.of_lane[group.lane].tolist():
        if row < 0:
            continue
        scores, keys = table.row(row)
        if len(scores) < _LEAST:
            continue
        best = max(_candidates(group.logs, scores), key=lambda c: len(_hits(group.logs + c, scores)), default=None)
        if best is None:
            continue
        at = _hits(group.logs + best, scores)
        # Many weights by one number: chance gives one or two.
        if len(at) >= max(_LEAST, len(group.logs) // 4):
            wanted = _nearest(group.logs + best, scores)
            near = np.abs(scores[wanted] - group.logs - best) <= _LOG
            c = best + float(np.median((scores[wanted] - group.logs - best)[near]))
            yield row, keys[at], c


def _candidates(logs: Array, scores: Array) -> list[float]:
    """Values of c that put two neighbouring weights on two scores of the row."""
    found: list[float] = []
    middle = len(logs) // 2
    for at in [*range(_PAIRS), *range(middle, middle + _PAIRS)]:
        if at + 1 >= len(logs):
            break
        second = scores + (logs[at + 1] - logs[at])
        near = np.abs(scores[_nearest(second, scores)] - second) <= 2 * _LOG
        found += (scores[near] - logs[at]).tolist()
    return found


def _nearest(x: Array, scores: Array) -> Array:
    right = np.clip(np.searchsorted(scores, x), 0, len(scores) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(scores[left] - x) <= np.abs(scores[right] - x), left, right)


def _hits(x: Array, scores: Array) -> Array:
    """The different scores that `x` holds."""
    at = _nearest(x, scores)
    return np.unique(at[np.abs(scores[at] - x) <= _LOG])
