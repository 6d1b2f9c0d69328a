"""The mathematics of an `Attention`, evaluated in float64 from the value alone: NumPy arrays in and out, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from .attention import Attention, TensorInput

Array = NDArray[Any]
_CANONICAL = {"q": "bhid", "k": "bhjd", "v": "bhjd"}
_AXES = {"hk": "h"}


def sizes_of(attention: Attention, inputs: Sequence[Array]) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk, D and Dv, from the shapes of q, k, v."""
    sizes = {"B": 1, "H": 1, "Hkv": 1}
    for role, table in (
        ("q", {"b": "B", "h": "H", "i": "Sq", "d": "D"}),
        ("k", {"hk": "Hkv", "j": "Sk"}),
        ("v", {"d": "Dv"}),
    ):
        item = attention.input(role)
        for axis, extent in zip(item.axes, inputs[_place(attention, item)].shape, strict=True):
            if axis in table:
                sizes[table[axis]] = int(extent)
    return sizes


def _place(attention: Attention, item: TensorInput) -> int:
    return [i.name for i in attention.inputs].index(item.name)


def _canonical(item: TensorInput, array: Array) -> Array:
    """q, k or v as [B, H, S, D] in float64; a missing axis has extent 1."""
    letters = [_AXES.get(a, a) for a in item.axes]
    wanted = _CANONICAL[item.role]
    moved = np.transpose(array, [letters.index(a) for a in wanted if a in letters])
    shape = iter(moved.shape)
    return moved.reshape([next(shape) if a in letters else 1 for a in wanted]).astype(np.float64)


def environment(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Index arrays that broadcast to [B, H, Sq, Sk], and the sizes."""
    env: dict[str, Any] = dict(sizes)
    for n, (var, size) in enumerate((("b", "B"), ("h", "H"), ("i", "Sq"), ("j", "Sk"))):
        env[var] = np.arange(sizes[size]).reshape([-1 if axis == n else 1 for axis in range(4)])
    return env


def keep_mask(attention: Attention, inputs: Sequence[Array], sizes: Mapping[str, int]) -> Array:
    """Which keys each row attends, as a bool array [B, H, Sq, Sk]."""
    shape = (sizes["B"], sizes["H"], sizes["Sq"], sizes["Sk"])
    if attention.mask is None:
        return np.ones(shape, dtype=bool)
    return np.broadcast_to(evaluate(attention.mask, environment(sizes), tensors_of(attention, inputs)), shape).astype(
        bool
    )


def tensors_of(attention: Attention, inputs: Sequence[Array]) -> dict[str, Array]:
    """Operands by name, floating ones in float64."""
    return {
        item.name: array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
        for item, array in zip(attention.inputs, inputs, strict=True)
        if item.role == "operand"
    }


def evaluate_attention(attention: Attention, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of `attention`, in float64 and in the user's layouts; `inputs` in the order of ``attention.inputs``.

    Rows without keys follow ``attention.empty_rows``. Raises ValueError when a shape does not fit.
    """
    sizes = sizes_of(attention, inputs)
    env = environment(sizes)
    tensors = tensors_of(attention, inputs)
    q, k, v = (_canonical(attention.input(r), inputs[_place(attention, attention.input(r))]) for r in "qkv")
    heads = np.broadcast_to(evaluate(attention.head_map, {**sizes, "h": np.arange(sizes["H"])}), (sizes["H"],)).astype(
        int
    )
    shape = (sizes["B"], sizes["H"], sizes["Sq"], sizes["Sk"])
    env["s"] = np.matmul(q, np.swapaxes(k[:, heads], -1, -2))
    x = np.broadcast_to(np.asarray(evaluate(attention.score, env, tensors), dtype=np.float64), shape)
    keep = keep_mask(attention, inputs, sizes)
    x = np.where(keep, x, evaluate(attention.fill, env, tensors))
    combine = _softmax if attention.normaliser == "softmax" else _weighted
    with np.errstate(all="ignore"):
        output, lse = combine(attention, x, v[:, heads], env, tensors)
    if attention.empty_rows == "zero":
        output = np.where(np.asarray(keep.any(-1, keepdims=True)), output, 0.0)
    return [_arrange(output if o.role == "o" else lse, o.axes, o.role) for o in attention.outputs]


def _softmax(
    attention: Attention, x: Array, v: Array, env: Mapping[str, Any], tensors: Mapping[str, Array]
) -> tuple[Array, Array]:
    top = x.max(-1, keepdims=True) if x.shape[-1] else np.full((*x.shape[:-1], 1), -math.inf)
    sink: Array | None = None
    if attention.sink is not None:
        raw = evaluate(attention.sink, env, tensors)
        sink = np.broadcast_to(np.asarray(raw, dtype=np.float64), top.shape)
        top = np.maximum(top, sink)
    safe = np.where(np.isneginf(top), 0.0, top)
    p = np.exp(x - safe)
    total = p.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - safe)
    lse = (np.log(total) + safe)[..., 0]
    return np.matmul(p / total, v), lse


def _weighted(
    attention: Attention, p: Array, v: Array, env: Mapping[str, Any], tensors: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Weights that are no softmax, divided by what the spec divides by. There is no logsumexp: NaN stands for it."""
    output = np.matmul(p, v)
    if attention.divisor is not None:
        total = (np.abs(p) if attention.normaliser == "abs_sum" else p).sum(-1, keepdims=True)
        output = output / evaluate(attention.divisor, {**env, "l": total}, tensors)
    return output, np.full(p.shape[:-1], math.nan)


def _arrange(array: Array, axes: Sequence[str], role: str) -> Array:
    """[B, H, Sq(, Dv)] in the user's order of axes."""
    letters = "bhid" if role == "o" else "bhi"
    dropped = tuple(n for n, a in enumerate(letters) if a not in axes)
    kept = [a for a in letters if a in axes]
    return np.transpose(array.squeeze(dropped) if dropped else array, [kept.index(a) for a in axes])
