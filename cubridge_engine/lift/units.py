"""In which units the scores stand: read off the exponential."""

from __future__ import annotations

import math

from ..ir.evaluate import evaluate
from ..ir.expr import Call, Const, Expr, Var, free_vars, reads, walk
from ..ir.nodes import For, If, Map, Op, Score
from ..ir.simplify import simplify

LN2 = math.log(2)


def operations(body: tuple[Op, ...]) -> list[Op]:
    """All operations of a body, nested ones too, in order."""
    found: list[Op] = []
    for op in body:
        found.append(op)
        if isinstance(op, For):
            found.extend(operations(op.body))
        elif isinstance(op, If):
            found.extend(operations((*op.body, *op.orelse)))
    return found


def exp_unit(body: tuple[Op, ...]) -> tuple[Expr, dict[str, str]]:
    """(factor u with natural score = S * u, roles of the scale parameters). S is the tile that exp reads."""
    ops = operations(body)
    power = next((op for op in ops if isinstance(op, Map) and op.role == "exp"), None)
    if power is None:
        return Const(1.0), weight_scales(ops)
    call = next(
        (x for x in walk(power.expr) if isinstance(x, Call) and x.op in ("exp", "exp2") and "s" in free_vars(x)), None
    )
    if call is None:
        return Const(1.0), {}
    factor = coefficient(call.args[0]) or Const(1.0)
    base_two = call.op == "exp2"
    unit: Expr = Call("mul", (factor, Const(LN2))) if base_two else factor
    if factor == Const(1.0):
        unit = Const(LN2) if base_two else Const(1.0)
    roles: dict[str, str] = {}
    unit = simplify(unit)
    for name in _scales(factor):
        roles[name] = scale_role(unit)
    for op in ops:
        if isinstance(op, Score) and (inner := coefficient(op.expr)) is not None:
            for name in _scales(inner):
                roles.setdefault(name, scale_role(Call("mul", (inner, unit))))
    return unit, roles


def weight_scales(ops: list[Op]) -> dict[str, str]:
    """Roles of the parameters that multiply the raw score where the weights are no exponential of a row's own."""
    roles: dict[str, str] = {}
    for op in ops:
        for factor, base_two in _linear_parts(op.expr, False) if isinstance(op, Score) else ():
            for name in _scales(factor):
                roles.setdefault(name, scale_role(Call("mul", (factor, Const(LN2))) if base_two else factor))
    return roles


def _linear_parts(expr: Expr, base_two: bool) -> list[tuple[Expr, bool]]:
    """(coefficient, whether it stands in an exp2) of every largest part that is linear in `s`."""
    factor = coefficient(expr)
    if factor is not None:
        return [(factor, base_two)]
    if not isinstance(expr, Call) or "s" not in free_vars(expr):
        return []
    inside = base_two or expr.op == "exp2"
    return [part for a in expr.args for part in _linear_parts(a, inside)]


def scale_role(unit: Expr) -> str:
    """scale_log2 when `unit` (natural score per raw score) is a parameter times ln 2, else scale."""
    value = evaluate(unit, dict.fromkeys(free_vars(unit), 1.0))
    return "scale_log2" if abs(float(value) - LN2) < 1e-4 else "scale"


def _scales(factor: Expr | None) -> list[str]:
    return [x.name for x in walk(factor) if isinstance(x, Var)] if factor is not None else []


def coefficient(expr: Expr) -> Expr | None:
    """The factor of `s` in a sum of products; None when `s` does not enter linearly."""
    if expr == Var("s"):
        return Const(1.0)
    if not isinstance(expr, Call) or "s" not in free_vars(expr):
        return None
    if expr.op in ("add", "sub"):
        a, b = expr.args
        if "s" in free_vars(a):
            return coefficient(a) if "s" not in free_vars(b) else None
        inner = coefficient(b)
        return inner if expr.op == "add" or inner is None else Call("neg", (inner,))
    if expr.op == "mul":
        a, b = expr.args
        if "s" in free_vars(a) and "s" in free_vars(b):
            return None
        inner, other = (coefficient(a), b) if "s" in free_vars(a) else (coefficient(b), a)
        if reads(other):
            return None  # a factor that is data (a temperature for each head) belongs to the score, not to its unit
        return None if inner is None else other if inner == Const(1.0) else Call("mul", (inner, other))
    if expr.op == "div" and "s" not in free_vars(expr.args[1]):
        inner = coefficient(expr.args[0])
        return None if inner is None else Call("div", (inner, expr.args[1]))
    if expr.op == "where":
        return coefficient(expr.args[1]) or coefficient(expr.args[2])
    if expr.op == "neg":
        inner = coefficient(expr.args[0])
        return None if inner is None else Call("neg", (inner,))
    return None
