"""Operations on tiles: fills, matrix products, score changes, masks, exp, rescaling, stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.expr import NEG_INF, Call, Const, Expr, Var, free_vars, walk
from ..ir.nodes import Alloc, Copy, Fill, LoadTile, Map, Mask, Mma, Op, Origin, Score, StoreRow, StoreTile
from ..ir.simplify import simplify
from . import addresses, exchanges, in_place, linear
from .addresses import MemoryError_
from .rewrite import NotExpressible
from .shape_types import Contraction, Element, Row, Tile, look, unrounded
from .state import Emission, TileObject
from .trace import Assign, MemoryStore
from .values import Node, Value

_EXP = frozenset({"exp", "exp2"})


def tile_step(e: Emission, obj: TileObject, tiles: list[Tile], values: list[Value], origin: Origin, event: Any) -> None:
    """One assignment to every element of a tile."""
    first = values[0]
    if all(e.shapes.contraction(v) is not None for v in values):
        contract(e, obj, values, origin, event)
        e.hold(obj.name, values)
        return
    if all(isinstance(look(v), float) for v in values):
        if obj.axis == "j" and obj.name == "P":
            obj.name = "S"
        e.emit(Fill(obj.name, e.writer.elements([look(v) for v in values], e.tile_frame(tiles, e.name_of)), origin))
        e.hold(obj.name, values)
        e.tiles.add(obj.name)
        return
    if obj.axis == "d" and linear.accumulate(e, obj, tiles, values, origin, event):
        e.hold(obj.name, values)
        return
    source, expr = tile_expression(e, obj, tiles, values, origin, event)
    if expr == Var("s"):
        obj.name = source
        e.hold(source, values)
        return
    for op in split_expression(e, obj, source, expr, origin):
        e.emit(op)
        e.sites.append((type(op).__name__.lower(), (op, event, obj)))
        if isinstance(op, Map):
            if op.role in ("exp", "rescale"):
                e.steps.setdefault(op.role, origin)
            obj.name = op.dst
            e.tiles.add(op.dst)
        elif isinstance(op, Score | Mask):
            obj.name = op.tile
        if isinstance(op, Map) and op.role == "exp":
            # The product rounds what it takes (Mma.rounds_a): a weight before its rounding is the same weight.
            values = [*values, *(unrounded(look(v)) for v in values)]
    e.hold(obj.name, values)
    if first is None:
        raise NotExpressible("a tile without values")


def tile_expression(
    e: Emission, obj: TileObject, tiles: list[Tile], values: list[Value], origin: Origin, event: Any = None
) -> tuple[str, Expr]:
    """The tile that the new elements are computed from, and the expression over `s`."""
    sources: set[str] = set()
    products: dict[int, Value] = {}

    def source(value: Value) -> str | None:
        name = e.name_of(value)
        if name is None and isinstance(value, Node) and e.shapes.contraction(value) is not None:
            products[look(value).uid] = value  # type: ignore[union-attr]
            sources.add("")
            return "s"
        if name in e.tiles:
            sources.add(str(name))
            return "s"
        return name

    expr = e.writer.elements(values, e.tile_frame(tiles, source))
    if len(sources) > 1:
        raise NotExpressible("an element computed from two tiles")
    name = sources.pop() if sources else obj.name
    if name == "" and products:
        obj.name = "S" if obj.axis == "j" else "O"
        contract(e, obj, list(products.values()), origin, event)
        e.hold(obj.name, products.values())
        name = obj.name
    return name, expr


def split_expression(e: Emission, obj: TileObject, source: str, expr: Expr, origin: Origin) -> list[Op]:
    """An element-wise change as CuIR operations: score and mask apart, exp and rescaling named."""
    rows = free_vars(expr) & set(e.lanes)
    has_exp = any(isinstance(x, Call) and x.op in _EXP and Var("s") in set(walk(x)) for x in walk(expr))
    if obj.axis == "d":
        role = "rescale" if rows and expr != Var("s") else "other"
        return [Map(role, obj.name, source, expr, origin)]
    if rows and has_exp:
        return [Map("exp", "P", source, _without_rounding(expr), origin)]
    if source == "P" or rows:
        return [Map("other", obj.name if not rows else source, source, expr, origin)]
    keep, fill, inner = split_mask(expr)
    ops: list[Op] = []
    if inner != Var("s"):
        ops.append(Score(source, inner, origin))
    if keep is not None:
        ops.append(Mask(source, keep, fill, None, origin))
    if has_exp and not ops:
        ops.append(Score(source, expr, origin))
    return ops


def _without_rounding(expr: Expr) -> Expr:
    while isinstance(expr, Call) and expr.op in ("fp16", "bf16"):
        expr = expr.args[0]
    return expr


def split_mask(expr: Expr) -> tuple[Expr | None, Expr, Expr]:
    """(keep, fill, rest) of ``where(keep, rest, fill)`` with a fill that does not depend on the score."""
    masked, fill, rest = _masked(expr, _is_fill)
    if fill is None or rest is None:
        # A weight is masked with 0; where the score itself decides, a 0 is part of the formula (ReLU).
        masked, fill, rest = _masked(expr, _is_zero)
        if fill is None or rest is None or "s" in free_vars(masked):
            return None, NEG_INF, expr
    return simplify(Call("not", (masked,))), fill, rest


def _masked(expr: Expr, is_fill: Callable[[Expr], bool]) -> tuple[Expr, Expr | None, Expr | None]:
    """(where the value is the fill, fill, the value elsewhere) of nested selections; fill None: it is no mask."""
    if is_fill(expr):
        return Const(True), expr, None
    if not (isinstance(expr, Call) and expr.op == "where"):
        return Const(False), None, expr
    condition, *branches = expr.args
    (a, fill_a, rest_a), (b, fill_b, rest_b) = (_masked(x, is_fill) for x in branches)
    fills, rests = {fill_a, fill_b} - {None}, {rest_a, rest_b} - {None}
    if len(fills) != 1 or len(rests) > 1:
        return Const(False), None, expr
    masked = Call("or", (Call("and", (condition, a)), Call("and", (Call("not", (condition,)), b))))
    return simplify(masked), fills.pop(), next(iter(rests), None)


def _is_fill(expr: Expr) -> bool:
    return isinstance(expr, Const) and isinstance(expr.value, float) and expr.value < -1e3


def _is_zero(expr: Expr) -> bool:
    return expr == Const(0.0)


# ---- matrix products
# ------------------------------------------------------------------------------------------------------


def contract(e: Emission, obj: TileObject, values: list[Value], origin: Origin, event: Any = None) -> None:
    """Mma for a complete contraction, with the Fill of its start where the code has none of its own."""
    found = [c for c in (e.shapes.contraction(v) for v in values) if c is not None]
    first = found[0]
    if any(c.role != first.role or c.right.tensor != first.right.tensor or c.columns != first.columns for c in found):
        raise NotExpressible("elements that contract different operands")
    want = e.problem.D if first.role == "qk" else e.problem.Bc
    if len(first.columns) != want:
        raise NotExpressible(f"a contraction over {len(first.columns)} of {want} columns")
    if obj.axis == "j":
        obj.name = "S"
    acc = obj.name
    base = look(first.base)
    if isinstance(base, float):
        # A start that the code assigned to the accumulator itself has been emitted as its own Fill.
        if e.current.get(acc) is None or not _filled(e, acc):
            e.emit(Fill(acc, Const(base), origin))
            e.tiles.add(acc)
    elif e.name_of(first.base) != acc:
        # ``t = o * correction; t += p v``: the start is an expression of its own.
        tile_step(e, obj, [c.tile for c in found], [c.base for c in found], origin, event)
    e.emit(product(e, first, acc, origin))
    e.tiles.add(acc)
    scale = first.left.scale if isinstance(first.left, Element) else None
    if scale is not None:
        # Q was multiplied on its way in; on the scores that is the same factor.
        e.emit(Score(acc, Call("mul", (Var("s"), e.writer.uniform(scale))), origin))
    e.steps.setdefault("qk" if first.role == "qk" else "pv", origin)
    if first.role == "qk":
        at = event.place.site if event is not None else (origin.span.start, origin.span.end) if origin.span else None
        e.sites.append(("qk", (origin, obj, at)))


def _filled(e: Emission, acc: str) -> bool:
    """True when the last operation on the tile was a Fill."""
    for op in reversed(e.ops):
        if isinstance(op, Fill) and op.tile == acc:
            return True
        if isinstance(op, Mma) and op.acc == acc:
            return False
    return False


def product(e: Emission, c: Contraction, acc: str, origin: Origin) -> Mma:
    """The matrix product of a contraction, added to the tile `acc`."""
    a_slot: Expr | None = None
    if isinstance(c.left, Element):
        if c.left.buffer is None:
            if not e.q_register:
                in_place.read_q(e, c.left, origin)
            a = "Qf"
        elif e.q_register:
            a = "Qf"
        else:
            a, a_slot = e.buffer_names[id(c.left.buffer)], e.writer.uniform(c.left.slot)
    else:
        moved = exchanges.origins(e.machine.store, c.left) or []
        names = {e.name_of(unrounded(origin.value)) for origin in moved} or {e.name_of(c.left)}
        name = names.pop()
        if name is None or names:
            raise NotExpressible("a left operand that is no tile")
        a = name
    if c.right.buffer is None:
        b = in_place.read(e, c, origin)
        return Mma(c.role, acc, a, b, None, c.atom, a_slot, bool(c.rounds), origin)
    slot = e.writer.uniform(c.right.slot)
    return Mma(c.role, acc, a, e.buffer_names[id(c.right.buffer)], slot, c.atom, a_slot, bool(c.rounds), origin)


def copy_direct(e: Emission, event: Assign, element: Element) -> None:
    """Copy of Q's tile from global memory into registers."""
    access = element.direct
    limit = in_place.row_limit(e, element, "q")
    e.q_register = True
    origin = e.origin(event.place)
    e.emit(Alloc("Qf", 1, e.problem.Br, e.problem.D, "io", "register", "row", origin))
    e.emit(Copy("Qf", Const(0), "q", e.writer.uniform(access.row0), e.problem.Br, limit, False, origin=origin))
    e.steps.setdefault("load_q", origin)


def preload(e: Emission, events: list[Assign]) -> None:
    """LoadTile for Q fragments that are kept in registers."""
    for event in events:
        node = look(event.value)
        if not isinstance(node, Node) or node.op not in ("frag", "sload"):
            continue
        try:
            halves = e.shapes.halves(node)
        except MemoryError_:
            continue
        if halves is None or not isinstance(halves[0], Element) or halves[0].tensor != e.problem.tensors.get("q"):
            continue
        buffer = halves[0].buffer
        if buffer is not None and not e.q_register:
            e.q_register = True
            e.emit(
                LoadTile(
                    "Qf", e.buffer_names[id(buffer)], e.writer.uniform(halves[0].slot), False, e.origin(event.place)
                )
            )
        return


# ---- stores
# ---------------------------------------------------------------------------------------------------------------


def store_output(e: Emission, events: list[MemoryStore], obj: TileObject | None) -> None:
    """StoreTile: every element of O at its own row and column."""
    values: list[Value] = []
    tiles: list[Tile] = []
    limits: set[Any] = set()
    origin = e.origin(events[0].place, events)
    element = e.memory.element_sizes.get(events[0].ptr.root, 2)
    covered: set[int] = set()
    for event in events:
        parts = store_parts(event.value)
        access = e.memory.access(event.ptr.root, event.ptr.offset)
        row = addresses.row_of(list(event.predicates))
        limits.add(None if row is None else row[1])
        shift = e.machine.store.add(access.row0, e.problem.q_row0, -1)
        if not isinstance(shift, int):
            raise NotExpressible("output rows of another tile than Q's")
        rows = access.row + shift
        for origin_of, column in _stored(e, parts, access.column):
            part, where = origin_of.value, origin_of.holders
            info = e.shapes.info(part)
            if info is None and where.all():
                info = Tile("d", rows, column)
            from_ = origin_of.source[where]
            if not isinstance(info, Tile) or not (
                (info.i[from_] == rows[where]).all() and (info.c[from_] == column[where]).all()
            ):
                raise NotExpressible("an output element that is stored at another row or column")
            covered.update((rows[where] * 4096 + column[where]).tolist())
            tiles.append(info)
            values.append(part)
    if len(covered) != e.problem.Br * e.problem.Dv:
        raise NotExpressible(f"{len(covered)} of {e.problem.Br * e.problem.Dv} output elements are stored")
    if len(limits) != 1:
        raise NotExpressible("output elements stored under different conditions")
    target = obj or TileObject("o", "d", "O")
    source, expr = tile_expression(e, target, tiles, values, origin)
    limit = limits.pop()
    expr = _without_rounding(expr)
    op = StoreTile("o", source, expr, None if limit is None else e.writer.uniform(limit), origin)
    e.emit(op)
    e.steps.setdefault("store", origin)
    if any(isinstance(x, Call) and x.op == "div" for x in walk(expr)):
        e.steps.setdefault("normalise", origin)
    e.sites.append(("store_o", (op, events[0])))
    assert element


def _stored(e: Emission, parts: list[Value], first: Any) -> list[tuple[Any, Any]]:
    """Each stored element, with the threads that store it, whose it was, and its column."""
    found: list[tuple[Any, Any]] = []
    threads = e.machine.store.threads
    column = first
    for part in parts:
        exchanged = exchanges.origins(e.machine.store, part)
        own = exchanges.Origin(part, np.ones(threads, bool), np.arange(threads))  # type: ignore[arg-type]
        width = 1
        for origin in exchanged or [own]:
            halves = store_parts(origin.value) if exchanged else [part]
            width = len(halves)
            found += [(dataclasses.replace(origin, value=half), column + k) for k, half in enumerate(halves)]
        column = column + width
    return found


def store_parts(value: Value) -> list[Value]:
    """The elements of a stored value: two of a packed register, up to four of a vector."""
    node = value
    while isinstance(node, Node) and node.op == "ver":
        node = node.args[0]
    if isinstance(node, Node) and node.op in ("pack", "vec"):
        return [x for part in node.args for x in store_parts(part)]
    return [value]


def store_row(e: Emission, events: list[MemoryStore], tensor: str) -> None:
    """StoreRow: one value per row (LSE)."""
    origin = e.origin(events[0].place, events)
    infos = [e.shapes.info(event.value) for event in events]
    rows: list[Any] = []
    limits: set[Any] = set()
    for event, info in zip(events, infos, strict=True):
        if info is not None and not isinstance(info, Row):
            raise NotExpressible("a row tensor that gets something else than a row value")
        found = addresses.row_of(list(event.predicates))
        limits.add(None if found is None else found[1])
        offset = row_offset(e, event)
        if isinstance(info, Row) and not (offset == info.i).all():
            raise NotExpressible("a row value that is stored at another row")
        rows.append(offset)
    if len(limits) != 1:
        raise NotExpressible("rows stored under different conditions")
    expr = e.writer.elements([event.value for event in events], e.row_frame(rows, e.name_of))
    limit = limits.pop()
    op = StoreRow(tensor, expr, None if limit is None else e.writer.uniform(limit), origin)
    e.emit(op)
    e.steps.setdefault("lse", origin)
    e.sites.append(("store_lse", (op, events[0])))


def row_offset(e: Emission, event: MemoryStore) -> Any:
    """The row within the tile of a store of one number per row."""
    store = e.machine.store
    poly = store.poly(event.ptr.offset)
    elements = store.lower({m: c // event.size for m, c in poly.terms.items()})
    numbers, _ = addresses.split_uniform(store, store.add(elements, e.problem.q_row0, -1))
    return numbers


def reduction_source(e: Emission, leaves: list[Value]) -> tuple[str | None, list[Value]]:
    """(tile name, tile elements) among the operands of a reduction; None when they are in no named tile."""
    elements = [x for x in leaves if isinstance(e.shapes.info(x), Tile)]
    names = {e.name_of(x) for x in elements}
    if len(names) != 1:
        raise NotExpressible("a row reduction over elements of different tiles")
    return names.pop(), elements
