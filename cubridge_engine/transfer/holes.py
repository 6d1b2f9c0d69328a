"""Does a range of key columns leave out every empty tile of a mask? Decided by looking at tiles, never by spelling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..ir.expr import SK, Const, Expr, Read, call, free_vars, reads, walk
from ..spec.attention import Attention
from .ranges import PRESENT_ROWS, ROWS, Interval, key_range, uniform
from .sampling import Array, bind, integer_constants, value_at

_FARTHEST = 20_000  # keys; a hole that only longer sequences have costs time there, never a result
_Q_TILES = 9
_BATCHES = 6  # each with lengths and bounds of its own
_ALIKE_ROWS = 24  # the same where one query row stands for all


def reads_positions(mask: Expr) -> bool:
    """True when the mask reads a tensor at a row or a column: then only the data know which tiles are empty."""
    return any(isinstance(e, Read) and free_vars(e) & {"i", "j"} for e in walk(mask))


def exact_range(
    mask: Expr, attention: Attention, tile: tuple[int, int], types: dict[str, str]
) -> tuple[Interval, bool]:
    """The range of keys for a mask, and whether it leaves out every empty tile.

    Rows that the last Q tile does not have count where that makes no difference: the bound is then simpler.
    """
    interval: Interval = (None, None)
    for rows in (ROWS, PRESENT_ROWS):
        interval = uniform(key_range(mask, types, rows))
        if not reads_positions(mask) and not visits_empty_tile(mask, interval, attention, tile, types):
            return interval, True
    return interval, False


def visits_empty_tile(
    mask: Expr, interval: Interval, attention: Attention, tile: tuple[int, int], types: dict[str, str]
) -> bool:
    """True when some Q tile's `interval` holds a KV tile without an attended key, on lengths beyond every number of the
    mask. `tile` is (Br, Bc); bounds of the interval are expressions over q0 and sizes, None where there is none.
    """
    br, bc = tile
    lo = bind(call("max", Const(0), interval[0] or Const(0)), {"Br": br, "Bc": bc})
    hi = bind(call("min", SK, interval[1] or SK), {"Br": br, "Bc": bc})
    alike = "i" not in free_vars(mask)
    batches = (_ALIKE_ROWS if alike else _BATCHES) if reads(mask) else 1
    for sq, sk in _lengths(mask, attention, max(br, bc)):
        sizes = {"B": batches, "H": 2, "Hkv": 2, "Sq": sq, "Sk": sk, "h": 1, "hk": 1, "D": 64}
        for b, q0 in itertools.product(range(batches), (0,) if alike else _q_tiles(sq, br)):
            sizes["b"] = b  # lengths differ between batches
            live = _live_tiles(mask, {**sizes, "q0": q0}, q0, br, bc, types)
            first, last = (int(np.asarray(value_at(e, {**sizes, "q0": q0}, types)).flat[0]) for e in (lo, hi))
            # Bounds that cross inside one tile are no reason for a list.
            if first < last and not live[first // bc : -(-last // bc)].all():
                return True
    return False


def _lengths(mask: Expr, attention: Attention, tile: int) -> Iterator[tuple[int, int]]:
    """(Sq, Sk) to look at: a few tiles, and a few tiles beyond each number and product of two numbers of the mask; one
    query, whose tile lacks most of its rows.
    """
    numbers = integer_constants([mask])
    reach = {0, *numbers, *(a * b for a, b in itertools.combinations(numbers, 2))}
    step = max(attention.size_step, 1)
    fixed = attention.specialised
    for far in sorted(n for n in reach if n <= _FARTHEST):
        length = far + 4 * tile + 9
        for sq, sk in ((length, length), (2 * tile + 5, length), (length, 2 * tile + 5), (1, length)):
            sizes = {"Sq": fixed.get("Sq", -(-sq // step) * step), "Sk": fixed.get("Sk", -(-sk // step) * step)}
            if attention.allows(sizes):
                yield sizes["Sq"], sizes["Sk"]


def _q_tiles(sq: int, br: int) -> list[int]:
    count = -(-sq // br)
    return sorted({int(n) * br for n in np.linspace(0, count - 1, min(count, _Q_TILES))})


def _live_tiles(mask: Expr, env: dict[str, int], q0: int, br: int, bc: int, types: dict[str, str]) -> Array:
    """For each KV tile: some row of the Q tile attends to a key of it."""
    i = np.arange(q0, min(q0 + br, env["Sq"])).reshape(-1, 1)
    j = np.arange(env["Sk"]).reshape(1, -1)
    keep = np.atleast_2d(np.asarray(value_at(mask, {**env, "i": i, "j": j}, types), dtype=bool)).any(axis=0)
    return np.logical_or.reduceat(np.broadcast_to(keep, (j.size,)), np.arange(0, env["Sk"], bc))
