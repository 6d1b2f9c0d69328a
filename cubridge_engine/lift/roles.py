"""Warp specialisation: a branch on the warpgroup whose one side only copies (the producer), the other computes.

The kernel is executed for the threads of the consumers; at that branch the producer's side is executed too, for its own
threads. Its copies then join the consumers' program where the barriers put them: those before its loop stand where the
branch is, those of a trip at the beginning of the consumers' trip with the same tile. That is one legal order of the
two roles. Where the producer waits for an empty stage, the consumers are done with it: a barrier in the joined program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import conditions, once
from .addresses import Ints
from .machine import Machine, Scope
from .syntax import Syn
from .trace import Assign, BoxCopy, Loop, Sync, Unknown
from .values import Node, Value, same

WARPGROUP = 128
Execute = Callable[[Machine, list[Syn], Scope], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """The branch (byte range), the threads of either role, and whether the producer is its first side."""

    site: tuple[int, int]
    producer: Ints
    consumer: Ints
    producer_first: bool


class RolesFound(Exception):
    """The kernel has roles: it must be executed again, for the consumers."""

    def __init__(self, roles: Roles) -> None:
        super().__init__()
        self.roles = roles


def look_for(m: Machine, syn: Syn, condition: Value, then: list[Syn], orelse: list[Syn], rest: bool) -> None:
    """Raises RolesFound where the branch `syn` tells a producer of TMA copies from consumers.

    `rest`: what follows the branch is only reached from its other side.
    """
    if m.roles is not None or len(m.frames) != 1 or m.silent or m.rehearsal or isinstance(condition, bool):
        return
    threads = conditions.per_thread(m.store, condition)
    if threads is None or len(threads) % WARPGROUP or threads.all() or not threads.any():
        return
    groups = threads.reshape(-1, WARPGROUP)
    if not (groups.all(1) == groups.any(1)).all():
        return
    first, second = _copies(m, then), _copies(m, orelse)
    if first == second or (second and rest):
        return
    of_producer = threads if first else ~threads
    ids = np.arange(len(threads))
    raise RolesFound(Roles((syn.start, syn.end), ids[of_producer], ids[~of_producer], first))


def _copies(m: Machine, body: Sequence[Syn]) -> bool:
    """True when a function that the statements call, or they themselves, start TMA copies."""
    starters = {name for name, found in m.functions.items() if any("cp.async.bulk" in d.body.text for d in found)}
    while more := {
        name
        for name, found in m.functions.items()
        if name not in starters and any(k.text in starters for d in found for k in d.body.walk())
    }:
        starters |= more
    return any(k.text in starters or "cp.async.bulk" in k.text for syn in body for k in syn.walk())


def run_producer(m: Machine, body: list[Syn], scope: Scope, execute: Execute) -> None:
    """Execute the producer's side for its threads and keep what it does for `join`. Nothing it writes is kept."""
    assert m.roles is not None
    ids, items, born = m.ids, m.items, m.oid
    m.see(np.resize(m.roles.producer, m.store.threads))
    m.items = []
    m.logs.append({})
    m.producing = True
    try:
        execute(m, body, Scope(scope))
    finally:
        log = m.logs.pop()
        m.producing = False
        m.produced, m.items = m.items, items
        m.see(ids)
    for cells, index, old in log.values():
        if cells.oid <= born:
            cells.values[index] = old
    m.produced_at = len(m.items)


def join(m: Machine) -> None:
    """Put what the producer does into the trace of the consumers."""
    if not m.produced:
        return
    loops = [x for x in m.produced if isinstance(x, Loop)]
    if len(loops) > 1:
        _refuse(m, "a producer with more than one loop")
        return
    before = m.produced
    if loops:
        loop = loops[0]
        at = m.produced.index(loop)
        before = m.produced[:at]
        if any(isinstance(x, BoxCopy) for x in m.produced[at + 1 :]):
            _refuse(m, "copies behind the producer's loop")
            return
        partner = next((x for x in m.trace.items if isinstance(x, Loop) and _walks_alike(x, loop)), None)
        if partner is None:
            _refuse(m, "the producer's loop does not walk the tiles of a loop of the consumers")
            return
        inside, ahead = _opened(m, loop)
        peeled = [x for x in before if isinstance(x, BoxCopy) and x.ptr.root in ahead]
        if len(peeled) != len([x for x in inside if isinstance(x, BoxCopy) and x.ptr.root in ahead]):
            _refuse(m, "copies of a tensor before the producer's loop and in it that do not belong together")
            return
        before = [x for x in before if not any(x is p for p in peeled)]
        joined = _joined(m, inside, loop.iv, partner.iv, ahead, loop.step)
        if not _first_is(m, [x for x in joined if isinstance(x, BoxCopy)], peeled, partner):
            _refuse(m, "a copy before the producer's loop that is not the one of the first tile")
            return
        partner.items[:0] = joined
        partner.partner = loop
    m.trace.items[m.produced_at : m.produced_at] = _joined(m, before, None, None, set(), 0)


def _opened(m: Machine, loop: Loop) -> tuple[list[Any], set[int]]:
    """The events of a trip, and the tensors whose copies run ahead by a tile: those under the condition that the trip
    is not the last, which is taken off.
    """
    tile = m.store.add(loop.iv, loop.counted_from)
    last = m.store.add(m.store.add(loop.hi, loop.counted_from), -loop.step)
    found: list[Any] = []
    ahead: set[int] = set()
    for event in loop.items:
        if isinstance(event, BoxCopy):
            rest = tuple(p for p in event.predicates if not once.more_to_come(p, tile, last, loop.step))
            if len(rest) < len(event.predicates):
                ahead.add(event.ptr.root)
                event = dataclasses.replace(event, predicates=rest)
        found.append(event)
    return found, ahead


def _first_is(m: Machine, joined: list[BoxCopy], peeled: list[BoxCopy], partner: Loop) -> bool:
    """The copies before the loop are those that the joined loop makes in its first trip."""

    def first(value: Value) -> Value:
        return m.store.substitute(value, lambda node: partner.lo if node is partner.iv else None)

    for copy in peeled:
        own = [x for x in joined if x.ptr.root == copy.ptr.root]
        wanted = (copy.shared, copy.ptr.offset, copy.row, copy.signal)
        if not any(
            all(map(same, wanted, (first(x.shared), first(x.ptr.offset), first(x.row), first(x.signal)))) for x in own
        ):
            return False
    return True


def _walks_alike(a: Loop, b: Loop) -> bool:
    return a.step == b.step and same(a.lo, b.lo) and same(a.hi, b.hi)


def _joined(
    m: Machine, events: Sequence[Any], iv: Node | None, instead: Node | None, ahead: set[int], step: int
) -> list[Any]:
    """Events of the producer for the consumers' program, over the consumers' loop variable. Copies of the tensors
    `ahead` are a trip late for it.
    """

    result: list[Any] = []
    for event in events:
        if isinstance(event, BoxCopy):
            late = event.ptr.root in ahead
            tile = m.store.add(instead, -step) if instead is not None and late else instead

            def moved(value: Value, tile: Value = tile) -> Value:
                return m.store.substitute(value, lambda node: tile if node is iv else None) if iv is not None else value

            result.append(
                dataclasses.replace(
                    event,
                    shared=moved(event.shared),
                    ptr=dataclasses.replace(event.ptr, offset=moved(event.ptr.offset)),
                    row=moved(event.row),
                    signal=moved(event.signal),
                )
            )
        elif isinstance(event, Sync):
            result.append(Sync(event.order, event.place, "barrier"))
        elif isinstance(event, Unknown):
            result.append(event)
        elif not isinstance(event, Assign):
            result.append(Unknown(event.order, event.place, "a step of a producer other than a wait and a TMA copy"))
    return result


def _refuse(m: Machine, why: str) -> None:
    first = m.produced[0]
    m.trace.items.append(Unknown(m.next_order(), first.place, why))
