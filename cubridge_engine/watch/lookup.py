"""Finding values in a table: sorted once per group of rows, so that a lane is compared only with rows it can hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import Array
from .observed import telling
from .tables import Table


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows each sampled lane may hold. `of_lane` (lanes, choices): group numbers, -1 for none; `of_row` ``[B, H,
    Sq]`` or ``[B, Hkv, Sk]``: the group of each row (a row belongs to one).
    """

    of_lane: Array
    of_row: Array


def everything(lanes: int, shape: tuple[int, ...]) -> Groups:
    """One group for all."""
    return Groups(np.zeros((lanes, 1), np.int64), np.zeros(shape, np.int64))


class Finder:
    """A table made ready: the nearest value within the tolerance, among the rows of a lane's groups."""

    def __init__(self, table: Table, groups: Groups, slack: float = 1.0) -> None:
        self.table = table
        self._of_lane = groups.of_lane
        flat = table.values.ravel()
        rows = np.broadcast_to(
            groups.of_row.reshape(*groups.of_row.shape, *[1] * (table.values.ndim - groups.of_row.ndim)),
            table.values.shape,
        ).ravel()
        at = np.flatnonzero(telling(flat))
        self.entries = len(at)
        self._width = 3 * float(np.abs(flat[at]).max(initial=0.0)) + 1
        keys = rows[at] * self._width + flat[at]
        order = np.argsort(keys, kind="stable")
        self._keys, self._index, self._values = keys[order], at[order], flat[at[order]]
        self._absolute, self._relative = table.absolute * slack, table.relative * slack

    def find(self, x: Array, lanes: Array) -> tuple[Array, Array]:
        """Whether each value is in the table, and where (flat index, nearest)."""
        hit = np.zeros(len(x), bool)
        index = np.zeros(len(x), np.int64)
        best = np.full(len(x), np.inf)
        if not self.entries:
            return hit, index
        cut = np.clip(x, -self._width / 2.5, self._width / 2.5)
        allowed = self._absolute + self._relative * np.abs(x)
        for choice in range(self._of_lane.shape[1]):
            group = self._of_lane[lanes, choice]
            query = group * self._width + cut
            right = np.clip(np.searchsorted(self._keys, query), 0, self.entries - 1)
            for at in (np.maximum(right - 1, 0), right):
                away = np.abs(self._keys[at] - query)
                # The sum of group and value costs digits: compare the values themselves.
                exact = np.where(away < self._width / 2, np.abs(self._values[at] - x), np.inf)
                better = (group >= 0) & (exact < best)
                best, index = np.where(better, exact, best), np.where(better, self._index[at], index)
            hit |= best <= allowed
        return hit, index
