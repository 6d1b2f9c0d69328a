"""Scores in the kernel's unit: find the scale inside a score expression, and carry that into the unit of S."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..ir.evaluate import evaluate
from ..ir.expr import Call, Const, Expr, S, free_vars, reads, substitute, walk
from ..ir.simplify import simplify

_NAMED = (0.6931471805599453, 1.4426950408889634)  # ln 2, log2 e


def coefficient_of_s(expr: Expr, allowed: Callable[[str], bool]) -> Expr | None:
    """k where `expr` is ``k * s`` with k made of constants and `allowed` names; None otherwise."""
    if expr == S:
        return Const(1.0)
    if not isinstance(expr, Call) or not _mentions_s(expr):
        return None
    if expr.op in ("neg", "float"):
        inner = coefficient_of_s(expr.args[0], allowed)
        return None if inner is None else inner if expr.op == "float" else -inner
    if expr.op in ("mul", "div"):
        a, b = expr.args
        if expr.op == "mul" and _mentions_s(b) and not _mentions_s(a):
            a, b = b, a
        inner = coefficient_of_s(a, allowed)
        if inner is None or _mentions_s(b) or reads(b) or not all(allowed(n) for n in free_vars(b)):
            return None
        return simplify(Call(expr.op, (inner, b)))
    return None


def _mentions_s(expr: Expr) -> bool:
    return "s" in free_vars(expr)


def linear_parts(expr: Expr, allowed: Callable[[str], bool]) -> list[Expr]:
    """The coefficients of all maximal ``k * s`` inside `expr`, in order."""
    k = coefficient_of_s(expr, allowed)
    if k is not None:
        return [k]
    if isinstance(expr, Call):
        return [k for a in expr.args for k in linear_parts(a, allowed)]
    return []


def number(expr: Expr, **values: float) -> float:
    """The value of a closed expression."""
    return float(evaluate(expr, values))


def scaled(expr: Expr, alpha: float, head_dim: int) -> Expr:
    """`expr` rewritten over x, the scaled score ``alpha * s`` (still called ``s``): each ``k * s`` becomes ``(k /
    alpha) * s``.
    """
    k = coefficient_of_s(expr, lambda name: name == "D")
    if k is not None:
        ratio = number(k, D=head_dim) / alpha
        return S if abs(ratio - 1.0) < 1e-9 else S * Const(ratio)
    if isinstance(expr, Call):
        return Call(expr.op, tuple(scaled(a, alpha, head_dim) for a in expr.args))
    return expr


def to_site(natural: Expr, unit: Expr) -> Expr:
    """The value of S for the natural score `natural` (over the scaled score s), in the unit of the site: ``natural /
    unit``.

    `unit` is natural per S. Sums, selections and products are entered, so that a bare ``s`` stays a bare ``s`` and
    only the other terms carry the unit; inside a nonlinear function ``s`` becomes ``s * unit``.
    """
    if unit == Const(1.0):
        return natural
    return simplify(_divide(natural, unit))


def _divide(e: Expr, unit: Expr) -> Expr:
    if e == S:
        return S
    if isinstance(e, Const):
        return e if e.value == 0 or e.value in (float("inf"), float("-inf")) else e / unit
    if isinstance(e, Call):
        if e.op in ("add", "sub", "neg", "mul", "div") and not _mentions_s(e):
            return e / unit  # one factor for the whole term, not one for each of its parts
        if e.op in ("add", "sub"):
            return Call(e.op, tuple(_divide(a, unit) for a in e.args))
        if e.op == "neg":
            return Call("neg", (_divide(e.args[0], unit),))
        if e.op == "where":
            return Call("where", (_inside(e.args[0], unit), _divide(e.args[1], unit), _divide(e.args[2], unit)))
        if e.op in ("mul", "div"):
            return _divide_product(e, unit)
    return _inside(e, unit) / unit


def _divide_product(e: Call, unit: Expr) -> Expr:
    a, b = e.args
    if e.op == "div":
        return Call("div", (_divide(a, unit), _inside(b, unit)))
    # The unit goes to the factor that has s in a linear place, else to the factor that does not vary, where it can be
    # hoisted.
    if b == S or (_mentions_s(b) and not _mentions_s(a)):
        a, b = b, a
    if a == S:
        return S * _inside(b, unit)
    if _mentions_s(a) and not _mentions_s(b):
        return _inside(a, unit) * (b / unit) if not _linear_shape(a) else _divide(a, unit) * b
    if _varies(b) and not _varies(a):
        a, b = b, a
    return _inside(a, unit) * (_inside(b, unit) / unit)


def _linear_shape(e: Expr) -> bool:
    return e == S or (
        isinstance(e, Call) and e.op in ("add", "sub", "neg", "mul", "div") and any(map(_linear_shape, e.args))
    )


def _varies(e: Expr) -> bool:
    return bool(free_vars(e) & {"i", "j", "s"})


def _inside(e: Expr, unit: Expr) -> Expr:
    return substitute(e, {S: S * unit})


def split_product(expr: Expr, invariant: Callable[[Expr], bool]) -> Expr:
    """`expr` with the invariant factors of each product brought together: ``a * (x / b)`` -> ``x * (a / b)``. Equal
    over the reals.
    """
    if not isinstance(expr, Call):
        return expr
    if invariant(expr):
        return expr
    if expr.op not in ("mul", "div"):
        return Call(expr.op, tuple(split_product(a, invariant) for a in expr.args))
    over: list[Expr] = []
    under: list[Expr] = []
    _factors(expr, over, under)
    if any(not invariant(u) for u in under):
        return Call(expr.op, tuple(split_product(a, invariant) for a in expr.args))
    varying = [split_product(f, invariant) for f in over if not invariant(f)]
    fixed = [f for f in over if invariant(f)]
    result = varying[0]
    for factor in varying[1:]:
        result = result * factor
    constant = _quotient(fixed, under)
    return result if constant is None else result * constant


def _factors(expr: Expr, over: list[Expr], under: list[Expr]) -> None:
    if isinstance(expr, Call) and expr.op == "mul":
        _factors(expr.args[0], over, under)
        _factors(expr.args[1], over, under)
    elif isinstance(expr, Call) and expr.op == "div":
        _factors(expr.args[0], over, under)
        _factors(expr.args[1], under, over)
    else:
        over.append(expr)


def _quotient(over: list[Expr], under: list[Expr]) -> Expr | None:
    """The product of `over` by that of `under`, plain numbers of each side folded; None for 1."""
    top, bottom = _fold_numbers(over), _fold_numbers(under)
    if not bottom:
        return _product(top) if top else None
    return (_product(top) if top else Const(1.0)) / _product(bottom)


def _fold_numbers(parts: list[Expr]) -> list[Expr]:
    numbers = [p for p in parts if isinstance(p, Const) and not isinstance(p.value, bool)]
    others = [p for p in parts if p not in numbers]
    if len(numbers) > 1:
        # ln 2 and log2 e have names in most kernels, and stay apart unless they make a whole number.
        named = [n for n in numbers if n.value in _NAMED]
        value = math.prod(float(n.value) for n in numbers)
        whole = round(value)
        if whole and math.isclose(value, whole, rel_tol=1e-12):
            value, named = float(whole), []
        else:
            value = math.prod(float(n.value) for n in numbers if n not in named)
        numbers = [*([] if value == 1.0 else [Const(value)]), *named]
    return others + numbers


def _product(parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def has_nonlinear(expr: Expr) -> bool:
    """True when `expr` applies a function to s."""
    return any(
        isinstance(e, Call) and e.op not in ("add", "sub", "mul", "div", "neg", "where") and _mentions_s(e)
        for e in walk(expr)
    )
