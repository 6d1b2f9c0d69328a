"""The named things of a kernel: buffers, tiles held by variables or shared regions, loop-carried states, outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import addresses, exchanges, shared_states, shared_tiles
from .emit_tiles import store_parts
from .shape_types import Row, Tile, look
from .state import Emission, TileObject
from .trace import Assign, Loop
from .values import Node, Value


def outputs(e: Emission) -> None:
    """O is stored with tile elements, LSE with row values; learns their addresses."""
    p = e.problem
    for event in e.memory.global_stores:
        parts = store_parts(event.value)
        info = e.shapes.info(_before_exchange(e, parts[0]))
        root = event.ptr.root
        if isinstance(info, Tile) and info.axis == "d" and "o" not in p.tensors:
            p.tensors["o"] = root
        elif isinstance(info, Row) and "lse" not in p.tensors:
            p.tensors["lse"] = root
        if root == p.tensors.get("o"):
            halves = sum(len(store_parts(_register(e, part))) for part in parts)
            e.memory.element_sizes.setdefault(root, max(1, event.size // halves))
            e.memory.learn_stride(root, event.ptr.offset, list(event.predicates))


def _register(e: Emission, part: Value) -> Value:
    """A stored register, as it was before threads exchanged it."""
    found = exchanges.origins(e.machine.store, part)
    return found[0].value if found else part


def _before_exchange(e: Emission, part: Value) -> Value:
    return store_parts(_register(e, part))[0]


def name_things(e: Emission) -> None:
    """Names of buffers, tile objects and loop-carried states."""
    p = e.problem
    for buffer in e.memory.buffers:
        role = next((r for r, t in p.tensors.items() if t == buffer.tensor), None)
        if role is not None:
            e.buffer_names[id(buffer)] = f"{role.upper()}s"
    e.used_names |= {"m", "l", *e.writer.param_names.values()}
    shared_states.rows_as_variables(e)
    find_objects(e)
    for event in addresses.events_of(e.machine.trace.items):
        if isinstance(event, Loop) and event is e.kv_loop:
            for carried in event.carried:
                name_state(e, carried)
    shared_tiles.name_states(e)


def find_objects(e: Emission) -> None:
    """Local variables and shared regions that hold a whole tile."""
    p = e.problem
    coordinates: dict[tuple[str, Any], dict[Any, Tile]] = {}
    rows: set[int] = set()  # variables that fold a tile: they start as an element and end as a row value
    for event in addresses.events_of(e.machine.trace.items):
        if isinstance(event, Assign) and isinstance(e.shapes.info(event.version), Row):
            rows.add(event.cells.oid)
        if isinstance(event, Assign) and isinstance(info := e.shapes.info(event.version), Tile):
            coordinates.setdefault((info.axis, event.cells.oid), {})[event.index] = info
    for (axis, key), tiles in coordinates.items():
        if key not in rows and covers(tiles, p.Br * (p.Bc if axis == "j" else p.Dv)):
            e.objects[key] = TileObject(key, axis, "S" if axis == "j" else "O", tiles)
    shared_tiles.find_objects(e, covers)


def covers(tiles: dict[Any, Tile], count: int) -> bool:
    """True when the elements are all of a tile of that size."""
    seen = np.unique(np.concatenate([t.i * 65536 + t.c for t in tiles.values()]))
    return len(seen) == count


def name_state(e: Emission, carried: Any) -> None:
    """m for what a maximum updates, l for what a sum updates, the object's name for tiles."""
    key = (carried.cells.oid, carried.index)
    info = e.shapes.info(carried.after)
    if isinstance(info, Tile) and carried.cells.oid in e.objects:
        e.state_names[key] = e.objects[carried.cells.oid].name
    elif isinstance(info, Row):
        units = e.machine.rotation is not None
        e.state_names[key] = "m" if is_maximum(carried.after, in_other_units=units) else "l"


def is_maximum(value: Value, depth: int = 8, *, in_other_units: bool = False) -> bool:
    """True when a row value is a running maximum; `in_other_units`, or such a one scaled and with something added."""
    node = look(value)
    if not isinstance(node, Node) or depth == 0:
        return False
    if node.op in ("join", "select"):
        return any(is_maximum(a, depth - 1, in_other_units=in_other_units) for a in node.args[1:])
    if in_other_units and node.op in ("add", "mul", "sub"):
        return any(is_maximum(a, depth - 1, in_other_units=True) for a in node.args)
    return node.op == "max"
