"""Scores as an engineer would write them: kernels compute ``tanh`` by ``exp2``, fold the scale into biases, and so on.

Every rewriting is checked by value at many points; where it does not hold the expression stays as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..ir.evaluate import UnboundName
from ..ir.expr import Call, Const, Expr, free_vars, rebuild
from ..spec.nodes import factors, join_terms, terms
from ..transfer.sampling import bind_unknown, points, value_at

LN2 = math.log(2.0)
_INTO = frozenset({"add", "sub", "mul", "div", "neg", "tanh", "sigmoid", "exp", "exp2", "max", "min", "where", "abs"})
_SUMS = frozenset({"add", "sub"})
_EXACT = 1e-9


def readable(expr: Expr) -> Expr:
    """`expr` in a plainer form with the same values."""
    plain = _plain(expr)
    return plain if plain != expr and _same(expr, plain) else expr


def _same(a: Expr, b: Expr) -> bool:
    env = bind_unknown(points((a, b), tile=(64, 64), count=2000), free_vars(a) | free_vars(b))
    env["D"] = 64
    try:
        left, right = (np.asarray(value_at(e, env), dtype=float) for e in (a, b))
    except (UnboundName, ValueError, TypeError):
        return False
    return bool(np.allclose(left, right, rtol=_EXACT, atol=_EXACT, equal_nan=True))


def _plain(expr: Expr) -> Expr:
    if not isinstance(expr, Call) or expr.op not in _INTO:
        return expr
    expr = rebuild(expr, _plain)
    assert isinstance(expr, Call)
    known = _hyperbolic(expr) or _logistic(expr)
    if known is not None:
        return _plain(known)
    if expr.op in ("add", "sub", "mul", "div", "neg"):
        parts = [(sign * s, t) for sign, term in terms(expr) for s, t in _distributed(term)]
        return join_terms(parts)
    return expr


def _hyperbolic(expr: Call) -> Expr | None:
    """``a - 2 a / (1 + exp2(u))`` as ``a * tanh(u * ln 2 / 2)``; with exp alike."""
    if expr.op != "sub":
        return None
    a, rest = expr.args
    u = _over_one_plus(rest)
    if u is None or not isinstance(rest, Call) or not _equal(rest.args[0], Const(2.0) * a):
        return None
    return a * Call("tanh", (u * 0.5,))


def _logistic(expr: Call) -> Expr | None:
    """``1 / (1 + exp2(-u))`` as ``sigmoid(u * ln 2)``."""
    u = _over_one_plus(expr)
    return None if u is None or expr.args[0] != Const(1.0) else Call("sigmoid", (Call("neg", (u,)),))


def _over_one_plus(expr: Expr) -> Expr | None:
    """``u`` of ``x / (1 + exp(u))``, in natural units."""
    if not isinstance(expr, Call) or expr.op != "div":
        return None
    under = expr.args[1]
    if not isinstance(under, Call) or under.op != "add":
        return None
    for one, power in (under.args, under.args[::-1]):
        if one == Const(1.0) and isinstance(power, Call) and power.op in ("exp", "exp2"):
            return power.args[0] * (LN2 if power.op == "exp2" else 1.0)
    return None


def _equal(a: Expr, b: Expr) -> bool:
    return _Product.of(a).made() == _Product.of(b).made()


def _distributed(term: Expr) -> list[tuple[int, Expr]]:
    """A product, over the terms of a sum of scores in it; its factors cancelled and its numbers one number."""
    over, _ = factors(term)
    sums = [f for f in over if isinstance(f, Call) and f.op in _SUMS and "s" in free_vars(f)]
    if len(sums) != 1:
        return [(1, _Product.of(term).made())]
    whole = _Product.of(term)
    whole.over.remove(sums[0])
    return [(sign, _Product.of(part, whole).made()) for sign, part in terms(sums[0])]


@dataclass(slots=True)
class _Product:
    """A number, and factors above and below the fraction bar."""

    number: float | int = 1
    over: list[Expr] = field(default_factory=list[Expr])
    under: list[Expr] = field(default_factory=list[Expr])

    @classmethod
    def of(cls, expr: Expr, times: _Product | None = None) -> _Product:
        """The factors of `expr`, times those of another product."""
        made = cls() if times is None else cls(times.number, list(times.over), list(times.under))
        over, under = factors(expr)
        fresh: list[Expr] = []
        for factor in over:
            if isinstance(factor, Const) and not isinstance(factor.value, bool):
                made.number *= factor.value
            elif factor in made.under:
                made.under.remove(factor)
            else:
                fresh.append(factor)
        made.over = [*fresh, *made.over]
        for factor in under:
            if isinstance(factor, Const) and not isinstance(factor.value, bool) and factor.value != 0:
                made.number /= factor.value
            elif factor in made.over:
                made.over.remove(factor)
            else:
                made.under.append(factor)
        return made

    def made(self) -> Expr:
        """The product again: its number first, or under the bar where it is the inverse of a whole number."""
        number = _rounded(self.number)
        inverse = _rounded(1.0 / number) if isinstance(number, float) and 0 < abs(number) < 1 else None
        below = inverse if inverse is not None and inverse == round(inverse) and self.over else None
        parts = [*self.over]
        if below is None and (number != 1 or not parts):
            parts.insert(0, Const(number))
        result = parts[0]
        for factor in parts[1:]:
            result = result * factor
        for factor in (*self.under, *([Const(below)] if below is not None else [])):
            result = result / factor
        return result


def _rounded(number: float | int) -> float | int:
    return number if isinstance(number, int) else float(f"{number:.12g}")
