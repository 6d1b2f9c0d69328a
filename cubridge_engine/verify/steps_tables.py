"""What every step of an attention should give, in float64: the tables that a kernel's own steps are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..spec.attention import Attention
from ..spec.formula import environment

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """The mathematics of one problem. Natural units throughout.

    `q` [B, H, Sq, D]; `k`, `v` [B, Hkv, Sk, *] as given; `heads` [H] the KV head of each head; `s` raw products,
    `score` without and `x` with the mask, `keep` the mask, all [B, H, Sq, Sk]; `sink` [B, H, Sq] or None.
    """

    q: Array
    k: Array
    v: Array
    heads: Array
    s: Array
    score: Array
    x: Array
    keep: Array
    sink: Array | None

    def slab(self, table: Array, b: Array, h: Array, q0: int, rows: int, kv0: int, cols: int) -> Array:
        """The tile [CTAs, rows, cols] of a table of scores, NaN beyond its ends."""
        out = np.full((len(b), rows, cols), np.nan)
        inside = table[b, h, q0 : q0 + rows, max(kv0, 0) : max(kv0 + cols, 0)]
        shift = max(-kv0, 0)
        out[:, : inside.shape[1], shift : shift + inside.shape[2]] = inside
        return out


def tables_of(attention: Attention, roles: Mapping[str, Array], sizes: Mapping[str, int]) -> Tables:
    """The tables of `attention` on tensors q, k, v [B, H, S, D] and operands by name."""
    operands = {name: array for name, array in roles.items() if name not in ("q", "k", "v")}
    q, k, v = (np.asarray(roles[role], dtype=np.float64) for role in "qkv")
    full = dict(sizes)
    full.setdefault("Dv", v.shape[3])
    env = environment(full)
    heads = np.broadcast_to(
        np.asarray(evaluate(attention.head_map, {**full, "h": np.arange(full["H"])})), (full["H"],)
    ).astype(int)
    shape = (full["B"], full["H"], full["Sq"], full["Sk"])
    s = np.matmul(q, np.swapaxes(k[:, heads], -1, -2))
    env["s"] = s
    score = np.broadcast_to(np.asarray(evaluate(attention.score, env, operands), dtype=np.float64), shape)
    keep = np.ones(shape, dtype=bool)
    if attention.mask is not None:
        keep = np.broadcast_to(np.asarray(evaluate(attention.mask, env, operands), dtype=bool), shape)
    fill = evaluate(attention.fill, env, operands)
    sink = None
    if attention.sink is not None:
        raw = np.asarray(evaluate(attention.sink, env, operands), dtype=np.float64)
        sink = np.broadcast_to(raw, (*shape[:3], 1))[..., 0]
    return Tables(q, k, v, heads, s, score, np.where(keep, score, fill), keep, sink)
