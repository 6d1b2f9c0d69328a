"""Numbers that step with the row or the column: ``row % 16``, ``col / 8 % 4`` and their sums, found from the values.

Where the start of a tile is a multiple of 16, execution has already turned ``row % 16`` into one number per thread.
What can have been folded so is a sum over the binary digits of the coordinate within the tile, each with a weight:
runs of digits whose weights double are remainders, quotients, and quotients of remainders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .addresses import Ints
from .values import Store, Value

_DIGITS = 7  # tiles have up to 128 rows


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns of a tile: the coordinate within the tile per element and thread, the global index, and the first
    one of the tile.
    """

    local: Ints
    index: Value
    first: Value


def stepwise(store: Store, table: Ints, axes: Sequence[Axis]) -> Value | None:
    """A value equal to `table` ([elements, threads]) that is linear in the digits of the axes; or None."""
    known = [_digits(store, axis) for axis in axes]
    columns = [column for axis, n in zip(axes, known, strict=True) for column in _columns(axis, n)]
    weights = solve(table, columns, every=True)
    if weights is None:
        return None
    total: Value = weights[-1]
    for axis, digits in zip(axes, known, strict=True):
        own, weights = weights[: digits + 1], weights[digits + 1 :]
        for step, weight in _steps(store, axis, own):
            total = store.add(total, store.mul(step, weight))
    return total


def _digits(store: Store, axis: Axis) -> int:
    """How many digits of the coordinate within the tile are those of the global index."""
    longest = int(axis.local.max(initial=0)).bit_length()
    fits = [n for n in range(1, _DIGITS + 1) if store.remainder(axis.first, 1 << n, floor=True) == 0]
    return min(longest, max(fits, default=0))


def _columns(axis: Axis, digits: int) -> list[Ints]:
    """Each digit, and what is left above them."""
    return [*((axis.local >> n) & 1 for n in range(digits)), axis.local >> digits]


def _steps(store: Store, axis: Axis, weights: Sequence[int]) -> Iterator[tuple[Value, int]]:
    """The runs of digits with doubling weights, as values with the weight of their lowest digit."""
    above = len(weights) - 1  # the last weight is that of all digits from here on
    beyond = bool((axis.local >> above).any())
    start = 0
    while start <= above:
        end = start + 1
        while end <= above and weights[start] and weights[end] == weights[end - 1] * 2:
            end += 1
        open_ended = end > above or (end == above and not beyond)
        if weights[start]:
            yield _run(store, axis, start, None if open_ended else end), weights[start]
        start = end


def _run(store: Store, axis: Axis, start: int, end: int | None) -> Value:
    """The digits from `start` up to `end` of the global index; or all from `start` on, but for the tile's first row."""
    index = axis.index if end is None else store.node("mod", (axis.index, 1 << end), kind="int")
    size = 1 << start
    value = index if size == 1 else store.node("floordiv", (index, size), kind="int")
    if end is not None:
        return value
    return store.add(value, axis.first if size == 1 else store.divide(axis.first, size, floor=True), -1)


def solve(table: Ints, coordinates: list[Ints], *, every: bool = False) -> list[int] | None:
    """Integers with ``table == sum(factor * coordinate) + constant``, the constant last; None when there are none.

    The factors are looked for in `every` place, or in some hundred of them.
    """
    flat = table.reshape(-1).astype(np.float64)
    columns = [np.broadcast_to(c, table.shape).reshape(-1).astype(np.float64) for c in coordinates]
    if not columns:
        return None
    matrix = np.stack([*columns, np.ones_like(flat)], axis=1)
    if every:
        places = np.unique(np.concatenate([matrix, flat[:, None]], axis=1), axis=0)
        solution, *_ = np.linalg.lstsq(places[:, :-1], places[:, -1], rcond=None)
    else:
        step = max(1, len(flat) // 512)
        solution, *_ = np.linalg.lstsq(matrix[::step], flat[::step], rcond=None)
    factors = [round(float(x)) for x in solution]
    exact = sum(f * c for f, c in zip(factors, columns, strict=False)) + factors[-1]
    return factors if np.array_equal(exact, flat) else None
