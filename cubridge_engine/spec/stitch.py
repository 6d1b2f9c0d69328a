"""Loops over heads or batches: the unrolled pieces, put together again into one expression of the loop's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

from ..ir.expr import Call, Const, Expr, Read
from .nodes import Algebra, Cat, Reduce


def stitch(algebra: Algebra, index: Expr, bounds: Sequence[int], parts: Sequence[Expr]) -> Expr | None:
    """One expression equal to ``parts[n]`` on ``bounds[n] <= index < bounds[n+1]``; None when their forms differ.

    Pieces have equal widths; integers that differ between them must follow ``a*n + c`` or ``n // g``.
    """
    width = bounds[1] - bounds[0]
    if len(parts) < 2 or any(high - low != width for low, high in pairwise(bounds)):
        return None
    turn = algebra.floordiv(index, width) if width > 1 else index
    return _merge(algebra, turn, list(parts))


def _merge(algebra: Algebra, turn: Expr, parts: list[Expr]) -> Expr | None:
    first = parts[0]
    if all(p == first for p in parts):
        return first
    if all(algebra.is_int(p) for p in parts):
        return _merge_int(algebra, turn, parts)
    if any(type(p) is not type(first) for p in parts):
        return None
    if isinstance(first, Reduce):
        return _merge_reduce(algebra, turn, parts)
    groups = [_pieces(p) for p in parts]
    if any(label != groups[0][0] or len(inner) != len(groups[0][1]) for label, inner in groups):
        return None
    merged: list[Expr] = []
    for column in zip(*(inner for _, inner in groups), strict=True):
        one = _merge(algebra, turn, list(column))
        if one is None:
            return None
        merged.append(one)
    if isinstance(first, Call):
        return algebra.rebuild(Call(first.op, tuple(merged)), lambda e: e)
    return Read(first.tensor, tuple(merged)) if isinstance(first, Read) else None


def _pieces(expr: Expr) -> tuple[object, tuple[Expr, ...]]:
    if isinstance(expr, Call):
        return expr.op, expr.args
    if isinstance(expr, Read):
        return expr.tensor, expr.index
    if isinstance(expr, Const):
        return expr.value, ()
    return tuple(getattr(expr, f.name) for f in fields(expr)) if isinstance(expr, Cat) else expr, ()  # type: ignore[arg-type]


def _merge_reduce(algebra: Algebra, turn: Expr, parts: list[Expr]) -> Expr | None:
    """Reductions of different turns come from different nodes: rename their variables to the first one's."""
    from ..ir.expr import Var

    first = parts[0]
    assert isinstance(first, Reduce)
    bodies: list[Expr] = []
    for p in parts:
        assert isinstance(p, Reduce)
        if (p.op, p.extent) != (first.op, first.extent):
            return None
        bodies.append(algebra.substitute(p.body, {Var(p.var): Var(first.var)}))
    body = _merge(algebra, turn, bodies)
    return None if body is None else Reduce(first.op, first.var, first.extent, body)


def _merge_int(algebra: Algebra, turn: Expr, parts: list[Expr]) -> Expr | None:
    forms = [algebra.affine(p) for p in parts]
    if any(f[0] != forms[0][0] for f in forms):
        return None
    values = [c for _, c in forms]
    step = values[1] - values[0]
    if all(v == values[0] + step * n for n, v in enumerate(values)):
        varying = algebra.add(algebra.mul(turn, Const(step)), Const(values[0]))
    else:
        group = next((n for n, v in enumerate(values) if v != values[0]), 0)
        if not group or any(v != values[0] + n // group for n, v in enumerate(values)):
            return None
        varying = algebra.add(algebra.floordiv(turn, group), Const(values[0]))
    return algebra.add(algebra.build(forms[0][0], 0), varying)
