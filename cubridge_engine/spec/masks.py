"""Taking the mask out of a score: ``where(keep, s, -inf)``, ``s + where(keep, 0, -inf)`` and their relatives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.expr import NEG_INF, TRUE, Call, Const, Expr, Var
from .nodes import Algebra, both, negate, walk

# Adding a number this large absorbs any score in float32 and float64 alike: the sum is the number itself, exactly.
_ABSORBS = 1e30


@dataclass(frozen=True)
class Peeled:
    """A score under a mask; `mask` is None when every key is kept."""

    score: Expr
    mask: Expr | None
    fill: Expr


def _has_score(expr: Expr) -> bool:
    return any(e == Var("s") for e in walk(expr))


def _absorbing(expr: Expr) -> bool:
    return isinstance(expr, Const) and float(expr.value) <= -_ABSORBS


def peel(algebra: Algebra, x: Expr) -> Peeled:
    """Split `x` into score, mask and fill. A finite sentinel that arithmetic still shifts stays inside the score."""
    score, keep, fill = _peel(x)
    return Peeled(score, None if keep == TRUE else keep, fill if fill is not None else NEG_INF)


def _peel(x: Expr) -> tuple[Expr, Expr, Expr | None]:
    """(score, keep, fill); fill is None when nothing is masked."""
    if not isinstance(x, Call):
        return x, TRUE, None
    if x.op == "where":
        return _peel_where(x)
    if x.op in ("add", "sub"):
        return _peel_sum(x)
    if x.op in ("mul", "div") and isinstance(x.args[1], Const) and float(x.args[1].value) > 0:
        # A positive factor keeps -inf where it is.
        score, keep, fill = _peel(x.args[0])
        if fill is not None and fill == NEG_INF:
            return Call(x.op, (score, x.args[1])), keep, fill
    return x, TRUE, None


def _peel_where(x: Call) -> tuple[Expr, Expr, Expr | None]:
    condition, yes, no = x.args
    if isinstance(yes, Const) and _has_score(no):
        condition, yes, no = negate(condition), no, yes
    if not isinstance(no, Const) or not _has_score(yes):
        return x, TRUE, None
    score, keep, fill = _peel(yes)
    if fill is None or fill == no:
        return score, both(keep, condition), no
    return yes, condition, no  # two different fills: the inner one stays in the score


def _peel_sum(x: Call) -> tuple[Expr, Expr, Expr | None]:
    left, right = x.args
    if x.op == "add" and _has_score(right) and not _has_score(left):
        left, right = right, left
    score, keep, fill = _peel(left)
    shift, also, lowest = _addend(right) if x.op == "add" else (right, TRUE, None)
    if fill is not None and fill != NEG_INF and not _absorbing(fill):
        score, keep, fill = left, TRUE, None  # a small sentinel is shifted by what is added: keep it inside
    if lowest is not None and fill is not None and lowest != fill:
        fill = NEG_INF if NEG_INF in (lowest, fill) and math.isinf(float(_value(lowest))) else None
        if fill is None:
            return x, TRUE, None
    if isinstance(shift, Const) and shift.value == 0:
        return score, both(keep, also), lowest if lowest is not None else fill
    return Call(x.op, (score, shift)), both(keep, also), lowest if lowest is not None else fill


def _value(expr: Expr) -> float:
    return float(expr.value) if isinstance(expr, Const) else math.nan


def _addend(expr: Expr) -> tuple[Expr, Expr, Expr | None]:
    """An additive mask as (finite part, keep, fill)."""
    if isinstance(expr, Call) and expr.op == "where" and not _has_score(expr):
        condition, yes, no = expr.args
        if _absorbing(yes) and not _absorbing(no):
            condition, yes, no = negate(condition), no, yes
        if _absorbing(no):
            inner, keep, fill = _addend(yes)
            if fill is None or fill == no:
                return inner, both(keep, condition), no
    if isinstance(expr, Call) and expr.op == "add":
        first, keep, fill = _addend(expr.args[0])
        second, also, low = _addend(expr.args[1])
        if (fill is not None or low is not None) and (fill is None or low is None or fill == low):
            zero = Const(0.0)
            total = second if first == zero else first if second == zero else Call("add", (first, second))
            return total, both(keep, also), fill if fill is not None else low
    return expr, TRUE, None
