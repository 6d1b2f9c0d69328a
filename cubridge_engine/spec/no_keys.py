"""Weights that are no softmax, without any key: torch's product over no keys is 0, a quotient after it 0 / 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..ir.expr import Call, Const, Expr, Var, call, free_vars, substitute
from .attention import Attention
from .formula import evaluate_attention
from .inputs import make_inputs
from .program import Program
from .reference import reference

_KEYS, _SUM = Var("Sk"), Var("l")


def with_guarded_divisor(program: Program, attention: Attention, sizes: Mapping[str, int]) -> Attention:
    """`attention` with a divisor that is not 0 where there is no key, if the spec gives 0 there and the quotient does
    not. Dividing the weights before their product with V, as a spec may, leaves nothing to divide.
    """
    divisor = attention.divisor
    fixed = {name for pair in attention.equal_sizes for name in pair} | attention.specialised.keys()
    if divisor is None or "Sk" in fixed:
        return attention
    none = {**sizes, "Sk": 0}
    try:
        inputs = make_inputs(attention, none)
        want = [t.detach().numpy() for t in reference(program, inputs)]
        arrays = [(t.double() if t.dtype.is_floating_point else t).numpy() for t in inputs]
    except Exception:  # a spec that does not take zero keys needs nothing for them
        return attention

    def agrees(one: Attention) -> bool:
        got = evaluate_attention(one, arrays)
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(got, want, strict=True))

    if agrees(attention):
        return attention
    guarded = replace(attention, divisor=_guarded(divisor))
    return guarded if agrees(guarded) else attention


def _guarded(divisor: Expr) -> Expr:
    if "l" in free_vars(divisor):
        safe = Call("where", (Call("eq", (_SUM, Const(0.0))), Const(1.0), _SUM))
        return substitute(divisor, {_SUM: safe})
    return substitute(divisor, {_KEYS: call("max", _KEYS, 1)})
