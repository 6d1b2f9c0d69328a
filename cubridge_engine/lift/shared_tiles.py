"""Tiles that threads store to shared memory themselves: S, P, or the output where fragments cannot be looked into.

A writing is the stores that together cover the region once. Where every writing is by the same threads, each store is
an element of the tile; where they differ (a product is stored by the layout of its fragments, the softmax by a thread
per row), the row and column of an address are what the products stored there say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .addresses import Ints
from .rewrite import NotExpressible
from .shape_types import Tile
from .shared_states import Placed, placed
from .state import Emission, TileObject
from .trace import MemoryStore

Covers = Callable[[dict[Any, Tile], int], bool]


@dataclass(eq=False)
class SharedTile:
    """Key of a tile in shared memory: its stores, in program order. `mixed`: its writings are by different threads."""

    low: int
    high: int
    members: dict[int, Placed]  # by id of the event
    mixed: bool

    def element(self, event: MemoryStore) -> bytes | None:
        """Which element of the tile a store writes; None for a store to other addresses."""
        found = self.members.get(id(event))
        return found.at.tobytes() if found is not None else None


def find_objects(e: Emission, covers: Covers) -> None:
    """Regions of shared memory that hold a whole tile."""
    threads = e.memory.threads
    everything = [p for p in (placed(e.machine.store, threads, x) for x in e.memory.other_stores) if p is not None]
    regions: list[tuple[int, int, str, list[Placed]]] = []
    for p in everything:
        info = e.shapes.info(p.event.value)
        if not isinstance(info, Tile):
            continue
        low, high, joined = _first(p), _end(p), [p]
        rest: list[tuple[int, int, str, list[Placed]]] = []
        for r in regions:
            if r[2] == info.axis and r[0] < high and low < r[1]:
                low, high, joined = min(low, r[0]), max(high, r[1]), [*r[3], *joined]
            else:
                rest.append(r)
        regions = [*rest, (low, high, info.axis, joined)]
    for low, high, axis, members in regions:
        _add(e, covers, SharedTile(low, high, {id(p.event): p for p in members}, False), axis, everything)


def _add(e: Emission, covers: Covers, key: SharedTile, axis: str, everything: list[Placed]) -> None:
    members = list(key.members.values())
    tiles = {p.at.tobytes(): info for p in members if isinstance(info := e.shapes.info(p.event.value), Tile)}
    if not covers(tiles, e.problem.Br * (e.problem.Bc if axis == "j" else e.problem.Dv)):
        return
    others = [p for p in everything if id(p.event) not in key.members and _first(p) < key.high and key.low < _end(p)]
    carried = any(r.low < key.high and key.low < r.high for r in e.regions)
    once = {p.key(): int(p.active.sum()) * p.event.size for p in members}
    key.mixed = carried or (sum(once.values()) != key.high - key.low and _twice(once, members))
    if key.mixed:
        key.members.update({id(p.event): p for p in others})
        key.members = dict(sorted(key.members.items(), key=lambda kv: kv[1].event.order))
    e.objects[key] = TileObject(key, axis, "S" if axis == "j" else "O", tiles)


def _twice(once: dict[bytes, int], members: list[Placed]) -> bool:
    """True when stores of different threads go to the same address."""
    seen: set[int] = set()
    for p in {p.key(): p for p in members}.values():
        mine = set(p.at[p.active].tolist())
        if mine & seen:
            return True
        seen |= mine
    return len(once) == 0


def _first(p: Placed) -> int:
    return int(p.at[p.active].min())


def _end(p: Placed) -> int:
    return int(p.at[p.active].max()) + p.event.size


def name_states(e: Emission) -> None:
    """Tiles that live from trip to trip are states of the loop by their own name."""
    for key, obj in e.objects.items():
        if isinstance(key, SharedTile):
            for region in e.regions:
                if region.low < key.high and key.low < region.high:
                    for carried in region.carried:
                        e.state_names[(carried.cells.oid, carried.index)] = obj.name


@dataclass(frozen=True, slots=True)
class Writing:
    """Stores that cover a tile once, and the element of each."""

    stores: list[MemoryStore]
    tiles: list[Tile]


def writings(e: Emission, obj: TileObject, items: list[Any]) -> list[Writing]:
    """The writings of a mixed tile among `items`. Raises NotExpressible when one is not whole."""
    key = obj.key
    own = [key.members[id(x)] for x in items if isinstance(x, MemoryStore) and id(x) in key.members]
    if not own:
        return []
    size = own[0].event.size
    if any(p.event.size != size for p in own):
        raise NotExpressible("a tile in shared memory that is written in elements of different sizes")
    rows, columns = _places(e, key, size)
    whole = int((rows >= 0).sum())
    # Which writing a store is of: how often its addresses were written before. A loop may change an element twice.
    found: list[list[Placed]] = []
    written: dict[int, int] = {}
    for p in own:
        mine = ((p.at[p.active] - key.low) // size).tolist()
        before = {written.get(at, 0) for at in mine}
        if len(before) != 1:
            raise NotExpressible("a tile in shared memory of which a part is written again")
        number = before.pop()
        found += [[]] if number == len(found) else []
        found[number].append(p)
        written |= dict.fromkeys(mine, number + 1)
    if any(sum(len(set(p.at[p.active].tolist())) for p in w) != whole for w in found):
        raise NotExpressible("a tile in shared memory of which only a part is written")
    return [Writing([p.event for p in w], [_tile(obj.axis, p, key.low, size, rows, columns) for p in w]) for w in found]


def tile_at(e: Emission, obj: TileObject | None, store: MemoryStore) -> Tile | None:
    """The element of a tile in shared memory that a store writes; threads that do not store continue what the first
    ones do. None for a store elsewhere.
    """
    key = obj.key if obj is not None else None
    if not isinstance(key, SharedTile) or id(store) not in key.members or obj is None:
        return None
    p = key.members[id(store)]
    if not key.mixed:
        return obj.coordinates.get(key.element(store))
    try:
        rows, columns = _places(e, key, store.size)
        tile = _tile(obj.axis, p, key.low, store.size, rows, columns)
    except NotExpressible:
        return None
    return Tile(tile.axis, *tile.everywhere)


def continued(numbers: Ints, active: NDArray[np.bool_]) -> Ints:
    """`numbers` of the first threads, 2^n of them, with those of the others as the last digit goes on."""
    count = int(active.sum())
    if count == len(numbers) or count & (count - 1) or count < 2 or not active[:count].all():
        return numbers
    ids = np.arange(len(numbers))
    step = int(numbers[count - 1] - numbers[count // 2 - 1])
    return numbers[ids % count] + ids // count * 2 * step


def _places(e: Emission, key: SharedTile, size: int) -> tuple[Ints, Ints]:
    """Row and column of the element at each address (-1: none). Raises NotExpressible when stores disagree."""
    count = (key.high - key.low) // size
    rows, columns = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for p in key.members.values():
        info = e.shapes.info(p.event.value)
        if not isinstance(info, Tile) or p.event.size != size:
            continue
        where = (p.at[p.active] - key.low) // size
        i, c = info.i[p.active], info.c[p.active]
        known = rows[where] >= 0
        if (rows[where][known] != i[known]).any() or (columns[where][known] != c[known]).any():
            raise NotExpressible("a tile in shared memory whose elements change their places")
        rows[where], columns[where] = i, c
    return rows, columns


def _tile(axis: str, p: Placed, low: int, size: int, rows: Ints, columns: Ints) -> Tile:
    where = np.clip((p.at - low) // size, 0, len(rows) - 1)
    if int(rows[where[p.active]].min()) < 0:
        raise NotExpressible("a store between the elements of a tile in shared memory")
    i, c = rows[where], columns[where]
    return Tile(axis, i, c, (continued(i, p.active), continued(c, p.active)))
