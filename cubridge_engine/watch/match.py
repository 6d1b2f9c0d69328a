"""Which table each observed register agrees with: a screening, the full test, and the same test on unrelated inputs.

A label needs most lanes of an execution to agree, many different numbers, and a null test that does not: the same
values looked up in the tables of other inputs. What then still fits several tables is given to the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .lookup import Finder, Groups
from .model import AXES, Array
from .observed import Observed
from .tables import Table

SCREEN = 10  # lanes of an execution that are looked at first
SHARE = 0.9  # of the lanes of an execution that must agree
LEAST = 4  # numbers of an execution that say something
EVIDENCE = 8.0  # distinct numbers times -log10 of the null share
# What runs from tile to tile: in a first tile it is the tile's own value, and is named by what it goes on to be.
_RUNNING = frozenset({"m", "l", "O unnormalised"})
ROUNDINGS = {"f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Match:
    """One observed register and the table it agrees with; `held` (executions, lanes) marks the values that agree and
    `index` where in the table.
    """

    observed: Observed
    table: Table
    executions: Array  # numbers of the executions that agree
    share: float  # of the executions with numbers that say something
    hit: Array
    index: Array
    matches: int
    of: int
    distinct: int
    null: float
    alternatives: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """The table's."""
        return self.table.role

    def places(self) -> tuple[Array, Array, Array]:
        """(execution, lane, flat index in the table) of every value that agrees."""
        rows, lanes = np.nonzero(self.hit)
        return self.executions[rows], lanes, self.index[rows, lanes]


@dataclass(frozen=True, slots=True)
class Rows:
    """Executions of observations below each other."""

    owner: Array  # (rows,) number of the observation
    execution: Array
    x: Array  # (rows, lanes)
    ok: Array
    screen: Array  # (rows, SCREEN) lanes, those that say something first


def rows_of(observed: Sequence[Observed]) -> Rows:
    """All executions that say something."""
    rng = np.random.default_rng(3)
    owner: list[Array] = []
    execution: list[Array] = []
    x: list[Array] = []
    ok: list[Array] = []
    for number, one in enumerate(observed):
        live = np.flatnonzero(one.ok.sum(1) >= min(LEAST, max(one.active.sum(1).max(initial=0), 2)))
        owner.append(np.full(len(live), number))
        execution.append(live)
        x.append(one.values[live])
        ok.append(one.ok[live])
    if not owner or not sum(map(len, owner)):
        empty = np.zeros((0, 1))
        return Rows(np.zeros(0, int), np.zeros(0, int), empty, empty.astype(bool), np.zeros((0, SCREEN), int))
    marks = np.concatenate(ok)
    values = np.where(marks, np.concatenate(x), 0.5)
    screen = np.argsort(np.where(marks, rng.random(marks.shape), 2.0), axis=1)[:, :SCREEN]
    return Rows(np.concatenate(owner), np.concatenate(execution), values, marks, screen)


class Matcher:
    """Matches one set of observations against tables, with those of unrelated inputs beside them."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self.observed = observed
        self.rows = rows_of(observed)

    def chosen(self, sites: set[int] | None) -> Array:
        """Numbers of the rows of these instructions (None: all)."""
        if sites is None:
            return np.arange(len(self.rows.owner))
        mine = np.array([o.site in sites for o in self.observed], bool)
        return np.flatnonzero(mine[self.rows.owner]) if len(mine) else np.zeros(0, int)

    def some(self, sites: set[int], most: int = 400) -> Array:
        """At most so many of their rows, by chance."""
        rows = self.chosen(sites)
        return rows if len(rows) <= most else np.sort(np.random.default_rng(5).permutation(rows)[:most])

    def agreeing(self, finder: Finder, rows: Array) -> tuple[Array, Array, Array]:
        """Which of `rows` agree, with (hits, indices) of those: (numbers, (n, lanes), (n, lanes))."""
        screen = self.rows.screen[rows]
        marks = np.take_along_axis(self.rows.ok[rows], screen, 1)
        values = np.take_along_axis(self.rows.x[rows], screen, 1)
        at = np.nonzero(marks)
        hit = np.zeros(marks.shape, bool)
        hit[at] = finder.find(values[at], screen[at])[0]
        count = marks.sum(1)
        rows = rows[(count >= 2) & (hit.sum(1) >= 0.7 * count)]
        marks = self.rows.ok[rows]
        at = np.nonzero(marks)
        full = np.zeros(marks.shape, bool)
        index = np.zeros(marks.shape, np.int64)
        full[at], index[at] = finder.find(self.rows.x[rows][at], at[1])
        count = marks.sum(1)
        good = full.sum(1) >= np.maximum(SHARE * count, np.minimum(count, 2))
        return rows[good], full[good], index[good]

    def match(
        self, tables: Sequence[Table], groups: Groups, nulls: Sequence[Table], *, slack: float = 1.0,
        sites: set[int] | None = None,
    ) -> list[Match]:  # fmt: skip
        """The best table of each observation that has one. `nulls` are the same tables of unrelated inputs."""
        rows = self.chosen(sites)
        found: dict[int, list[Match]] = {}
        other = {t.key: t for t in nulls}
        live = np.bincount(self.rows.owner[rows], minlength=len(self.observed))
        for table in tables:
            mine = self._readable(rows, table)
            finder = Finder(table, groups, slack)
            if finder.entries < 2:
                continue
            good, hit, index = self.agreeing(finder, mine)
            if not len(good):
                continue
            null = Finder(other[table.key], groups, slack)
            for number in np.unique(self.rows.owner[good]).tolist():
                here = self.rows.owner[good] == number
                one = self._judge(number, table, good[here], hit[here], index[here], null, int(live[number]))
                if one is not None:
                    found.setdefault(number, []).append(one)
        return [_best(matches) for _, matches in sorted(found.items())]

    def _readable(self, rows: Array, table: Table) -> Array:
        """A register of halves holds a rounded table, and floats may hold any."""
        rounding = np.array([ROUNDINGS.get(o.kind, "") for o in self.observed] or [""])
        wide = rounding[self.rows.owner[rows]] == ""
        return rows[wide]

    def _judge(
        self, number: int, table: Table, rows: Array, hit: Array, index: Array, null: Finder, live: int
    ) -> Match | None:
        marks = self.rows.ok[rows]
        matches, of = int(hit.sum()), int(marks.sum())
        at = np.nonzero(hit)
        values = self.rows.x[rows][at]
        distinct = len(np.unique(values.astype(np.float32)))
        wrong = float(null.find(values, at[1])[0].mean()) if len(values) else 1.0
        if wrong > 0.5 or distinct < 4 or distinct * -math.log10(max(wrong, 0.01)) < EVIDENCE:
            return None
        return Match(
            self.observed[number], table, self.rows.execution[rows], len(rows) / max(live, 1), hit, index, matches,
            of, distinct, wrong,
        )  # fmt: skip


def _best(matches: list[Match]) -> Match:
    """The smallest table that explains about as many executions as any."""
    most = max(len(m.executions) for m in matches)
    close = [m for m in matches if len(m.executions) >= 0.8 * most]
    order = list(AXES)
    close.sort(key=lambda m: (m.table.values.size, bool(m.table.rounded), -len(m.executions), order.index(m.role)))
    # A running maximum is the tile's in the first tile, and a sum of one tile is the running sum.
    first = close[0]
    same = [m for m in close if m.table.values.size == first.table.values.size]
    best = max(same, key=lambda m: (len(m.executions), m.matches, m.role in _RUNNING, not m.table.rounded))
    others = tuple(dict.fromkeys(m.role for m in close if m.role != best.role))
    return Match(
        best.observed, best.table, best.executions, best.share, best.hit, best.index, best.matches, best.of,
        best.distinct, best.null, others,
    )  # fmt: skip
