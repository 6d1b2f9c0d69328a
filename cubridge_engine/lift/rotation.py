"""Software-pipelined KV loops: a trip multiplies P of a tile with its V, while it takes the scores of the next.

Such a loop is the plain one, rotated: its first half (scores and weights) is peeled off before the loop, its second
half (the product with V) behind it. It is read unrotated: a trip does the first half for its tile, then the second.
Of the peeled copies this module checks that they are what the loop does: the first half by its numbers, on random
scores (`weighing`), the second by what it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import arithmetic, weighing
from .machine import Machine, tracked
from .trace import Assign, Branch, Carried, Loop, Sync
from .values import Cells, Node, NotUnderstood, Ptr, Value, same

Key = tuple[int, int]  # variable and element
_WATCH, _EARLY, _LATE, _DONE = "watch", "early", "late", "done"


@dataclass(slots=True)
class Rotation:
    """One rotated loop while it is executed. `phase` says which half is; `late` are the accumulators of the second."""

    phis: set[Node]
    phase: str = _WATCH
    late: set[int] = field(default_factory=set[int])
    trail: list[tuple[str, Value]] = field(default_factory=list[tuple[str, Value]])
    waited: int = 0
    not_first: Value = None  # the condition that a trip is not the first
    operands: list[Value] = field(default_factory=list[Value])  # B of the second half's products
    behind: list[Value] = field(default_factory=list[Value])  # the same of the copy behind the loop
    anew: bool = False  # the first trip starts the accumulator anew
    votes: list[Node] = field(default_factory=list[Node])
    again: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])  # the statements that votes decide
    taken: bool = True  # what a vote of a warp decides
    loop: Loop | None = None

    def product(self, target: Ptr, registers: list[Value], b: Value, keep: Value) -> tuple[bool, Value]:
        """(whether a product is executed now, whether it adds to its accumulator). Raises NotUnderstood."""
        carried = any(_bare(r) in self.phis for r in registers)
        if self.phase == _WATCH:
            self.trail.append((_LATE if carried else _EARLY, None))
            if carried:
                self.late.add(target.root.oid)
            return True, 1 if not isinstance(keep, bool | int) else keep
        if self.phase == _DONE:
            if not any(isinstance(n := _bare(r), Node) and n.op == "after" for r in registers):
                return True, keep
            self.behind.append(b)
            return False, keep
        late = target.root.oid in self.late
        if late and self.phase == _LATE:
            self.operands.append(b)
            if not isinstance(keep, bool | int):
                if self.not_first is None or not same(keep, self.not_first):
                    raise NotUnderstood("a product that starts anew on another condition than that of the first tile")
                self.anew, keep = True, 1
        return late == (self.phase == _LATE), keep

    def waits(self, signal: Value) -> bool:
        """True when a wait for an mbarrier belongs to the half that is executed."""
        if self.phase == _WATCH:
            self.trail.append(("wait", signal))
            return True
        if self.phase == _DONE:
            return True
        at = self.waited
        self.waited += 1
        places = [n for n, (kind, _) in enumerate(self.trail) if kind == "wait"]
        if at >= len(places):
            raise NotUnderstood("a wait that the first reading of the loop did not meet")
        return self._half(places[at]) == self.phase

    def _half(self, place: int) -> str:
        """The half of the product that a wait is for; none where an earlier wait is for the same."""
        following = next((kind for kind, _ in self.trail[place:] if kind != "wait"), "")
        repeated = any(kind == "wait" and same(s, self.trail[place][1]) for kind, s in self.trail[:place])
        if not following and not repeated:
            raise NotUnderstood("a wait for an mbarrier that no product follows")
        return following


def _bare(value: Value) -> Value:
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


def watch(m: Machine, run: Callable[[], Any], written: list[tuple[Cells, int]], counters: set[Key]) -> Rotation | None:
    """The rotation of a loop whose trips multiply what the trip before left; None for other loops."""
    phis: set[Node] = set()
    kept = [(c, i, c.values[i]) for c, i in written]
    for cells, index, before in kept:
        if (cells.oid, index) not in counters and tracked(cells, before):
            node = m.store.fresh("phi", (), (cells.oid, index), "float", False)
            phis.add(node)
            cells.values[index] = node
    rotation = Rotation(phis)
    m.rotation = rotation
    try:
        run()
    finally:
        m.rotation = None
        for cells, index, before in kept:
            cells.values[index] = before
    return rotation if rotation.late else None


@dataclass(slots=True)
class Turn:
    """What a rotated loop needs of the loop that is executed: its body, and its counters set for a tile."""

    run: Callable[[], None]  # one trip
    rehearse: Callable[[], None]  # one trip, for its values only and with all inner trips
    counters: Callable[[Value], None]  # the counters as at the trip with that value of the loop variable
    step: int


def unrotated(
    m: Machine, loop: Loop, rotation: Rotation, turn: Turn, states: list[tuple[Cells, int]], mark: int
) -> None:
    """Fill `loop`, whose variable is the tile of a trip, and keep only its start of what precedes it.

    `states` are the elements that it writes, counters apart; `mark` is where in `m.items` the work on this item begins.
    Raises NotUnderstood.
    """
    first_half = {(c.oid, i): c.values[i] for c, i in states}
    before = weighing.peeled_before(m.items[mark:])
    peeled = _peeled(m, mark, {c.oid for c, _ in states})
    for cells, index in states:
        node = m.store.fresh("phi", (), (loop.order, cells.oid, index), _kind(cells, cells.values[index]), False)
        loop.carried.append(Carried(cells, index, cells.values[index], node))
    m.rotation, rotation.loop = rotation, loop
    rotation.not_first = arithmetic.compare(
        m, "ne", m.store.add(loop.iv, loop.counted_from), m.store.add(loop.lo, loop.counted_from)
    )
    rotation.phis = {c.node for c in loop.carried}
    trip = m.store.add(loop.iv, -turn.step)  # the trip whose first half works on tile iv
    quiet = _half(m, rotation, turn, loop, trip, taken=False)
    first = _half(m, rotation, turn, loop, trip, taken=True)
    starts = weighing.starts(m, loop, rotation, first_half, before, first)
    if rotation.votes:
        weighing.redone(m, loop, rotation, quiet, first)
    _replace_start(m, loop, peeled, starts)
    loop.order = m.next_order()
    outer, first_epoch = m.items, m.epoch
    if m.work is not None:
        for known, count in zip(m.notes, m.work.noted, strict=True):
            for key in list(known)[count:]:  # what was noted of the peeled half: the loop's own is wanted
                del known[key]
    m.items = loop.items
    try:
        _first_half(m, rotation, turn, loop, trip)
        _second_half(m, rotation, turn, loop)
    finally:
        m.items = outer
    loop.epochs = (first_epoch, m.epoch)
    _drop_waits(m, mark, loop)
    rotation.phase = _DONE


def _kind(cells: Cells, value: Value) -> str:
    if isinstance(value, Node) and value.kind in ("float", "reg", "wide", "bool"):
        return value.kind
    return "float" if cells.ctype.kind in ("float", "half", "bf16") else "reg"


def _enter(m: Machine, loop: Loop) -> None:
    for carried in loop.carried:
        m.write_quietly(carried.cells, carried.index, carried.node)


def _half(m: Machine, rotation: Rotation, turn: Turn, loop: Loop, trip: Value, *, taken: bool) -> weighing.Half:
    """The values that the first half leaves, when all votes of warps decide alike."""
    kept = [(c.cells, c.index, c.cells.values[c.index]) for c in loop.carried]
    _enter(m, loop)
    rotation.phase, rotation.waited, rotation.taken, rotation.votes = _EARLY, 0, taken, []
    m.raw = {}
    turn.counters(trip)
    try:
        turn.rehearse()
        values = {(c.cells.oid, c.index): c.cells.values[c.index] for c in loop.carried}
    finally:
        raw, m.raw = m.raw, None
        for cells, index, before in kept:
            cells.values[index] = before
    return weighing.Half(values, raw, {(c.cells.oid, c.index): c.node for c in loop.carried})


def _first_half(m: Machine, rotation: Rotation, turn: Turn, loop: Loop, trip: Value) -> None:
    _enter(m, loop)
    rotation.phase, rotation.waited, rotation.taken = _EARLY, 0, True
    turn.counters(trip)
    turn.run()
    # What the product with V reads is what the half has left; everything that is carried stays carried.
    for carried in loop.carried:
        carried.after = carried.cells.values[carried.index]


def _second_half(m: Machine, rotation: Rotation, turn: Turn, loop: Loop) -> None:
    """The products with V, and nothing else of a trip."""
    rotation.phase, rotation.waited = _LATE, 0
    outer, m.items, m.noting = m.items, [], False
    turn.counters(loop.iv)
    try:
        turn.run()
    finally:
        done, m.items, m.noting = m.items, outer, True
    results: dict[Key, Node] = {}
    for event in done:
        of_product = isinstance(event, Assign) and event.cells.oid in rotation.late and _op(event.value) == "mma"
        if of_product or (isinstance(event, Sync) and event.what == "wait"):
            m.items.append(event)
        if isinstance(event, Assign) and of_product:
            results[(event.cells.oid, event.index)] = event.version
    for carried in loop.carried:
        carried.after = results.get((carried.cells.oid, carried.index), carried.after)
        m.write_quietly(carried.cells, carried.index, carried.after)
    if {key[0] for key in results} != rotation.late:
        raise NotUnderstood("a product with V that no trip waits for")


def _op(value: Value) -> str:
    bare = _bare(value)
    return bare.op if isinstance(bare, Node) else ""


# ---- the peeled copies


def _peeled(m: Machine, mark: int, states: set[int]) -> int:
    """Where in `m.items` the peeled first half begins. Raises NotUnderstood."""
    items = m.items
    start = next(
        (n for n in range(mark, len(items)) if isinstance(items[n], Assign) and items[n].cells.oid in states), None
    )
    if start is None:
        raise NotUnderstood("a pipelined loop whose first scores are not computed before it")
    for event in items[start:]:
        inside = [*event.then, *event.orelse] if isinstance(event, Branch) else [event]
        if not all(isinstance(x, Assign) or (isinstance(x, Sync) and x.what != "commit") for x in inside):
            raise NotUnderstood("a step before a pipelined loop that is no part of its first half")
    return start


def _replace_start(m: Machine, loop: Loop, peeled: int, starts: dict[Key, weighing.Start]) -> None:
    """Instead of the peeled half: the values with which the loop does the same as that half."""
    del m.items[peeled:]
    for carried in loop.carried:
        start = starts.get((carried.cells.oid, carried.index))
        if start is not None:
            m.write(carried.cells, carried.index, start.value, start.place)
            carried.before = carried.cells.values[carried.index]


def _drop_waits(m: Machine, mark: int, loop: Loop) -> None:
    """The waits of the peeled half: the first trip waits for the same."""
    own = [_at(m, x.signal, loop) for x in loop.items if isinstance(x, Sync) and x.what == "wait"]
    kept = [
        x
        for x in m.items[mark:]
        if not (isinstance(x, Sync) and x.signal is not None and any(same(x.signal, s) for s in own))
    ]
    m.items[mark:] = kept


def _at(m: Machine, value: Value, loop: Loop, tile: Value | None = None) -> Value:
    """A value of a trip at the first tile (or `tile`)."""
    where = loop.lo if tile is None else tile
    return m.store.substitute(value, lambda node: where if node is loop.iv else None)


def check_behind(m: Machine) -> None:
    """The product behind the loop is the second half of the last tile. Raises NotUnderstood."""
    rotation = m.rotation
    if rotation is None:
        return
    loop = rotation.loop
    assert loop is not None
    last = m.store.add(loop.hi, -loop.step)
    wanted = [_at(m, b, loop, last) for b in rotation.operands]
    if len(wanted) != len(rotation.behind) or not all(map(same, wanted, rotation.behind)):
        raise NotUnderstood("the product behind a pipelined loop is not that of its last tile")
