"""A stand-in for a compiled kernel: any member of the family, with weights and output rounded as kernels do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cubridge_engine.watch import Problem
from cubridge_engine.watch.problem import default_heads, raw_scores, stored

Array = NDArray[Any]
Bias = Callable[[Array, Array, int], Array]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Called on a problem it gives O. `low` and `high` are distances j - i, over Sk - Sq where `shifted`."""

    dtype: str = "float16"
    scale: float | None = None
    cap: float = 0.0
    slopes: tuple[float, ...] = ()
    bias: Bias | None = None
    low: int | None = None
    high: int | None = None
    shifted: bool = False
    first: int = 0
    block: int = 0
    sink: tuple[float, ...] = ()
    odd: bool = False  # a mask that is no band: every third older key

    def __call__(self, problem: Problem) -> Array:
        heads = default_heads(problem)
        scores = raw_scores(problem, heads) * (problem.scale if self.scale is None else self.scale)
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        i, j = np.arange(problem.Sq)[:, None], np.arange(problem.Sk)[None]
        off = problem.Sk - problem.Sq
        if self.bias is not None:
            scores = scores + np.array(self.slopes)[:, None, None] * self.bias(i, j, off)
        scores = np.where(self._keep(i, j, off if self.shifted else 0), scores, -np.inf)
        sink = np.array(self.sink or (-np.inf,))[:, None, None]
        top = np.maximum(scores.max(-1, keepdims=True), sink)
        top = np.where(np.isfinite(top), top, 0)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True) + np.exp(sink - top)
        return stored(stored(weights, self.dtype) @ problem.v[:, heads] / np.where(total > 0, total, 1), self.dtype)

    def _keep(self, i: Array, j: Array, off: int) -> Array:
        distance = j - i - off
        keep = np.ones(distance.shape, bool) if self.high is None else distance <= self.high
        if self.low is not None:
            keep = keep & ((distance >= self.low) | (j < self.first))
        if self.block:
            keep = keep & (i // self.block == j // self.block)
        return keep & ((distance > -8) | (distance % 3 == 0)) if self.odd else keep
