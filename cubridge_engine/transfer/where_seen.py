"""A score need only be right for keys that a row attends: what its mask says may be taken for granted."""

from __future__ import annotations

from ..ir.expr import Call, Const, Expr, conjuncts, rebuild
from ..ir.simplify import linear_terms
from .ranges import Types

_LOWER = {"ge": 0, "gt": 1}  # a op b: a - b is at least this, over the integers


def where_seen(expr: Expr, mask: Expr | None, types: Types) -> Expr:
    """`expr` with ``max(i - j, 0)`` as ``i - j`` where the mask keeps ``j <= i`` only, and the like."""
    if mask is None or not isinstance(expr, Call):
        return expr
    inner = rebuild(expr, lambda e: where_seen(e, mask, types))
    if not isinstance(inner, Call) or inner.op != "max":
        return inner
    for value, floor in (inner.args, inner.args[::-1]):
        if isinstance(floor, Const) and any(_at_least(value, floor, kept, types) for kept in conjuncts(mask)):
            return value
    return inner


def _at_least(value: Expr, floor: Const, kept: Expr, types: Types) -> bool:
    """True when ``value >= floor`` follows from `kept`, both linear in integers."""
    if not isinstance(kept, Call) or kept.op not in ("le", "lt", "ge", "gt") or not float(floor.value).is_integer():
        return False
    a, b = kept.args if kept.op in _LOWER else kept.args[::-1]
    least = _LOWER[kept.op if kept.op in _LOWER else {"le": "ge", "lt": "gt"}[kept.op]]
    terms, constant = linear_terms(Call("sub", (value, Call("sub", (a, b)))), types)
    return not terms and constant + least >= float(floor.value)
