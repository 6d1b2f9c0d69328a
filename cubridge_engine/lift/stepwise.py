"""Numbers that step with the row or the column: ``row % 16``, ``col / 8`` and sums of them, found from their values.

Where the start of a tile is a multiple of 16, execution has already turned ``row % 16`` into one number per thread; the
expression is looked for among the few that can have been folded so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .addresses import Ints
from .values import Store, Value

_DIVISORS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns of a tile: the coordinate within the tile per element and thread, the global index, and the first
    one of the tile.
    """

    local: Ints
    index: Value
    first: Value


@dataclass(frozen=True, slots=True)
class _Step:
    numbers: Ints
    value: Value


def stepwise(store: Store, table: Ints, axes: Sequence[Axis]) -> Value | None:
    """A value equal to `table` ([elements, threads]) that is linear in steps of the axes, at most one each; or None."""
    choices = [list(_steps(store, axis)) for axis in axes]
    for picked in itertools.product(*choices):
        steps = [s for s in picked if s is not None]
        factors = solve(table, [s.numbers for s in steps])
        if factors is None:
            continue
        total: Value = factors[-1]
        for step, factor in zip(steps, factors, strict=False):
            total = store.add(total, store.mul(step.value, factor))
        return total
    return None


def _steps(store: Store, axis: Axis) -> Iterator[_Step | None]:
    """What an axis may contribute: nothing, its remainders and its quotients."""
    yield None
    for m in _DIVISORS:
        if store.remainder(axis.first, m, floor=True) != 0:
            continue
        yield _Step(axis.local % m, store.node("mod", (axis.index, m), kind="int"))
        whole = store.node("floordiv", (axis.index, m), kind="int")
        yield _Step(axis.local // m, store.add(whole, store.divide(axis.first, m, floor=True), -1))


def solve(table: Ints, coordinates: list[Ints]) -> list[int] | None:
    """Integers with ``table == sum(factor * coordinate) + constant``, the constant last; None when there are none."""
    flat = table.reshape(-1).astype(np.float64)
    columns = [np.broadcast_to(c, table.shape).reshape(-1).astype(np.float64) for c in coordinates]
    if not columns:
        return None
    matrix = np.stack([*columns, np.ones_like(flat)], axis=1)
    step = max(1, len(flat) // 512)
    solution, *_ = np.linalg.lstsq(matrix[::step], flat[::step], rcond=None)
    factors = [round(float(x)) for x in solution]
    exact = sum(f * c for f, c in zip(factors, columns, strict=False)) + factors[-1]
    return factors if np.array_equal(exact, flat) else None
