"""One traced output taken apart: the exponent of its softmax, the element of v, other terms of the denominator."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from ..ir.expr import NEG_INF, Call, Const, Expr, Read, Var
from .elements import Elements, Refused
from .nodes import Reduce, factors, join_terms, terms, variables, walk
from .normalisers import weights_of
from .weights_again import normalised_again


@dataclass
class Parts:
    """One output, taken apart before its variables have their final names."""

    x: Expr
    key: str  # the variable of the keys in x
    value: Read | None
    sinks: list[Expr]
    vars: list[Expr]
    normaliser: str = "softmax"
    divisor: Expr | None = None  # over the row sum l; None: 1


def _unguard(expr: Expr) -> Expr:
    """Drop what only protects rows without keys: the check on whole outputs, empty rows included, comes later."""
    while isinstance(expr, Call):
        kept = _guarded(expr)
        if kept is None:
            break
        expr = kept
    return expr


def _guarded(expr: Call) -> Expr | None:
    """What a guard protects: ``where(c, x, 0)``, ``where(isnan(..), 0, x)``, ``nan_to_num(x)``, ``max(x, tiny)``."""
    if expr.op == "where":
        condition, yes, no = expr.args
        if _is_zero(no):
            return yes
        tested = any(isinstance(e, Call) and e.op == "isnan" for e in walk(condition))
        return no if _is_zero(yes) or tested else None
    simple = expr.op in ("nan_to_num", "float") or (expr.op == "max" and isinstance(expr.args[1], Const))
    return expr.args[0] if simple else None


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _flat(expr: Expr) -> tuple[list[Expr], list[Expr]]:
    """Factors of a product whose factors may be guarded."""
    over: list[Expr] = []
    under: list[Expr] = []
    for items, mine, other in ((factors(expr)[0], over, under), (factors(expr)[1], under, over)):
        for item in items:
            bare = _unguard(item)
            if bare == item:
                mine.append(item)
            else:
                up, down = _flat(bare)
                mine.extend(up)
                other.extend(down)
    return over, under


def _strip_row(expr: Expr, key: str) -> Expr:
    """An exponent without its per-row constants (the row maximum, a logsumexp): they cancel in the quotient."""
    kept = [
        (sign, t) for sign, t in terms(expr) if key in variables(t) or not any(isinstance(e, Reduce) for e in walk(t))
    ]
    return join_terms(kept)


# Weights that are changed after the softmax, or divided by something else than its row sum.
_PERHAPS_NORMALISED_AGAIN = ("CB221", "CB225", "CB227", "CB229", "CB234", "CB259")


def take_apart(el: Elements, expr: Expr, outs: list[Expr]) -> Parts:
    """One output as a softmax or, failing that, as elementwise weights. Raises Refused."""
    try:
        return _softmax_parts(el, expr, outs)
    except Refused as refused:
        if refused.code in _PERHAPS_NORMALISED_AGAIN:
            again = normalised_again(el.algebra, expr)
            with suppress(Refused):
                return _softmax_parts(el, again, outs)
        found = weights_of(el, expr, lambda over, key: _value_read(over, key, outs))
        if found is None:
            raise
    return Parts(found.x, found.key, found.value, [], outs, found.rows, found.divisor)


def _softmax_parts(el: Elements, expr: Expr, outs: list[Expr]) -> Parts:
    over, under = _flat(expr)
    sums = [f for f in over if isinstance(f, Reduce) and f.op == "sum"]
    if any(_values_first(candidate, outs[-1]) for candidate in sums if outs):
        raise Refused("CB253")
    for candidate in sums:
        up, down = _flat(candidate.body)
        value = _value_read(up, candidate.var, outs)
        if value is not None:
            rest = [f for f in over if f is not candidate] + [f for f in up if f is not value]
            return _weights(el, rest, under + down, candidate.var, value, outs)
        if any(isinstance(f, Call) and f.op == "exp" for f in up):
            raise _unusable_value(up, candidate.var)
    lse = _logsumexp(el, expr, outs)
    if lse is not None:
        return lse
    if any(isinstance(f, Call) and f.op == "exp" for f in over) and under:
        raise Refused("CB221")
    added = [t for _, t in terms(expr)]
    if len(added) > 1 and sum(any(isinstance(e, Reduce) for e in walk(t)) for t in added) > 1:
        raise Refused("CB233", None, reason="their results are added")
    if len(sums) == 1 and sum(isinstance(f, Read) for f in _flat(sums[0].body)[0]) == 1:
        raise Refused("CB227")
    raise Refused("CB228", None, reason="the output is not a weighted sum of values over the keys")


def _values_first(total: Reduce, feature: Expr) -> bool:
    """True for ``sum_d f(q[i, d]) * (sum_j g(k[j, d]) * v[j, e])``: keys meet values before any query meets a key."""
    products: list[Expr] = []
    queries: list[Expr] = []
    for f in _flat(total.body)[0]:
        if total.var not in variables(f):
            continue
        whole = isinstance(f, Reduce) and isinstance(feature, Var) and feature.name in variables(f)
        (products if whole else queries).append(f)
    of_two = [p for p in products if len({e.tensor for e in walk(p) if isinstance(e, Read)}) > 1]
    plain = [f for f in queries if not any(isinstance(e, Reduce) for e in walk(f))]
    return bool(of_two) and bool(plain) and len(plain) == len(queries)


def _value_read(over: list[Expr], key: str, outs: list[Expr]) -> Read | None:
    """The factor that is an element of v: its feature index is an output variable that no other factor has."""
    for f in over:
        if not isinstance(f, Read) or key not in variables(f):
            continue
        others = frozenset[str]().union(*(variables(g) for g in over if g is not f))
        if any(isinstance(o, Var) and o in f.index and o.name not in others for o in outs):
            return f
    return None


def _unusable_value(over: list[Expr], key: str) -> Refused:
    """There are weights over the keys, but what they weigh is not plainly an element of v."""
    rest = [f for f in over if key in variables(f) and not (isinstance(f, Call) and f.op == "exp")]
    if any(isinstance(f, Read) for f in rest):
        return Refused("CB230", None, name="the output", reason="its feature axis is merged or cut up")
    names = sorted({e.tensor for f in rest for e in walk(f) if isinstance(e, Read)})
    return Refused(
        "CB231", None, name=" or ".join(names) or "v", reason=describe(rest[0]) if rest else "it is constant"
    )


def _weights(el: Elements, over: list[Expr], under: list[Expr], key: str, value: Read, outs: list[Expr]) -> Parts:
    exps = [f for f in over if isinstance(f, Call) and f.op == "exp" and key in variables(f)]
    if len(exps) != 1:
        if any(_mentions_exp(f) for f in over if isinstance(f, Call) and f.op in ("add", "sub")):
            raise Refused("CB233", None, reason="their weights are combined")
        product = any(isinstance(f, Reduce) for f in over)
        raise Refused("CB227" if product or over else "CB228", None, reason="no softmax between two products")
    gates = [f for f in over if isinstance(f, Call) and f.op == "sigmoid" and _logsumexp_terms(f.args[0])]
    for f in [g for g in over if g not in gates]:
        row_constant = isinstance(f, Call) and f.op == "exp" and any(isinstance(e, Reduce) for e in walk(f))
        if f is not exps[0] and not row_constant and f != Const(1.0):
            raise Refused("CB259" if key in variables(f) else "CB234", None, op=describe(f))
    argument = exps[0].args[0]
    totals = [z for z in under if any(isinstance(e, Reduce) for e in walk(z))]
    logs = [
        (t.args[0])
        for sign, t in terms(argument)
        if sign < 0 and isinstance(t, Call) and t.op == "log" and key not in variables(t)
    ]
    totals = totals or logs
    if len(totals) != 1 or len(under) > len(totals if not logs else []):
        raise Refused("CB227")
    x = _strip_row(argument, key)
    sinks = _denominator(el, totals[0], x, key)
    for gate in gates:
        sinks.append(_gate_sink(el, gate, Parts(x, key, value, sinks, outs)))
    return Parts(x, key, value, sinks, outs)


def _logsumexp_terms(expr: Expr) -> list[tuple[int, Expr]]:
    """The terms of a sum that make up a logsumexp: reductions, and logarithms of them."""
    return [(sign, t) for sign, t in terms(expr) if any(isinstance(e, Reduce) for e in walk(t))]


def _gate_sink(el: Elements, gate: Expr, main: Parts) -> Expr:
    """The sink t of ``o * sigmoid(lse - t)``: with Z = exp(lse), ``n/Z * Z/(Z + exp(t))`` is ``n/(Z + exp(t))``."""
    assert isinstance(gate, Call)
    row = _logsumexp_terms(gate.args[0])
    own = _logsumexp(el, join_terms(row), main.vars)
    if own is None or (el.algebra.substitute(own.x, {Var(own.key): Var(main.key)}), own.sinks) != (main.x, main.sinks):
        raise Refused("CB234", None, op="sigmoid")
    return join_terms([(-sign, t) for sign, t in terms(gate.args[0]) if (sign, t) not in row])


def _mentions_exp(expr: Expr) -> bool:
    return any(isinstance(e, Call) and e.op == "exp" for e in walk(expr))


def _denominator(el: Elements, total: Expr, x: Expr | None, key: str) -> list[Expr]:
    """Check that the denominator sums exp of the same scores, and return its other terms as logits (sinks)."""
    sinks: list[Expr] = []
    found = False
    for sign, term in terms(_unguard(total)):
        term = _unguard(term)
        if isinstance(term, Reduce) and term.op == "sum":
            body = _unguard(term.body)
            if not (isinstance(body, Call) and body.op == "exp") or sign < 0:
                raise Refused("CB227")
            own = _strip_row(body.args[0], term.var)
            if x is not None and el.algebra.substitute(own, {Var(term.var): Var(key)}) != x:
                raise Refused("CB225")
            found = True
        elif isinstance(term, Call) and term.op == "exp" and sign > 0:
            sinks.append(_strip_row(term.args[0], key))
        elif isinstance(term, Const) and sign > 0 and float(term.value) == 1.0:
            sinks.append(Const(0.0))
        else:
            raise Refused("CB229", None, op=describe(term))
    if not found:
        raise Refused("CB227")
    return sinks


def _in_other_units(expr: Expr) -> Expr:
    """A logsumexp as flex_attention returns it: over ln 2, times ln 2, with -inf chosen on rows without keys."""
    over, under = factors(expr)
    numbers = [math.prod(float(f.value) for f in part if isinstance(f, Const)) for part in (over, under)]
    rest = [f for f in (*over, *under) if not isinstance(f, Const)]
    if len(rest) != 1 or rest[0] not in over or not math.isclose(numbers[0], numbers[1], rel_tol=1e-12):
        return expr
    chosen = rest[0]
    if isinstance(chosen, Call) and chosen.op == "where" and chosen.args[1] == NEG_INF:
        return chosen.args[2]
    return chosen


def _logsumexp(el: Elements, expr: Expr, outs: list[Expr]) -> Parts | None:
    expr = _in_other_units(expr)
    logs = [t for sign, t in terms(expr) if sign > 0 and isinstance(t, Call) and t.op == "log"]
    others = [t for _, t in terms(expr) if t not in logs]
    if len(logs) != 1 or not all(any(isinstance(e, Reduce) for e in walk(t)) for t in others):
        return None
    log = logs[0]
    assert isinstance(log, Call)
    row = next((t for _, t in terms(_unguard(log.args[0])) if isinstance(_unguard(t), Reduce)), None)
    if row is None:
        return None
    row = _unguard(row)
    assert isinstance(row, Reduce)
    body = _unguard(row.body)
    if not (isinstance(body, Call) and body.op == "exp"):
        return None
    x = _strip_row(body.args[0], row.var)
    return Parts(x, row.var, None, _denominator(el, log.args[0], x, row.var), outs)


def describe(expr: Expr) -> str:
    """A few words for a message."""
    if isinstance(expr, Call):
        return expr.op
    if isinstance(expr, Read):
        return f"a factor read from {expr.tensor}"
    if isinstance(expr, Const):
        return f"the factor {expr.value}"
    return "a second reduction" if isinstance(expr, Reduce) else "a concatenation"
