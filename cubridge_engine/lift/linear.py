"""``acc = a * acc + b * (P V)``: the output as a linear combination of itself and a product kept in a variable.

The row factor of the product goes onto P, which is the same number: ``b * sum(p v) = sum((b * p) v)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.expr import Call, Const, Expr, Var, walk
from ..ir.nodes import Map, Origin
from . import addresses, emit_tiles
from .rewrite import NotExpressible
from .shape_types import Contraction, Row, Tile, look
from .state import Emission, TileObject
from .values import Node, Value


@dataclass(slots=True)
class _Sum:
    """``own * acc + factor * product``; a factor of None stands for zero."""

    own: Value = None
    factor: Value = None
    product: Contraction | None = None


def accumulate(
    e: Emission, obj: TileObject, tiles: list[Tile], values: list[Value], origin: Origin, event: Any
) -> bool:
    """Emit the rescaling of O and the product when the values have this form; False when they have not."""
    sums = [_split(e, obj, v) for v in values]
    products = [s.product for s in sums if s is not None and s.product is not None]
    if len(products) != len(values) or any(s is None or s.own is None for s in sums):
        return False
    found = [s for s in sums if s is not None]
    first = products[0]
    if any(p.columns != first.columns or p.right.tensor != first.right.tensor or p.role != "pv" for p in products):
        return False
    if len(first.columns) != e.problem.Bc:
        raise NotExpressible(f"a contraction over {len(first.columns)} of {e.problem.Bc} columns")
    if any(not (p.tile.i == t.i).all() or not (p.tile.c == t.c).all() for p, t in zip(products, tiles, strict=True)):
        raise NotExpressible("an output element that accumulates the product of another place")
    _scale(e, obj.name, "rescale", _factor(e, [s.own for s in found], tiles), origin)
    if not isinstance(first.left, Node) or (p := e.name_of(first.left)) is None:
        raise NotExpressible("a left operand that is no tile")
    by = _factor(e, [s.factor for s in found], tiles)
    if by != Const(1.0):
        _scale(e, p, "other", by, origin)
    e.emit(emit_tiles.product(e, first, obj.name, origin))
    if by != Const(1.0):
        e.hold(p, ())
    e.steps.setdefault("pv", origin)
    e.tiles.add(obj.name)
    return True


def _factor(e: Emission, factors: list[Value], tiles: list[Tile]) -> Expr:
    return e.writer.elements(factors, e.tile_frame(tiles, e.name_of))


def _scale(e: Emission, tile: str, role: str, factor: Expr, origin: Origin) -> None:
    if factor == Const(1.0):
        return
    e.emit(Map(role, tile, tile, Call("mul", (Var("s"), factor)), origin))
    if role == "rescale":
        e.steps.setdefault("rescale", origin)
    if any(isinstance(x, Call) and x.op == "div" for x in walk(factor)):
        e.steps.setdefault("normalise", origin)


def _split(e: Emission, obj: TileObject, value: Value) -> _Sum | None:
    """The factors of one element; None when it is no such combination."""
    try:
        if isinstance(value, Node) and e.name_of(value) == obj.name:
            return _Sum(own=1.0)
    except NotExpressible:
        return None
    found = e.shapes.contraction(value)
    if found is not None:
        return _Sum(factor=1.0, product=found) if addresses.is_zero(look(found.base)) else None
    node = look(value)
    if not isinstance(node, Node):
        return None
    if node.op == "add":
        a, b = (_split(e, obj, x) for x in node.args)
        if a is None or b is None or (a.product and b.product) or (a.own is not None and b.own is not None):
            return None
        one, other = (a, b) if a.own is not None else (b, a)
        return _Sum(one.own, other.factor, other.product)
    if node.op in ("mul", "div"):
        sides = (node.args,) if node.op == "div" else (node.args, node.args[::-1])
        for inner, factor in sides:
            split = _split(e, obj, inner) if _is_factor(e, factor) else None
            if split is not None:
                return _Sum(
                    _times(e, node.op, split.own, factor), _times(e, node.op, split.factor, factor), split.product
                )
    return None


def _is_factor(e: Emission, value: Value) -> bool:
    if isinstance(value, float | int):
        return True
    return isinstance(value, Node) and (isinstance(e.shapes.info(value), Row) or value.uniform)


def _times(e: Emission, op: str, factor: Value, by: Value) -> Value:
    if factor is None or (factor == 1.0 and op == "mul"):
        return None if factor is None else by
    return e.machine.store.node(op, (factor, by))
