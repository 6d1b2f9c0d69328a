"""Operations on row vectors: reductions over a tile, over the lanes of a row, and everything element-wise on rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.expr import NEG_INF, Call, Const, Expr, Var, free_vars, walk
from ..ir.nodes import LaneReduce, Map, Origin, RowMap, RowReduce
from .addresses import Ints
from .emit_tiles import reduction_source, tile_expression
from .rewrite import NotExpressible
from .shape_types import Row, Tile, flatten, is_lane_step, look
from .state import Emission, TileObject, lane_of
from .trace import Assign
from .values import Node, Value


@dataclass(slots=True)
class RowStep:
    """One step of the rows of a variable: kind reduce | lane | map | copy, with one event per row element."""

    kind: str
    op: str
    events: list[Assign]
    masks: tuple[int, ...] = ()

    @property
    def order(self) -> int:
        """Position: that of the first row's event (the other rows go through the same steps in the same order)."""
        return min(e.order for e in self.events)


@dataclass(slots=True)
class _Single:
    kind: str
    op: str
    event: Assign
    masks: tuple[int, ...] = ()


def cell_steps(e: Emission, events: list[Assign]) -> list[_Single]:
    """The assignments of one element as steps; partial reductions are folded into the complete one."""
    steps: list[_Single] = []
    for event in events:
        step = _classify(e, event)
        last = steps[-1] if steps else None
        if last is not None and step.kind == "reduce" and last.kind == "reduce" and step.op == last.op:
            leaves = flatten(step.op, event.value)
            if not any(x is last.event.version for x in leaves):
                steps[-1] = step
                continue
        if last is not None and step.kind == "lane" and last.kind == "lane" and step.op == last.op:
            steps[-1] = _Single("lane", step.op, event, (*last.masks, *step.masks))
            continue
        steps.append(step)
    return steps


_NAMES = frozenset({"ver", "phi", "after", "join"})


def _classify(e: Emission, event: Assign) -> _Single:
    value = event.value
    inner = look(value)
    if isinstance(value, Node) and value.op in ("add", "max"):
        if is_lane_step(value):
            shuffle = next(x for x in value.args if isinstance(x, Node) and x.op == "shfl")
            kind, mask = shuffle.data
            if kind == "xor" and isinstance(mask, int):
                return _Single("lane", value.op, event, (mask,))
        leaves = flatten(value.op, value)
        if e.shapes.contraction(value) is None and e.shapes.is_reduction(event.version, value.op, leaves):
            return _Single("reduce", value.op, event)
    copies = isinstance(value, Node) and (value.op in _NAMES or value in e.shapes.carried)
    if copies and not isinstance(inner, float):
        return _Single("copy", "", event)
    return _Single("map", "", event)


def merge(singles: list[list[_Single]]) -> list[RowStep] | None:
    """Steps of the elements of one variable, taken together; None when they do not match."""
    if len({tuple((s.kind, s.op, s.masks) for s in one) for one in singles}) != 1:
        return None
    return [
        RowStep(steps[0].kind, steps[0].op, [s.event for s in steps], steps[0].masks)
        for steps in zip(*singles, strict=True)
    ]


def row_step(e: Emission, name: str, is_state: bool, step: RowStep, later: list[Any]) -> str:
    """Emit one step of a row variable; returns its (possibly new) name."""
    origin = e.origin(step.events[0].place, step.events)
    values = [event.value for event in step.events]
    rows = [_rows(e, event) for event in step.events]
    uids = {n.uid for n in (look(v) for v in values) if isinstance(n, Node)}
    if step.kind == "lane":
        return _lane_step(e, step, rows, values, origin)
    if step.kind == "reduce":
        return _reduce_step(e, name, is_state, step, rows, values, later, uids, origin)
    if step.kind == "copy" and not is_state:
        return name
    expr = e.writer.elements(values, e.row_frame(rows, e.name_of))
    role, suggestion = row_role(e, expr, values, is_state and e.kv_loop is not None and name not in e.current)
    if not is_state:
        name = name or e.fresh_name(suggestion)
    if step.kind == "copy" and expr == Var(name):
        return name
    used = [e.lanes[v] for v in free_vars(expr) if v in e.lanes]
    lanes = max([*used, e.lane_count if "lane" in free_vars(expr) else 1])
    e.save_if_needed(name, later, uids, origin)
    op = RowMap(role, name, lanes, expr, origin)
    e.emit(op)
    e.sites.append((role if role == "init" else "row", (op, step.events, name)))
    e.hold(name, values, lanes=lanes)
    if "div" in {x.op for x in walk(expr) if isinstance(x, Call)}:
        e.steps.setdefault("normalise", origin)
    if role in ("correction", "init"):
        e.steps.setdefault(role, origin)
    return name


def _rows(e: Emission, event: Assign) -> Ints:
    info = e.shapes.info(event.version)
    if isinstance(info, Row | Tile):
        return info.i
    key = (event.cells.oid, event.index)
    for carried in e.shapes.carried.values():
        if (carried.cells.oid, carried.index) == key:
            found = e.shapes.info(carried.after)
            if isinstance(found, Row):
                return found.i
    raise NotExpressible("a row value whose row is not known")


def row_role(e: Emission, expr: Expr, values: list[Value], starts: bool) -> tuple[str, str]:
    """(role, name) of an element-wise row operation, by its form."""
    ops = {x.op for x in walk(expr) if isinstance(x, Call)}
    if starts:
        return "init", "state"
    if ops & {"log", "log2"}:
        return "lse", "lse"
    if ops & {"exp", "exp2"}:
        return "correction", "corr"
    if "where" in ops and any(
        isinstance(x, Call) and x.op in ("eq", "ne", "gt", "lt") and NEG_INF in x.args for x in walk(expr)
    ):
        return "guard", "m_safe"
    if "div" in ops:
        return "other", "inv_l"
    if ops == {"mul"} and isinstance(expr, Call) and all(isinstance(a, Var) for a in expr.args):
        return "rescale", "r"
    return "other", "r"


def _reduce_step(
    e: Emission,
    name: str,
    is_state: bool,
    step: RowStep,
    rows: list[Ints],
    values: list[Value],
    later: list[Any],
    uids: set[int],
    origin: Origin,
) -> str:
    split = [_split_leaves(e, flatten(step.op, v)) for v in values]
    source: str | None = None
    made: str | None = None
    for elements, _ in split:
        found, _ = reduction_source(e, elements)
        if found is None:
            made = found = made or _materialise(e, split, origin)
        if source is not None and found != source:
            raise NotExpressible("a row reduction over different tiles")
        source = found
    assert source is not None
    covered = _covered(e, split)
    lanes = _lanes(e, rows[0], covered)
    role = "row_max" if step.op == "max" else "row_sum"
    init = _initial(e, step.op, [rest for _, rest in split], rows)
    if not is_state and not name:
        name = e.fresh_name("m_new" if role == "row_max" else "row_sum")
    e.save_if_needed(name, later, uids, origin)
    op = RowReduce(role, name, source, init, lanes, origin)
    e.emit(op)
    e.sites.append(("reduce", (op, step.events, name)))
    e.hold(name, values, lanes=lanes)
    e.steps.setdefault(role, origin)
    return name


def _split_leaves(e: Emission, leaves: list[Value]) -> tuple[list[Value], list[Value]]:
    elements = [x for x in leaves if isinstance(e.shapes.info(x), Tile)]
    rest = [x for x in leaves if not isinstance(e.shapes.info(x), Tile)]
    if any(isinstance(x, Node) and x.op == "shfl" for x in rest):
        raise NotExpressible("a reduction over lanes mixed with one over columns")
    return elements, rest


def _covered(e: Emission, split: list[tuple[list[Value], list[Value]]]) -> int:
    """How many columns each thread folds; they must be distinct."""
    counts: set[int] = set()
    for elements, _ in split:
        columns = np.stack([t.c for t in (e.shapes.info(x) for x in elements) if isinstance(t, Tile)])
        ordered = np.sort(columns, axis=0)
        if len(ordered) > 1 and (ordered[1:] == ordered[:-1]).any():
            raise NotExpressible("a row reduction that counts a column twice")
        counts.add(len(elements))
    if len(counts) != 1:
        raise NotExpressible("rows that fold different numbers of columns")
    return counts.pop()


def _lanes(e: Emission, rows: Ints, covered: int) -> int:
    """1 when a thread folds the whole row, else the number of threads that share it."""
    if covered == e.problem.Bc:
        return 1
    sharing = int(lane_of(rows).max()) + 1
    if sharing * covered != e.problem.Bc:
        raise NotExpressible(f"a row reduction over {sharing * covered} of {e.problem.Bc} columns")
    return sharing


def _initial(e: Emission, op: str, rests: list[list[Value]], rows: list[Ints]) -> Expr:
    neutral = NEG_INF if op == "max" else Const(0.0)
    cleaned = [[x for x in rest if not _is_neutral(op, look(x))] for rest in rests]
    if any(len(c) != len(cleaned[0]) for c in cleaned):
        raise NotExpressible("rows whose reductions start differently")
    result: Expr | None = None
    for k in range(len(cleaned[0])):
        expr = e.writer.elements([c[k] for c in cleaned], e.row_frame(rows, e.name_of))
        result = expr if result is None else Call(op, (result, expr))
    return result if result is not None else neutral


def _is_neutral(op: str, value: Value) -> bool:
    return isinstance(value, float) and value == (-np.inf if op == "max" else 0.0)


def _materialise(e: Emission, split: list[tuple[list[Value], list[Value]]], origin: Origin) -> str:
    """Elements that are summed without being stored: a tile of their own."""
    elements = [x for part, _ in split for x in part]
    infos = [e.shapes.info(x) for x in elements]
    tiles = [t for t in infos if isinstance(t, Tile)]
    obj = TileObject("temporary", "j", "P")
    source, expr = tile_expression(e, obj, tiles, elements, origin)
    is_exp = any(isinstance(x, Call) and x.op in ("exp", "exp2") for x in walk(expr))
    name = "P" if is_exp else e.fresh_name("T")
    e.emit(Map("exp" if is_exp else "other", name, source, expr, origin))
    if is_exp:
        e.steps.setdefault("exp", origin)
    e.tiles.add(name)
    if is_exp:
        e.hold(name, elements)
    return name


def _lane_step(e: Emission, step: RowStep, rows: list[Ints], values: list[Value], origin: Origin) -> str:
    """A butterfly over the lanes that share a row. Raises NotExpressible when it misses some of them."""
    base = step.events[0].value
    for _ in step.masks:
        assert isinstance(base, Node)
        base = next(x for x in base.args if not (isinstance(x, Node) and x.op == "shfl"))
        inner = base
        while isinstance(inner, Node) and inner.op == "ver":
            inner = inner.args[0]
        base = inner if isinstance(inner, Node) and is_lane_step(inner) else base
    name = e.name_of(base)
    if name is None or name in e.tiles:
        name = _lone_columns(e, step, rows, origin)
    reach = {0}
    for mask in step.masks:
        reach |= {r ^ mask for r in reach}
    threads = np.arange(len(rows[0]))
    for row in rows:
        partners = np.stack([row[threads ^ r] for r in sorted(reach)])
        sharing = int(lane_of(row).max()) + 1
        if not (partners == row).all():
            raise NotExpressible("a shuffle that mixes different rows")
        if len(reach) != sharing:
            raise NotExpressible(f"a shuffle that combines {len(reach)} of the {sharing} lanes of a row")
    op = LaneReduce("max" if step.op == "max" else "sum", name, origin)
    e.emit(op)
    # Reductions over other than four lanes are merged with the shuffle into one over the whole row.
    e.hold(name, values, lanes=4 if e.lanes.get(name, 1) == 4 else 1)
    e.steps.setdefault("lane_reduce", origin)
    return name


def _lone_columns(e: Emission, step: RowStep, rows: list[Ints], origin: Origin) -> str:
    """A shuffle over tile elements themselves: each thread holds one column."""
    bases = [_shuffled_element(e, event.value) for event in step.events]
    tile, _ = reduction_source(e, bases)
    if tile is None:
        raise NotExpressible("a shuffle of a value that is in no tile")
    name = e.fresh_name("m_new" if step.op == "max" else "row_sum")
    role = "row_max" if step.op == "max" else "row_sum"
    neutral = NEG_INF if step.op == "max" else Const(0.0)
    lanes = int(lane_of(rows[0]).max()) + 1
    e.emit(RowReduce(role, name, tile, neutral, lanes, origin))
    e.steps.setdefault(role, origin)
    e.lanes[name] = lanes
    return name


def _shuffled_element(e: Emission, value: Value) -> Value:
    """The tile element that a chain of shuffles starts from."""
    while isinstance(value, Node):
        if value.op == "ver" and not isinstance(e.shapes.info(value), Tile):
            value = value.args[0]
        elif is_lane_step(value):
            value = next(x for x in value.args if not (isinstance(x, Node) and x.op == "shfl"))
        else:
            break
    return value
