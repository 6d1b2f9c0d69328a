"""Which assignments belong together: the elements of a tile, the rows of a row vector, the stores of an output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import emit_rows, emit_tiles
from .jobs import Job
from .rewrite import NotExpressible
from .shape_types import Row, Tile, look
from .shared_tiles import SharedTile, Writing, writings
from .state import Emission, TileObject
from .trace import Assign, MemoryStore
from .values import Node, Poly, Value


def tile_jobs(e: Emission, items: list[Any]) -> list[Job]:
    per_object: dict[Any, dict[Any, list[Any]]] = {}
    for item in items:
        if isinstance(item, Assign) and item.cells.oid in e.objects and not _is_packed(item.value):
            per_object.setdefault(item.cells.oid, {}).setdefault(item.index, []).append(item)
        elif isinstance(item, MemoryStore) and item.ptr.space == "shared":
            found = _store_object(e, item)
            if found:
                per_object.setdefault(found[0], {}).setdefault(found[1], []).append(item)
    jobs = _mixed_jobs(e, items)
    for key, cells in per_object.items():
        obj = e.objects[key]
        collapsed = [_collapse(e, events) for _, events in sorted(cells.items(), key=lambda kv: str(kv[0]))]
        counts = {len(c) for c in collapsed}
        first = min((c[0] for c in collapsed), key=lambda x: x.order)
        if len(counts) != 1 or len(collapsed) != len(obj.coordinates):
            jobs.append(
                Job(first.order, first.place, failing("elements of a tile that are treated differently"), (obj.name,))
            )
            continue
        for step in zip(*collapsed, strict=True):
            jobs.append(_tile_job(e, obj, list(step), [k for k, _ in sorted(cells.items(), key=lambda kv: str(kv[0]))]))
    return jobs


def _is_packed(value: Value) -> bool:
    """True for elements packed into the registers that held them: the elements themselves have not changed."""
    node = look(value)
    return isinstance(node, Node) and node.op == "pack"


def _tile_job(e: Emission, obj: TileObject, events: list[Any], keys: list[Any]) -> Job:
    first = min(events, key=lambda x: x.order)
    tiles = [obj.coordinates[k] for k in keys]
    values = [x.value for x in events]

    def run() -> None:
        emit_tiles.tile_step(e, obj, tiles, values, e.origin(first.place, events), first)

    return Job(first.order, first.place, run, (obj.name,), lambda: e.hold(obj.name, values))


def failing(why: str) -> Callable[[], None]:
    def run() -> None:
        raise NotExpressible(why)

    return run


def _collapse(e: Emission, events: list[Any]) -> list[Any]:
    """Drop the unfinished states of a contraction."""
    result: list[Any] = []
    for event in events:
        now = e.shapes.contraction(event.value)
        before = e.shapes.contraction(result[-1].value) if result else None
        if now is not None and before is not None and before.role == now.role and before.columns < now.columns:
            result[-1] = event
            continue
        result.append(event)
    return result


def _store_object(e: Emission, item: MemoryStore) -> tuple[Any, Any] | None:
    for key in e.objects:
        if isinstance(key, SharedTile) and not key.mixed and (element := key.element(item)) is not None:
            return key, element
    return None


def _mixed_jobs(e: Emission, items: list[Any]) -> list[Job]:
    """Tiles in shared memory whose writings are by different threads: one job for each writing."""
    jobs: list[Job] = []
    for key, obj in e.objects.items():
        if not isinstance(key, SharedTile) or not key.mixed:
            continue
        try:
            found = writings(e, obj, items)
        except NotExpressible as why:
            first = next(x for x in items if id(x) in key.members)
            jobs.append(Job(first.order, first.place, failing(str(why)), (obj.name,)))
            continue
        jobs.extend(_writing_job(e, obj, writing) for writing in found)
    return jobs


def _writing_job(e: Emission, obj: TileObject, writing: Writing) -> Job:
    first = min(writing.stores, key=lambda x: x.order)
    values = [x.value for x in writing.stores]

    def run() -> None:
        emit_tiles.tile_step(e, obj, writing.tiles, values, e.origin(first.place, writing.stores), first)

    return Job(first.order, first.place, run, (obj.name,), lambda: e.hold(obj.name, values))


def row_jobs(e: Emission, items: list[Any]) -> list[Job]:
    cells: dict[tuple[int, int], list[Assign]] = {}
    chains = _chains(e, items) if e.machine.rotation is not None else set[int]()
    for item in items:
        if isinstance(item, Assign) and item.cells.oid in chains:
            continue
        if isinstance(item, Assign) and item.cells.oid not in e.objects and _is_row_event(e, item):
            cells.setdefault((item.cells.oid, item.index), []).append(item)
    groups = _group_rows(e, cells)
    events = [x for x in items if isinstance(x, Assign | MemoryStore)]
    jobs: list[Job] = []
    for name, members in groups:
        steps = emit_rows.merge(list(members))
        first = members[0][0].event
        if steps is None:
            jobs.append(
                Job(first.order, first.place, failing("rows that are treated differently"), (name or first.cells.name,))
            )
            continue
        box = [name]
        for step in steps:
            jobs.append(_row_job(e, box, bool(name), step, events))
    return jobs


def _chains(e: Emission, items: list[Any]) -> set[int]:
    """Arrays whose elements are chains of one reduction, joined at its end: ``part[0] + part[1]``."""
    own = [x for x in items if isinstance(x, Assign)]
    made = {x.version.uid: x for x in own}
    users: dict[int, set[tuple[str, int]]] = {}
    for event in own:
        for node in walk_inside(event.value, made):
            users.setdefault(node[0], set()).add((node[1], event.cells.oid))
    last: dict[tuple[int, int], Assign] = {}
    for event in own:
        if event.cells.dims and len(event.cells.values) > 1 and event.cells.oid not in e.objects:
            last[(event.cells.oid, event.index)] = event
    found: dict[int, list[bool]] = {}
    for (oid, _), event in last.items():
        value = event.value
        uses = users.get(event.version.uid, set())
        joined = isinstance(value, Node) and value.op in ("add", "max") and len(uses) == 1
        use = next(iter(uses)) if joined else ("", oid)
        found.setdefault(oid, []).append(joined and isinstance(value, Node) and use[0] == value.op and use[1] != oid)
    pairs = {oid for oid, good in found.items() if all(good)}
    return {
        oid
        for oid in pairs
        if all(_is_row_event(e, x) for x in own if x.cells.oid == oid and x is last[(oid, x.index)])
    }


def walk_inside(value: Value, made: dict[int, Assign]) -> list[tuple[int, str]]:
    """(version, operation on it) of the versions that a value uses directly."""
    found: list[tuple[int, str]] = []
    stack: list[Any] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node.uid not in made:
            for arg in node.args:
                if isinstance(arg, Node) and arg.uid in made:
                    found.append((arg.uid, node.op))
                else:
                    stack.append(arg)
    return found


def _row_job(e: Emission, box: list[str], is_state: bool, step: emit_rows.RowStep, events: list[Any]) -> Job:
    def run() -> None:
        later = [x for x in events if x.order > max(s.order for s in step.events)]
        box[0] = emit_rows.row_step(e, box[0], is_state, step, later)

    def recover() -> None:
        box[0] = box[0] or e.fresh_name("r")
        e.hold(box[0], [x.value for x in step.events], lanes=1)

    return Job(step.order, step.events[0].place, run, (box[0] or "m",), recover)


def _is_row_event(e: Emission, item: Assign) -> bool:
    if isinstance(e.shapes.info(item.version), Row):
        return True
    name = e.state_names.get((item.cells.oid, item.index))
    return name is not None and name not in e.tiles and not name.startswith(("O", "S", "P"))


def _group_rows(e: Emission, cells: dict[tuple[int, int], list[Assign]]) -> list[tuple[str, list[list[Any]]]]:
    """Elements that are one row vector: those of one array, those of one loop-carried state, scalars that are treated
    alike.
    """
    groups: dict[Any, tuple[str, list[list[Any]]]] = {}
    for key, events in cells.items():
        steps = emit_rows.cell_steps(e, events)
        state = e.state_names.get(key, "")
        if state:
            groups.setdefault(("state", state), (state, []))[1].append(steps)
        elif events[0].cells.dims:
            groups.setdefault(("array", key[0]), ("", []))[1].append(steps)
        else:
            _join_scalar(e, groups, steps)
    return list(groups.values())


def _join_scalar(e: Emission, groups: dict[Any, tuple[str, list[list[Any]]]], steps: list[Any]) -> None:
    shape = tuple((s.kind, s.op, s.masks, skeleton(e, s.event.value, True)) for s in steps)
    mine = _rows_of(e, steps)
    count = 0
    while (key := ("scalar", shape, count)) in groups:
        taken: set[int] = set()
        for other in groups[key][1]:
            taken |= _rows_of(e, other)
        if len(taken) < e.problem.Br and not taken & mine:
            groups[key][1].append(steps)
            return
        count += 1
    groups[key] = ("", [steps])


def _rows_of(e: Emission, steps: list[Any]) -> set[int]:
    info = e.shapes.info(steps[-1].event.version)
    return set(info.i.tolist()) if isinstance(info, Row | Tile) else set()


def skeleton(e: Emission, value: Value, top: bool = False) -> Any:
    """The shape of an expression, rows and elements anonymous."""
    if not isinstance(value, Node):
        return "p" if isinstance(value, Poly) else repr(value)
    info = e.shapes.info(value)
    if not top or value.op in ("phi", "after"):
        if isinstance(info, Tile):
            return "T"
        if value.op in ("ver", "phi", "after", "join") and isinstance(info, Row):
            return "R"
    if value.op == "ver" or (info is None and value.uniform):
        return skeleton(e, value.args[0]) if value.op == "ver" else f"u{value.uid}"
    return (value.op, *(skeleton(e, a) for a in value.args))


def store_jobs(e: Emission, items: list[Any]) -> list[Job]:
    by_root: dict[int, list[MemoryStore]] = {}
    for item in items:
        if isinstance(item, MemoryStore) and item.ptr.space == "global":
            by_root.setdefault(item.ptr.root, []).append(item)
    jobs: list[Job] = []
    output = next((o for o in e.objects.values() if o.axis == "d"), None)
    for root, events in by_root.items():
        last = max(events, key=lambda x: x.order)
        if root == e.problem.tensors.get("o"):
            jobs.append(
                Job(
                    last.order,
                    events[0].place,
                    lambda events=events: emit_tiles.store_output(e, events, output),
                    ("o",),
                )
            )
        elif root == e.problem.tensors.get("lse"):
            jobs.append(
                Job(last.order, events[0].place, lambda events=events: emit_tiles.store_row(e, events, "lse"), ("lse",))
            )
        else:
            jobs.append(
                Job(last.order, events[0].place, failing("a store to a tensor that is neither O nor LSE"), ("o",))
            )
    return jobs
