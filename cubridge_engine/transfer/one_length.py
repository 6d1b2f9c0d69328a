"""Kernels with one parameter for both lengths: what a spec says of Sk is then said of Sq."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir.expr import SK, Expr, Var, substitute
from ..ir.nodes import Kernel
from ..ir.simplify import simplify
from ..spec.attention import Attention
from .sampling import Env


def one_length(kernel: Kernel) -> bool:
    """True where one parameter is the number of queries and of keys."""
    roles = {p.role for p in kernel.params}
    return "Sq" in roles and "Sk" not in roles


def at_one_length(kernel: Kernel, env: Env) -> Env:
    """`env` with equal lengths, where the kernel has one: at others its bounds say nothing."""
    if not one_length(kernel):
        return env
    both = np.maximum(env["Sq"], env["Sk"])
    return {**env, "Sq": both, "Sk": both}


def for_one_length(kernel: Kernel, attention: Attention) -> Attention:
    """`attention` in terms of the length that the kernel has; as it is for a kernel with two. ``Sk - Sq`` is 0 there,
    and would not be read again in a text that says ``n - n``.
    """
    if not one_length(kernel):
        return attention

    def one(expr: Expr | None) -> Expr | None:
        return None if expr is None else simplify(substitute(expr, {SK: Var("Sq")}))

    score = one(attention.score)
    assert score is not None
    parts = {"mask": one(attention.mask), "sink": one(attention.sink), "divisor": one(attention.divisor)}
    return replace(attention, score=score, **parts)
