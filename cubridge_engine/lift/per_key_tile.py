"""The step of a tile, written as the assignments that a kernel with a tile of scores would make."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from .addresses import events_of
from .machine import Machine, bare, value_kind
from .per_key_numbers import Key, Row, Step, masked
from .shape_types import Row as RowInfo
from .shape_types import Tile
from .shapes import Shapes
from .trace import Assign, Carried, Loop, Place
from .values import Cells, CType, Node, Value

_FLOAT = CType("float", 4, "float")
_ROOM = 1 << 20  # between two events of the text: more than a tile's step has assignments


class Writer:
    """Replaces the assignments `dropped` among `items` of a loop."""

    def __init__(self, m: Machine, shapes: Shapes, loop: Loop, items: list[Any], dropped: list[Assign]) -> None:
        self.m = m
        self.shapes = shapes
        self.loop = loop
        self.dropped = dropped
        gone = {id(x) for x in dropped}
        self.kept = [x for x in items if id(x) not in gone]
        self.order = 0
        self.place = Place((0, 0))

    def write(self, steps: list[tuple[Row, Step]]) -> None:
        """Put these steps in the place of the keys' own."""
        for event in events_of(self.m.trace.items):
            event.order *= _ROOM
        self.m.order *= _ROOM
        scores = self.m.new_cells("scores", _FLOAT, (sum(len(row.keys) for row, _ in steps),), 0)
        tiles: list[list[Node]] = []
        last = at = 0
        for row, _ in steps:
            tile: list[Node] = []
            for k, key in enumerate(row.keys):
                version, order = self._score(scores, at + k, key)
                tile.append(version)
                last = max(last, order)
            tiles.append(tile)
            at += len(row.keys)
        self.order = last
        at = 0
        for (row, step), tile in zip(steps, tiles, strict=True):
            self._step(row, step, scores, at, tile)
            at += len(row.keys)
        self.loop.items[:] = sorted(self.kept, key=lambda x: x.order)

    def _score(self, scores: Cells, index: int, key: Key) -> tuple[Node, int]:
        """Make what computes a key's score an element of the tile; its last version, and where that is made."""
        event = next((x for x in self.kept if isinstance(x, Assign) and x.version is key.score), None)
        for at, x in enumerate(self.kept):
            if isinstance(x, Assign) and event is not None and _same_element(x, event) and x.order <= event.order:
                self.kept[at] = dataclasses.replace(x, cells=scores, index=index)
        self.order = event.order if event is not None else self._place_of(key.score).order
        value = masked(self.m, key)
        if event is not None and value is key.score:
            return event.version, event.order
        self.place = event.place if event is not None else self._place_of(key.score).place
        return self._assign(scores, index, value), self.order

    def _place_of(self, value: Value) -> Assign:
        """The first of the keys' own assignments that uses a value directly."""
        return next((x for x in self.dropped if value in getattr(bare(x.value), "args", ())), self.dropped[0])

    def _step(self, row: Row, step: Step, scores: Cells, at: int, tile: list[Node]) -> None:
        """Maximum, correction, weights, row sums, outputs."""
        store, top = self.m.store, row.maximum
        info = self.shapes.info(row.keys[0].score)
        assert isinstance(info, Tile)
        states = [top, *(c for c, columns in row.states if not columns)]
        for carried in states:
            self.shapes.know(carried.node, RowInfo(info.i, False))
        self.place = self._where(lambda v: isinstance(v, Node) and v.op == "max")
        highest: Value = top.node
        for score in tile:
            highest = store.node("max", (highest, score))
        new = self._local("m_new", highest)
        if step.guarded:
            guard = store.node("eq", (new, -math.inf), kind="bool")
            safe = self._local("m_safe", store.node("select", (guard, 0.0, new)))
        else:
            safe = new
        self.place = self._where(lambda v: isinstance(v, Node) and v.op == step.op)
        corr = self._local("kept", self._weight(step, top.node, safe))
        weights = [self._assign(scores, at + k, self._weight(step, score, safe)) for k, score in enumerate(tile)]
        totals: dict[int, Node] = {}
        for n, (carried, columns) in enumerate(row.states):
            if not columns:
                self.place = self._where(lambda v, c=carried: True, carried)
                scaled = self._local("l_new", store.node("mul", (carried.node, corr)))
                totals[n] = self._again(scaled, reduce(lambda x, y: store.node("add", (x, y)), [scaled, *weights]))
        for n, (_, columns) in enumerate(row.states):
            if columns:
                self._output(row, step, n, corr, weights, totals)
        for n, total in totals.items():
            self._set(row.states[n][0], total)
        self._set(top, new)

    def _output(self, row: Row, step: Step, n: int, corr: Node, weights: list[Node], totals: dict[int, Node]) -> None:
        """``o = o * corr + sum(p * v)``, divided by the row sum where the kernel does that."""
        store = self.m.store
        carried, columns = row.states[n]
        self.place = self._where(lambda v: True, carried)
        products = [store.node("mul", (w, columns[k])) for k, w in enumerate(weights)]
        if n not in step.normalised:
            scaled = self._assign(carried.cells, carried.index, store.node("mul", (carried.node, corr)))
            total: Value = reduce(lambda x, y: store.node("add", (x, y)), [scaled, *products])
        else:
            (at, divisor), *_ = totals.items()
            scaled = store.node("mul", (store.node("mul", (row.states[at][0].node, corr)), carried.node))
            total = reduce(lambda x, y: store.node("add", (x, y)), products)
            total = store.node("div", (store.node("add", (scaled, self._local("pv", total))), divisor))
        carried.after = self._assign(carried.cells, carried.index, total)

    def _weight(self, step: Step, score: Value, top: Value) -> Node:
        exponent = self.m.store.node("sub", (score, top))
        if step.factor != 1.0:
            exponent = self.m.store.node("mul", (exponent, step.factor))
        return self.m.store.node(step.op, (exponent,))

    # ---- assignments

    def _where(self, wanted: Callable[[Value], bool], carried: Carried | None = None) -> Place:
        """The place of the first of the keys' own assignments (to a state) with such a value."""
        own = [x for x in self.dropped if carried is None or x.cells is carried.cells]
        return next((x for x in own if wanted(bare(x.value))), (own or self.dropped)[0]).place

    def _set(self, carried: Carried, value: Node) -> None:
        carried.after = self._assign(carried.cells, carried.index, value)

    def _local(self, name: str, value: Value) -> Node:
        """A variable of the step's own."""
        return self._assign(self.m.new_cells(name, _FLOAT, (), 0), 0, value)

    def _again(self, version: Node, value: Value) -> Node:
        """The variable of `version` gets another value."""
        event = next(x for x in reversed(self.kept) if isinstance(x, Assign) and x.version is version)
        return self._assign(event.cells, event.index, value)

    def _assign(self, cells: Cells, index: int, value: Value) -> Node:
        self.order += 1
        version = self.m.store.fresh("ver", (value,), (cells.oid, index), value_kind(value), False)
        self.kept.append(Assign(self.order, self.place, cells, index, value, version))
        return version


def _same_element(x: Assign, y: Assign) -> bool:
    return x.cells is y.cells and x.index == y.index
