"""Weights that are changed after the softmax and then normalised again: a softmax of other scores.

``p = softmax(x) * keep;  p / p.sum()`` is ``softmax(x where keep)``, and ``p = softmax(x) ** 2;  p / p.sum()`` is
``softmax(2 x)``: the first row sum cancels. Exact, and tried only where the weights are no softmax as they stand.
"""

from __future__ import annotations

from ..ir.expr import NEG_INF, Call, Const, Expr, rebuild
from .nodes import Algebra, Reduce, factors, join_terms, negate, walk

_ZEROS = (Const(0), Const(0.0))


def normalised_again(algebra: Algebra, expr: Expr) -> Expr:
    """`expr` with products of exponentials as one, conditions inside of them, and row sums cancelled."""
    if isinstance(expr, Reduce):
        body = normalised_again(algebra, expr.body)
        if expr.op == "sum":
            return algebra.sum(expr.var, expr.extent, body)
        return Reduce(expr.op, expr.var, expr.extent, body)
    if not isinstance(expr, Call):
        return expr
    inner = rebuild(expr, lambda e: normalised_again(algebra, e))
    assert isinstance(inner, Call)
    if inner.op == "where" and _ZEROS[0] != inner.args[1] and inner.args[2] in _ZEROS:
        return _product(algebra, *_joined(factors(inner.args[1]), inner.args[0]))
    if inner.op == "where" and inner.args[1] in _ZEROS:
        return _product(algebra, *_joined(factors(inner.args[2]), negate(inner.args[0])))
    if inner.op == "pow" and isinstance(inner.args[1], Const):
        return _power(inner.args[0], inner.args[1]) or inner
    return _product(algebra, *factors(inner)) if inner.op in ("mul", "div") else inner


def _joined(parts: tuple[list[Expr], list[Expr]], condition: Expr) -> tuple[list[Expr], list[Expr]]:
    return [*parts[0], condition], parts[1]


def _power(base: Expr, by: Const) -> Expr | None:
    """The power of a product with an exponential in it, factor by factor; None for any other."""
    over, under = factors(base)
    if not any(_is_exp(f) for f in over):
        return None

    def raised(f: Expr) -> Expr:
        if isinstance(f, Call) and f.op == "exp":
            return Call("exp", (Call("mul", (f.args[0], by)),))
        return Call("pow", (f, by))

    return _quotient([raised(f) for f in over], [raised(f) for f in under])


def _product(algebra: Algebra, over: list[Expr], under: list[Expr]) -> Expr:
    """One exponential for all of them, which is 0 where a condition among the factors fails."""
    over, under = list(over), list(under)
    for f in list(under):
        if f in over and any(isinstance(e, Reduce) for e in walk(f)):
            over.remove(f)
            under.remove(f)
    exponents = [f.args[0] for f in over if isinstance(f, Call) and f.op == "exp"]
    conditions = [c for f in over if (c := _condition(algebra, f)) is not None]
    if not exponents or len(exponents) + len(conditions) < 2:
        return _quotient(over, under)
    x = exponents[0]
    if len(exponents) > 1:
        same = all(e == x for e in exponents)
        x = Call("mul", (x, Const(float(len(exponents))))) if same else join_terms([(1, e) for e in exponents])
    for condition in conditions:
        x = Call("where", (condition, x, NEG_INF))
    rest = [f for f in over if not _is_exp(f) and _condition(algebra, f) is None]
    return _quotient([Call("exp", (x,)), *rest], under)


def _is_exp(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "exp"


def _condition(algebra: Algebra, expr: Expr) -> Expr | None:
    """The condition that a factor of 0 or 1 is; None for any other factor."""
    if isinstance(expr, Call) and expr.op == "float":
        expr = expr.args[0]
    return expr if algebra.type(expr) == "bool" else None


def _quotient(over: list[Expr], under: list[Expr]) -> Expr:
    result: Expr | None = None
    for f in over:
        result = f if result is None else Call("mul", (result, f))
    result = Const(1.0) if result is None else result
    for f in under:
        result = Call("div", (result, f))
    return result
