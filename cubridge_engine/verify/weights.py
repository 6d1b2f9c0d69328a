"""What verification must know of weights that are no softmax: their scale, how far inputs may go, and how much the
rounding of a raw product can move an output.

A softmax forgives: it sees differences of scores only, and its weights end at 1. A weight of its own grows with the
score, and a row of few keys is as exact as its scores are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Const, Expr, Read, substitute, walk
from ..spec.attention import Attention
from ..spec.formula import environment, keep_mask, sizes_of, tensors_of
from ..transfer.algebra import linear_parts, number

Array = NDArray[Any]
REACHES = (200.0, 150.0, 100.0, 50.0, 25.0, 16.0, 10.0, 6.0, 4.0, 3.0, 2.0)
SPREAD = 4.0  # random scores lie about as far on either side of where they were sent
# A row of a few hundred such weights stays below 65504, the largest float16.
LARGEST_WEIGHT = 1024.0
_SIGNS = 64  # ways to move a few operands
# fp32 sums of D products, relative to the sum of their absolute values: 2^-23 for each of about sqrt(D) steps that do
# not cancel. Tensor cores truncate where an FMA rounds, hence 2^-23 and not 2^-24.
PRODUCT_ROUNDING = 2.0**-23


def weight_scale(attention: Attention, head_dim: int) -> float | None:
    """Natural score per raw product inside a weight: the coefficient of ``s``; None where it has none."""
    parts = linear_parts(attention.score, lambda name: name == "D")
    scale = number(parts[0], D=head_dim) if parts else 0.0
    return scale if math.isfinite(scale) and scale else None


def reach_of(score_at: Callable[[Array], Array], scale: float) -> float:
    """The largest natural score of either sign whose weight is no larger than `LARGEST_WEIGHT`; `score_at` gives
    weights at raw products.
    """
    for reach in REACHES:
        with np.errstate(all="ignore"):
            weights = np.abs(score_at(np.array([reach + SPREAD, -reach - SPREAD]) / abs(scale)))
        if bool((weights <= LARGEST_WEIGHT).all()):
            return math.inf if reach == REACHES[0] else reach
    return REACHES[-1]


def operand_reach_of(score: Expr, raw: float, env: Mapping[str, int]) -> float:
    """How far elements of operands may be moved, each to either side, with weights no larger than `LARGEST_WEIGHT` at
    the raw products ``+-raw``: a decay is the exponential of a difference of two. `env` are indices and sizes.
    """
    found = [e for e in dict.fromkeys(walk(score)) if isinstance(e, Read)]
    signs = itertools.islice(itertools.product((1.0, -1.0), repeat=len(found)), _SIGNS)
    cases = [dict(zip(found, sign, strict=True)) for sign in signs]
    for reach in REACHES:
        moved = [substitute(score, {e: Const(0.5 + sign * reach) for e, sign in case.items()}) for case in cases]
        with np.errstate(all="ignore"):
            weights = [np.abs(evaluate(x, {**env, "s": np.array([raw, -raw])})) for x in moved]
        if all(bool((w <= LARGEST_WEIGHT).all()) for w in weights):
            return math.inf if reach == REACHES[0] else reach
    return REACHES[-1]


def score_slack(attention: Attention, arrays: list[Array], raw: Mapping[str, Array]) -> Array:
    """How far each output element may move, ``[B, H, Sq, Dv]``, because fp32 rounds the raw products q.k.

    `arrays` are the inputs in argument order, `raw` q, k and v as ``[B, H, S, D]`` by role, all float64. The weight is
    evaluated one rounding to either side; what that moves, in the sum over the keys and in the divisor, is the slack.
    """
    sizes = sizes_of(attention, arrays)
    env, tensors = environment(sizes), tensors_of(attention, arrays)
    shape = (sizes["B"], sizes["H"], sizes["Sq"], sizes["Sk"])
    heads = np.broadcast_to(evaluate(attention.head_map, {**sizes, "h": np.arange(shape[1])}), (shape[1],)).astype(int)
    k, v = raw["k"][:, heads], raw["v"][:, heads]
    s = raw["q"] @ np.swapaxes(k, -1, -2)
    step = math.sqrt(sizes["D"]) * PRODUCT_ROUNDING * (np.abs(raw["q"]) @ np.swapaxes(np.abs(k), -1, -2))
    keep = keep_mask(attention, arrays, sizes)

    def weights(at: Array) -> Array:
        value = np.broadcast_to(np.asarray(evaluate(attention.score, {**env, "s": at}, tensors), dtype=float), shape)
        return np.where(keep, value, 0.0)

    with np.errstate(all="ignore"):
        p = weights(s)
        moved = np.maximum(np.abs(weights(s + step) - p), np.abs(weights(s - step) - p))
        slack = moved @ np.abs(v)
        if attention.divisor is not None:
            slack = _with_divisor(attention, p, moved, v, slack, {**env, "tensors": tensors})
    return np.where(np.isfinite(slack), slack, 0.0)


def _with_divisor(
    attention: Attention, p: Array, moved: Array, v: Array, slack: Array, env: Mapping[str, Any]
) -> Array:
    """The slack of the quotient: that of the sum, and what the row sum moves the divisor."""
    by = attention.divisor
    assert by is not None
    tensors = env["tensors"]
    total = (np.abs(p) if attention.normaliser == "abs_sum" else p).sum(-1, keepdims=True)
    change = moved.sum(-1, keepdims=True)

    def divisor(at: Array) -> Array:
        return np.abs(np.asarray(evaluate(by, {**env, "l": at}, tensors), dtype=float))

    middle = divisor(total)
    least = np.minimum(np.minimum(divisor(total + change), divisor(total - change)), middle)
    return slack / least + np.abs(p @ v) * (1.0 / least - 1.0 / middle)
