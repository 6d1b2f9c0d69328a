"""The online softmax of a program without its products: raw scores are given, and each tile's steps are kept.

Everything is executed for the rows of one query tile, `[Br, ...]` in float64, as `ir.interp` does; shared memory,
copies and barriers are left out, so that what is found is about the numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Expr
from ..ir.nodes import (
    Fill,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    Map,
    Mask,
    Mma,
    Op,
    Opaque,
    RowMap,
    RowReduce,
    Score,
    StoreRow,
    StoreTile,
)
from .problems import Problem

Array = NDArray[Any]
COLUMNS = 8  # of V: enough for one value per quad lane
_MOST_TRIPS = 64
_MOST_KEYS = 1024  # of a loop over keys one by one


class Undecided(Exception):
    """The program does something that these steps cannot follow; the text says what."""


@dataclass(slots=True)
class Test:
    """A mask on a tile: what it keeps [Br, Bc] and whether it was tested there."""

    op: Mask
    keep: Array
    tested: Array


@dataclass(slots=True)
class Tile:
    """One trip of the loop: `raw` scores as the products leave them, `scores` before any mask, `weights` P, and row
    vectors and O behind the trip. A vector is ``[Br, lanes]``.
    """

    first: int
    raw: Array
    scores: Array | None = None
    tests: list[Test] = field(default_factory=list[Test])
    weights: Array | None = None
    before: dict[str, Array] = field(default_factory=dict[str, Array])
    behind: dict[str, Array] = field(default_factory=dict[str, Array])
    o_before: Array | None = None
    o_behind: Array | None = None
    values: Array | None = None  # rows of V of this tile

    def attended(self) -> Array:
        """What is not masked [Br, Bc]."""
        found = np.ones(self.raw.shape, dtype=bool)
        for test in self.tests:
            found = found & (test.keep | ~test.tested)
        return found

    def kept(self) -> Array:
        """What the masks keep, wherever they are tested."""
        found = np.ones(self.raw.shape, dtype=bool)
        for test in self.tests:
            found = found & test.keep
        return found


@dataclass(slots=True)
class Rows:
    """What a run left: `o` [Br, COLUMNS], `lse` [Br] or None, `tiles` in the order of the loop; `nan_at` maps a row to
    the operation at which its first NaN arose.
    """

    q0: int
    tiles: list[Tile] = field(default_factory=list[Tile])
    o: Array | None = None
    lse: Array | None = None
    nan_at: dict[int, Op] = field(default_factory=dict[int, Op])
    vectors: dict[str, Array] = field(default_factory=dict[str, Array])  # at the end


Scores = Callable[[Array, Array], Array]  # rows [Br, 1], keys [1, Bc] -> raw scores
Values = Callable[[Array], Array]  # keys [Bc] -> rows of V [Bc, COLUMNS]


def run_rows(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Array], q_tile: int, scores: Scores, values: Values
) -> Rows:
    """Execute the rows of query tile `q_tile`. Raises Undecided, and UnboundName for what only a launch gives."""
    return _run(kernel, problem, tensors, q_tile, scores, values, STEPS)


def run_masks(kernel: Kernel, problem: Problem, tensors: Mapping[str, Array], q_tile: int) -> Rows:
    """Only the tiles that are visited and their masks. Raises as `run_rows` does."""
    return _run(kernel, problem, tensors, q_tile, _no_scores, _no_values, MASK_STEPS)


def _no_scores(rows: Array, keys: Array) -> Array:
    return np.zeros((rows.shape[0], keys.shape[1]))


def _no_values(keys: Array) -> Array:
    return np.zeros((keys.shape[0], 1))


def _run(
    kernel: Kernel,
    problem: Problem,
    tensors: Mapping[str, Array],
    q_tile: int,
    scores: Scores,
    values: Values,
    steps: Steps,
) -> Rows:
    run = _Run(kernel, problem, tensors, q_tile, scores, values, steps)
    with np.errstate(all="ignore"):
        run.block(kernel.body)
    run.rows.vectors = run.vectors
    return run.rows


class _Run:
    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        tensors: Mapping[str, Array],
        q_tile: int,
        scores: Scores,
        values: Values,
        steps: Steps,
    ) -> None:
        self.steps = steps
        self.kernel, self.tensors, self.scores, self.values = kernel, tensors, scores, values
        q0 = q_tile * kernel.Br
        self.rows = Rows(q0)
        self.env: dict[str, Any] = {
            **problem.values, **problem.sizes, "D": kernel.D, "qt": q_tile, "q0": q0, "b": 0, "h": 0, "hk": 0,
        }  # fmt: skip
        for p in kernel.params:
            if p.role in problem.sizes:
                self.env.setdefault(p.name, problem.sizes[p.role])
            elif p.role == "group":
                self.env.setdefault(p.name, 1)
        self.i = (q0 + np.arange(kernel.Br)).reshape(-1, 1)
        self.vectors: dict[str, Array] = {}
        self.matrices: dict[str, Array] = {}
        self.o_name = next((op.acc for op in _mmas(kernel.body) if op.role == "pv"), "")
        self.tile: Tile | None = None

    # ---- values

    def value(self, expr: Expr, extra: Mapping[str, Any] | None = None) -> Any:
        return evaluate(expr, {**self.env, **(extra or {})}, self.tensors)

    def uniform(self, expr: Expr) -> Any:
        found = np.asarray(self.value(expr))
        if found.size > 1 and not bool((found == found.flat[0]).all()):
            raise Undecided("a condition that differs between rows")
        return found.flat[0].item()

    def over_tile(self, expr: Expr, element: Array) -> Array:
        columns = element.shape[1]
        lane = np.arange(columns) % 8 // 2  # column c is with quad lane (c % 8) // 2
        extra: dict[str, Any] = {
            n: v[:, :1] if v.shape[1] == 1 else v[:, lane % v.shape[1]] for n, v in self.vectors.items()
        }
        extra |= {"s": element, "i": self.i}
        if self.tile is not None:
            extra["j"] = self.tile.first + np.arange(columns).reshape(1, -1)
        found = np.asarray(self.value(expr, extra), dtype=np.float64)
        return np.array(np.broadcast_to(found, element.shape))

    def over_rows(self, expr: Expr, lanes: int) -> Array:
        extra = {**self.vectors, "i": self.i, "lane": np.arange(lanes).reshape(1, -1)}
        found = np.asarray(self.value(expr, extra), dtype=np.float64)
        return np.array(np.broadcast_to(found, (self.kernel.Br, lanes)))

    def matrix(self, name: str) -> Array:
        if name not in self.matrices:
            raise Undecided(f"{name} is used before it is made")
        return self.matrices[name]

    def keep(self, op: Op, where: dict[str, Array], name: str, value: Array) -> None:
        """Store a result, and remember where NaN first comes up in a row."""
        for row in np.flatnonzero(np.isnan(value).any(axis=1)):
            self.rows.nan_at.setdefault(int(row), op)
        where[name] = value

    # ---- steps

    def block(self, body: tuple[Op, ...]) -> None:
        for op in body:
            step = self.steps.get(type(op))
            if step is not None:
                step(self, op)

    def loop(self, op: For) -> None:
        trips = range(int(self.uniform(op.lo)), int(self.uniform(op.hi)), op.step)
        if op.role != "kv_loop":
            if len(trips) > _MOST_TRIPS:
                raise Undecided("a loop of very many trips")
            for value in trips:
                self.env[op.iv] = value
                self.block(op.body)
            return
        if len(trips) > max(_MOST_TRIPS, _MOST_KEYS // op.step):
            raise Undecided("a loop over very many KV tiles")
        for value in trips:
            self.env[op.iv] = value
            self.tile = None
            before = dict(self.vectors)
            o_before = self.matrices.get(self.o_name)
            self.block(op.body)
            if self.tile is not None:
                self.rows.tiles.append(self.tile)
                self.tile.before, self.tile.behind = before, dict(self.vectors)
                self.tile.o_before, self.tile.o_behind = o_before, self.matrices.get(self.o_name)
        self.tile = None

    def let(self, op: Let) -> None:
        self.env[op.name] = self.uniform(op.value)

    def mma(self, op: Mma) -> None:
        if op.role == "qk":
            first = int(self.env.get("kv0", 0))
            keys = first + np.arange(self.kernel.Bc)
            self.tile = Tile(first, np.array(self.scores(self.i, keys.reshape(1, -1)), dtype=np.float64))
            self.tile.values = self.values(keys)
            self.matrices[op.acc] = self.tile.raw.copy()
            return
        if self.steps is MASK_STEPS:
            return
        if self.tile is None or self.tile.values is None:
            raise Undecided("P V without a tile of scores")
        weights = self.matrix(op.a)
        self.tile.weights = weights
        if op.acc not in self.matrices:
            raise Undecided("an accumulator without a start value")
        self.keep(op, self.matrices, op.acc, self.matrices[op.acc] + weights @ self.tile.values)

    def score(self, op: Score) -> None:
        self.keep(op, self.matrices, op.tile, self.over_tile(op.expr, self.matrix(op.tile)))

    def mask(self, op: Mask) -> None:
        element = self.matrix(op.tile)
        if self.tile is None:
            raise Undecided("a mask without a tile of scores")
        if self.tile.scores is None:
            self.tile.scores = element.copy()
        keep = self.over_tile(op.keep, element).astype(bool)
        tested = np.ones(element.shape, dtype=bool)
        if op.guard is not None:
            tested = np.broadcast_to(np.asarray(self.value(op.guard, {"i": self.i}), dtype=bool), element.shape)
        self.tile.tests.append(Test(op, keep, tested))
        fill = self.over_tile(op.fill, element)
        self.matrices[op.tile] = np.where(keep | ~tested, element, fill)

    def map(self, op: Map) -> None:
        element = self.matrix(op.src)
        if op.role == "exp" and self.tile is not None and self.tile.scores is None:
            self.tile.scores = element.copy()
        self.keep(op, self.matrices, op.dst, self.over_tile(op.expr, element))

    def row_reduce(self, op: RowReduce) -> None:
        element = self.matrix(op.src)
        if op.role == "row_max" and self.tile is not None and self.tile.scores is None:
            self.tile.scores = element.copy()
        reduce = np.fmax.reduce if op.role == "row_max" else np.add.reduce
        if op.lanes == 1:
            partial = reduce(element, axis=1, keepdims=True)
        else:
            partial = reduce(reduce(element.reshape(element.shape[0], -1, 4, 2), axis=3), axis=1)
        start = self.over_rows(op.init, op.lanes)
        joined = np.fmax(start, partial) if op.role == "row_max" else start + partial
        self.keep(op, self.vectors, op.dst, joined)

    def lane_reduce(self, op: LaneReduce) -> None:
        row = self.vectors[op.row]
        combined = np.fmax.reduce(row, axis=1, keepdims=True) if op.op == "max" else row.sum(axis=1, keepdims=True)
        self.vectors[op.row] = np.array(np.broadcast_to(combined, row.shape))

    def row_map(self, op: RowMap) -> None:
        self.keep(op, self.vectors, op.row, self.over_rows(op.expr, op.lanes))

    def fill(self, op: Fill) -> None:
        columns = COLUMNS if op.tile == self.o_name else self.kernel.Bc
        value = np.asarray(self.value(op.value), dtype=np.float64)
        self.matrices[op.tile] = np.array(np.broadcast_to(value, (self.kernel.Br, columns)))

    def store_tile(self, op: StoreTile) -> None:
        value = self.over_tile(op.expr, self.matrix(op.src))
        for row in np.flatnonzero(np.isnan(value).any(axis=1)):
            self.rows.nan_at.setdefault(int(row), op)
        self.rows.o = value

    def store_row(self, op: StoreRow) -> None:
        lanes = max((v.shape[1] for v in self.vectors.values()), default=1)
        self.rows.lse = self.over_rows(op.expr, lanes)[:, 0]

    def branch(self, op: If) -> None:
        self.block(op.body if self.uniform(op.cond) else op.orelse)

    def opaque(self, op: Opaque) -> None:
        if op.writes:
            raise Undecided(op.why)


def _mmas(body: tuple[Op, ...]) -> list[Mma]:
    found: list[Mma] = []
    for op in body:
        if isinstance(op, Mma):
            found.append(op)
        elif isinstance(op, For | If):
            found += _mmas(op.body) + (_mmas(op.orelse) if isinstance(op, If) else [])
    return found


Steps = Mapping[type[Op], Callable[[_Run, Any], None]]

MASK_STEPS: Steps = {
    For: _Run.loop,
    Let: _Run.let,
    If: _Run.branch,
    Mma: _Run.mma,
    Mask: _Run.mask,
    Opaque: _Run.opaque,
}
STEPS: Steps = {
    **MASK_STEPS,
    Score: _Run.score,
    Map: _Run.map,
    RowReduce: _Run.row_reduce,
    LaneReduce: _Run.lane_reduce,
    RowMap: _Run.row_map,
    Fill: _Run.fill,
    StoreTile: _Run.store_tile,
    StoreRow: _Run.store_row,
}
