"""Weights that are no softmax: an elementwise function of the score, and what the row is divided by afterwards.

``o = (sum_j p v) / divisor`` with ``p`` a sigmoid, a ReLU, a decayed score ... of one element, and a divisor made of
indices, sizes and at most one row sum ``l`` (of p, or of |p|).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.expr import NEG_INF, TRUE, Call, Const, Expr, Read, Var, conjuncts, rebuild, substitute
from .elements import Elements
from .masks import Peeled, peel
from .nodes import Algebra, Reduce, both, factors, negate, variables, walk

ROW_SUM = Var("l")
_POINTS = 64
FindValue = Callable[[list[Expr], str], Read | None]


@dataclass(frozen=True)
class Weights:
    """Weights of one output before its variables have their final names.

    `x` is the weight of one key, masks included; `rows` says what ``l`` in `divisor` sums: 'none' (it has none),
    'sum' or 'abs_sum'; `divisor` None stands for 1.
    """

    x: Expr
    key: str
    value: Read
    rows: str
    divisor: Expr | None


def weights_of(el: Elements, expr: Expr, find_value: FindValue) -> Weights | None:
    """`expr` as elementwise weights times an element of v, summed over the keys; None when it is nothing of the kind.

    What is read here is compared with the spec on whole outputs like any other reading.
    """
    over, under = factors(_without_nan_guards(expr))
    for candidate in over:
        if not isinstance(candidate, Reduce) or candidate.op != "sum":
            continue
        up, down = factors(candidate.body)
        value = find_value(up, candidate.var)
        # Keys are an axis before the features: q (k^T v) sums over features, and q is no tensor of values.
        if value is not None and value.index[-1] != Var(candidate.var):
            inside = [f for f in up if f is not value]
            outside = [f for f in over if f is not candidate]
            return _assemble(el, inside, down, outside, under, candidate.var, value)
    return None


def _without_nan_guards(expr: Expr) -> Expr:
    """`expr` without nan_to_num: the check on whole outputs says whether it mattered."""
    if isinstance(expr, Call) and expr.op == "nan_to_num":
        return _without_nan_guards(expr.args[0])
    if isinstance(expr, Reduce):
        return Reduce(expr.op, expr.var, expr.extent, _without_nan_guards(expr.body))
    return rebuild(expr, _without_nan_guards)


def _assemble(
    el: Elements,
    inside: list[Expr],
    below: list[Expr],
    outside: list[Expr],
    under: list[Expr],
    key: str,
    value: Read,
) -> Weights | None:
    plain_over = [f for f in outside if not _reduces(f)]
    plain_under = [f for f in under if not _reduces(f)]
    # A scale of a weight that is linear in the score was taken out of the sum over the keys: it belongs to the score.
    linear = any(isinstance(f, Reduce) for f in inside)
    x = _product([*inside, *plain_over], [*below, *(plain_under if linear else [])])
    if not _one_product(x, key) or any(_features(f, value, key) for f in (*plain_over, *plain_under)):
        return None
    kinds: set[str] = set()
    rows_over = [_with_row_sum(el, f, x, key, kinds) for f in outside if _reduces(f)]
    rows_under = [_with_row_sum(el, f, x, key, kinds) for f in under if _reduces(f)]
    if len(kinds) > 1 or any(_reduces(f) for f in (*rows_over, *rows_under)):
        return None
    if kinds and any(isinstance(e, Call) and e.op in ("exp", "exp2") and _reduces(e) for e in walk(x)):
        return None  # exp(s) / (sum + eps) is a softmax whose maximum was never subtracted; a decay has no s
    bottom = [*rows_under, *([] if linear else plain_under)]
    divisor = _product(bottom, rows_over) if bottom or rows_over else None
    return Weights(x, key, value, kinds.pop() if kinds else "none", divisor)


def _reduces(expr: Expr) -> bool:
    return any(isinstance(e, Reduce) for e in walk(expr))


def _features(expr: Expr, value: Read, key: str) -> bool:
    """True when a factor varies with an index of v that is no index of the weights: the feature, so it is no weight."""
    own = {e.name for e in value.index if isinstance(e, Var)} - {key}
    return any(isinstance(e, Read) and len(own & variables(e)) == len(own) > 2 for e in walk(expr))


def _one_product(x: Expr, key: str) -> bool:
    """True when the only reduction in `x` is one product of two tensors, one of which is read at the key."""
    found = {e for e in walk(x) if isinstance(e, Reduce)}
    if len(found) != 1:
        return False
    body = factors(next(iter(found)).body)[0]
    reads = [f for f in body if isinstance(f, Read)]
    return len(reads) == len(body) == 2 and sum(key in variables(r) for r in reads) == 1


def _product(over: Sequence[Expr], under: Sequence[Expr]) -> Expr:
    """The product of `over` divided by each of `under`; 1.0 when both are empty."""
    result: Expr | None = None
    for f in over:
        if f != Const(1.0):
            result = f if result is None else Call("mul", (result, f))
    result = Const(1.0) if result is None else result
    for f in under:
        result = Call("div", (result, f))
    return result


# ---- row sums -----------------------------------------------------------------------------------------------------


def _with_row_sum(el: Elements, expr: Expr, x: Expr, key: str, kinds: set[str]) -> Expr:
    """`expr` with sums of the weights (or of their absolute values) over the keys written as ``l``."""
    if isinstance(expr, Reduce) or (isinstance(expr, Call) and expr.op in ("mul", "div")):
        over, under = factors(expr)
        for f in over:
            rest = [g for g in over if g is not f]
            found = _sum_of_weights(el, f, rest, under, x, key) if isinstance(f, Reduce) else None
            if found is not None:
                kind, up, down = found
                kinds.add(kind)
                up, down = ([_with_row_sum(el, g, x, key, kinds) for g in part] for part in (up, down))
                return _product([ROW_SUM, *up], down)
    if isinstance(expr, Call):
        return Call(expr.op, tuple(_with_row_sum(el, a, x, key, kinds) for a in expr.args))
    return expr


def _sum_of_weights(
    el: Elements, sum_: Reduce, over: list[Expr], under: list[Expr], x: Expr, key: str
) -> tuple[str, list[Expr], list[Expr]] | None:
    """('sum' | 'abs_sum', factors left above, factors left below) of ``sum_ * over / under`` as a multiple of l."""
    if sum_.op != "sum":
        return None
    body = el.algebra.substitute(sum_.body, {Var(sum_.var): Var(key)})
    kind = "sum"
    if isinstance(body, Call) and body.op == "abs":
        kind, body = "abs_sum", body.args[0]
    want_over, want_under = (Counter(f) for f in factors(x))
    up, down = factors(body)
    if kind == "sum":
        up, down = [*up, *over], [*down, *under]
    have_over, have_under = Counter(up), Counter(down)
    if want_over - have_over or want_under - have_under:
        return None
    left, below = list((have_over - want_over).elements()), list((have_under - want_under).elements())
    if kind == "abs_sum":
        return None if left or below else (kind, over, under)
    return kind, left, below


# ---- masks --------------------------------------------------------------------------------------------------------


def peel_weight(algebra: Algebra, x: Expr) -> Peeled:
    """Split a weight into its value where attended and the mask outside of which it is exactly 0, whatever the score.

    A fill whose weight is not 0 stays inside the weight, and nothing is masked by it.
    """
    over, under = factors(x)
    keep: Expr = TRUE
    kept: list[Expr] = []
    for factor in over:
        value, mask = _zeroed(algebra, factor)
        kept += factors(value)[0] if isinstance(value, Call) and value.op == "mul" else [value]
        keep = both(keep, mask) if mask not in conjuncts(keep) else keep
    return Peeled(_as_said(kept, under), None if keep == TRUE else keep, Const(0.0))


def _as_said(over: list[Expr], under: list[Expr]) -> Expr:
    """A product with its numbers directly behind the score, as a scale is written."""
    numbers = [f for f in over if isinstance(f, Const)]
    below = [f for f in under if isinstance(f, Const)]
    scores = [f for f in over if f not in numbers and Var("s") in walk(f)]
    others = [f for f in over if f not in numbers and f not in scores]
    rest = [f for f in under if f not in below]
    power = scores.count(Var("s"))
    if power > 1 and not below and all(numbers.count(f) % power == 0 for f in numbers):
        # (q k scale)^2 was taken apart into its factors; the scale stays with each score.
        once = [f for f in dict.fromkeys(numbers) for _ in range(numbers.count(f) // power)]
        base = _product([Var("s"), *once], [])
        plain = [f for f in scores if f != Var("s")]
        return _product([*[base] * power, *plain, *others], rest)
    result = _product([*scores[:1], *numbers], below)
    return _product([result, *scores[1:], *others] if result != Const(1.0) else [*scores[1:], *others], rest)


def _zeroed(algebra: Algebra, expr: Expr) -> tuple[Expr, Expr]:
    """(value, keep) with ``expr == value where keep else 0``."""
    if algebra.type(expr) == "bool":
        return Const(1.0), expr
    if isinstance(expr, Call) and expr.op == "float" and algebra.type(expr.args[0]) == "bool":
        return Const(1.0), expr.args[0]
    if isinstance(expr, Call) and expr.op == "where":
        condition, yes, no = expr.args
        if _is_zero(yes):
            condition, yes, no = negate(condition), no, yes
        if _is_zero(no):
            inner = peel_weight(algebra, yes)
            return inner.score, both(condition, inner.mask or TRUE)
    for part, found in _masked_parts(algebra, expr):
        if found.mask is not None and _vanishes(algebra, expr, part, found.fill):
            value, more = _zeroed(algebra, substitute(expr, {part: found.score}))
            return value, both(found.mask, more)
    return expr, TRUE


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _masked_parts(algebra: Algebra, expr: Expr) -> Iterator[tuple[Expr, Peeled]]:
    """Parts of a weight that are masked: scores with a fill, and selections with a constant branch (a decay)."""
    for part in walk(expr):
        if not isinstance(part, Call):
            continue
        if part.op == "where":
            condition, yes, no = part.args
            if isinstance(no, Const):
                yield part, Peeled(yes, condition, no)
            elif isinstance(yes, Const):
                yield part, Peeled(no, negate(condition), yes)
        elif part.op in ("add", "sub", "mul", "div"):
            yield part, peel(algebra, part)


def _vanishes(algebra: Algebra, expr: Expr, part: Expr, fill: Expr) -> bool:
    """True when `expr` is exactly 0 with `part` at its fill, whatever else it depends on."""
    rng = np.random.default_rng(5)
    env: dict[str, Any] = {}
    names: dict[Expr, Expr] = {}
    replaced = substitute(expr, {part: Const(-math.inf) if fill == NEG_INF else fill})
    if any(not isinstance(e, (Const, Var, Read, Call)) for e in walk(replaced)):
        return False
    for e in walk(replaced):
        if isinstance(e, Read) and e not in names:
            names[e] = Var(f"read {len(names)}")
            env[f"read {len(names) - 1}"] = rng.normal(0.0, 4.0, _POINTS)
        elif isinstance(e, Var):
            top = algebra.extent.get(e.name)
            env[e.name] = rng.normal(0.0, 8.0, _POINTS) if top is None else rng.integers(0, top, _POINTS)
    try:
        value = np.asarray(evaluate(substitute(replaced, names), env))
    except (KeyError, TypeError, ValueError):
        return False
    return bool((value == 0).all())
