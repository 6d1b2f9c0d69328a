"""States that a kernel keeps in shared memory from trip to trip: m and l of a row, the output tile.

A read at the beginning of a trip finds what the trip before has left. Such a region is a loop-carried state as a local
variable would be, one element per store of the last writing: the thread that reads an address finds what the thread
that wrote it last has left there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import conditions
from .addresses import Ints, MemoryError_, split_uniform
from .machine import Machine, value_kind
from .memory import Memory
from .rewrite import NotExpressible
from .shape_types import Row
from .shared_values import Left
from .state import Emission
from .trace import Assign, Carried, Loop, MemoryStore
from .values import Cells, CType, Store

SHARED = "shared"  # what a variable that lives in shared memory is called


@dataclass(slots=True)
class Placed:
    """A store of a computed value: the address of each thread, and which threads store."""

    event: MemoryStore
    at: Ints
    active: NDArray[np.bool_]

    def key(self) -> bytes:
        """Equal for stores by the same threads to the same addresses."""
        return np.where(self.active, self.at, -1).tobytes()


@dataclass(slots=True)
class Region:
    """Addresses ``[low, high)`` that hold a state of `loop`; `cells` has one element per store of the last writing."""

    low: int
    high: int
    size: int
    before: list[Placed]
    inside: list[Placed]
    loop: Loop
    cells: Cells
    last: list[Placed] = field(default_factory=list[Placed])
    carried: list[Carried] = field(default_factory=list[Carried])


def placed(store: Store, threads: int, event: MemoryStore) -> Placed | None:
    """Where a store goes; None when its address is no number."""
    try:
        numbers, uniform = split_uniform(store, event.ptr.offset)
    except MemoryError_:
        return None
    if uniform != 0:
        return None
    active = np.ones(threads, dtype=bool)
    for p in event.predicates:
        known = conditions.per_thread(store, p)
        if known is not None:
            active &= known
    return Placed(event, numbers, active) if active.any() else None


def find(m: Machine, mem: Memory, loop: Loop | None) -> list[Region]:
    """Add the states in shared memory to the loop's, and tell `mem` what reads of them find."""
    found: list[Region] = []
    if loop is None:
        return found
    all_placed = [p for p in (placed(m.store, mem.threads, x) for x in mem.other_stores) if p is not None]
    first, last = loop.epochs
    own = {id(x) for x in loop.items}
    for low, high, members in _regions(all_placed):
        before = [p for p in members if p.event.epoch <= first]
        inside = [p for p in members if first < p.event.epoch <= last]
        sizes = {p.event.size for p in members}
        if not before or not inside or len(sizes) != 1 or any(id(p.event) not in own for p in inside):
            continue
        cells = m.new_cells(SHARED, CType("float", 4, "float"), (), loop.place.site[0])
        region = Region(low, high, sizes.pop(), before, inside, loop, cells)
        if _fill(m, mem, region):
            found.append(region)
    return found


def _regions(stores: list[Placed]) -> list[tuple[int, int, list[Placed]]]:
    """Stores grouped by the addresses that they share."""
    spans = sorted(((int(p.at[p.active].min()), int(p.at[p.active].max()) + p.event.size, p) for p in stores),
                   key=lambda s: (s[0], s[1]))  # fmt: skip
    found: list[tuple[int, int, list[Placed]]] = []
    for low, high, p in spans:
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]), [*found[-1][2], p])
        else:
            found.append((low, high, [p]))
    return [(low, high, sorted(ps, key=lambda p: p.event.order)) for low, high, ps in found]


def _fill(m: Machine, mem: Memory, region: Region) -> bool:
    """Find the last writing of a trip; False when it is not of the addresses that were written before the loop."""
    events, threads = written(region, region.inside, mem.threads)
    ahead, _ = written(region, region.before, mem.threads)
    if not ((events >= 0) == (ahead >= 0)).all():
        return False
    left = sorted(set(events[events >= 0].tolist()))
    region.last = [region.inside[at] for at in left]
    region.cells.values = [None] * len(left)
    for k, p in enumerate(region.last):
        kind = value_kind(p.event.value)
        node = m.store.fresh("phi", (), (region.loop.order, region.cells.oid, k), kind, False)
        result = m.store.fresh("after", (node,), None, kind, False)
        region.carried.append(Carried(region.cells, k, None, node, p.event.value, result, True))
    region.loop.carried.extend(region.carried)
    entering = [dataclasses.replace(p.event, value=c.node) for p, c in zip(region.last, region.carried, strict=True)]
    leaving = [dataclasses.replace(p.event, value=c.result) for p, c in zip(region.last, region.carried, strict=True)]
    rank = np.full(len(region.inside) + 1, -1, dtype=np.int64)
    rank[left] = np.arange(len(left))
    mem.values.states.append(Left(region.low, region.loop.epochs, rank[events], threads, entering, leaving))
    return True


def written(region: Region, stores: list[Placed], threads: int) -> tuple[Ints, Ints]:
    """For each byte of the region: the index of the last store to it, and the thread that did it (-1: none)."""
    events = np.full(region.high - region.low, -1, dtype=np.int64)
    by = np.full(region.high - region.low, -1, dtype=np.int64)
    ids = np.arange(threads)
    for at, p in enumerate(stores):
        for k in range(p.event.size):
            where = p.at[p.active] - region.low + k
            events[where], by[where] = at, ids[p.active]
    return events, by


# ---- rows as variables


def rows_as_variables(e: Emission) -> None:
    """Stores to a region of row values become assignments of its elements. Raises NotExpressible."""
    for region in e.regions:
        infos = [e.shapes.info(p.event.value) for p in region.last]
        if not infos or not all(isinstance(x, Row) for x in infos):
            continue
        elements = {p.key(): k for k, p in enumerate(region.last)}
        if len(elements) != len(region.last):
            raise NotExpressible("rows in shared memory that are written twice in a trip")
        changed: dict[int, list[Any]] = {}
        for p in region.inside:
            if p.key() not in elements:
                raise NotExpressible("rows in shared memory that are written by different threads")
            changed[id(p.event)] = [_assignment(e, region.cells, elements[p.key()], p.event)]
        _starts(e, region, elements, changed)
        for carried, p in zip(region.carried, region.last, strict=True):
            carried.after = changed[id(p.event)][0].version
        _replace(e.machine.trace.items, changed)
    _passed_on(e)


def _passed_on(e: Emission) -> None:
    """Row values that other threads read within the same trip (the correction) are variables, too."""
    states = [(r.low, r.high) for r in e.regions]
    stores = [placed(e.machine.store, e.memory.threads, x) for x in e.memory.other_stores]
    rows = [p for p in stores if p is not None and isinstance(e.shapes.info(p.event.value), Row)]
    changed: dict[int, list[Any]] = {}
    for low, high, members in _regions(rows):
        if any(low < b and a < high for a, b in states):
            continue
        cells = e.machine.new_cells(SHARED, CType("float", 4, "float"), (), 0)
        elements: dict[bytes, int] = {}
        for p in members:
            index = elements.setdefault(p.key(), len(elements))
            changed[id(p.event)] = [_assignment(e, cells, index, p.event)]
    _replace(e.machine.trace.items, changed)


def _starts(e: Emission, region: Region, elements: dict[bytes, int], changed: dict[int, list[Any]]) -> None:
    """What the rows hold before the loop: written by the same threads, or the same number everywhere."""
    if all(p.key() in elements for p in region.before):
        for p in region.before:
            changed[id(p.event)] = [_assignment(e, region.cells, elements[p.key()], p.event)]
        return
    values = {p.event.value if isinstance(p.event.value, float) else None for p in region.before}
    if len(values) != 1 or None in values:
        raise NotExpressible("rows in shared memory whose start is written by other threads")
    for p in region.before:
        changed[id(p.event)] = []
    last = region.before[-1].event
    changed[id(last)] = [_assignment(e, region.cells, k, last) for k in range(len(region.last))]


def _assignment(e: Emission, cells: Cells, index: int, event: MemoryStore) -> Assign:
    store = e.machine.store
    version = store.fresh("ver", (event.value,), (cells.oid, index), value_kind(event.value), False)
    return Assign(event.order, event.place, cells, index, event.value, version)


def _replace(items: list[Any], changed: dict[int, list[Any]]) -> None:
    items[:] = [y for x in items for y in changed.get(id(x), [x])]
    for item in items:
        for inner in ("items", "then", "orelse"):
            if isinstance(nested := getattr(item, inner, None), list):
                _replace(nested, changed)
