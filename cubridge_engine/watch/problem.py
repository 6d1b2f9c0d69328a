"""The small problem that a kernel is watched on: sizes that tell masks and axes apart, and distinct random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile.contract import Contract, Instance
from ..compile.size_text import evaluate_condition
from ..simulate.tensors import bits_of, floats
from .model import Meaning, Problem

Array = NDArray[Any]
SEED = 20


def stored(x: Array, dtype: str) -> Array:
    """Numbers as the kernel gets them, float64."""
    return floats(bits_of(x, dtype), dtype)


def problem_of(
    sizes: Mapping[str, int], dtype: str, scale: float | None = None, causal: bool = False, seed: int = SEED
) -> Problem:
    """A problem with standard normal inputs. `sizes` has B, H, Hkv, Sq, Sk, D, Dv; the scale defaults to D ** -0.5."""
    rng = np.random.default_rng(seed)
    b, h, hkv, sq, sk, d, dv = (sizes[n] for n in ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv"))
    q, k, v = (
        stored(rng.standard_normal(shape), dtype) for shape in ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))
    )
    return Problem(b, h, hkv, sq, sk, d, dv, dtype, d**-0.5 if scale is None else scale, causal, q, k, v)


def choose_instance(contract: Contract) -> Instance:
    """The narrowest instance; widths of V that differ from D only where there is nothing else."""
    return min(contract.instances, key=lambda i: (i.head_dim != i.value_dim, i.head_dim < 32, i.head_dim, -i.rows))


def choose_problem(contract: Contract, instance: Instance, seed: int = SEED) -> Problem | None:
    """B = 1, two heads, two Q tiles and more keys than queries, as far as the contract lets these differ. None where no
    small problem is what the contract requires.
    """
    roles = {p.role for p in contract.leaves}
    told = {"Sq", "Sk"} <= roles
    sq = min(max(2 * contract.br, 64), 256)
    sk = sq + (64 if contract.bc <= 64 else contract.bc) if told else sq
    if not told:
        sq = sk = max(sq, 2 * contract.bc if contract.bc <= 128 else sq)
    causal = "flag:causal" in roles
    choices = [
        {"B": 1, "H": h, "Hkv": hkv, "Sq": q, "Sk": k, "D": instance.head_dim, "Dv": instance.value_dim}
        for h, hkv in (((2, 1), (2, 2), (1, 1)) if contract.gqa else ((2, 2), (1, 1)))
        for q, k in ((sq, sk), (128, 128), (256, 256), (64, 64), (1, 256))
    ]
    if instance.rows:
        choices = [{**c, "Sq": max(instance.rows * c["Hkv"] // c["H"], 1)} for c in choices]
    sizes = next((c for c in choices if meets(contract, c)), None)
    if sizes is None:
        return None
    return problem_of(sizes, instance.dtype, causal=causal, seed=seed)


def with_operands(problem: Problem, axes: Mapping[str, tuple[str, ...]], seed: int = SEED) -> Problem | None:
    """`problem` with further tensors by parameter, each over sizes by name: different numbers between 0.05 and 0.9.

    None where an axis is no size that stays the same from problem to problem.
    """
    rng = np.random.default_rng(seed + 1)
    fixed = {n: problem.sizes[n] for n in ("H", "Hkv", "D", "Dv", "Sq", "Sk")}
    if any(axis not in fixed for names in axes.values() for axis in names):
        return None
    made = {name: rng.uniform(0.05, 0.9, [fixed[a] for a in names]) for name, names in axes.items()}
    return replace(problem, operands={name: stored(x, "float32") for name, x in made.items()})


def meets(contract: Contract, sizes: Mapping[str, int]) -> bool:
    """True when the sizes are what the contract requires."""
    return all(evaluate_condition(text, sizes) for text in contract.requires)


def raw_scores(problem: Problem, head_map: Array, q: Array | None = None, k: Array | None = None) -> Array:
    """Q K^T ``[B, H, Sq, Sk]`` with the KV head of each query head."""
    q = problem.q if q is None else q
    k = problem.k if k is None else k
    return q @ k[:, head_map].transpose(0, 1, 3, 2)


def meaning_of(
    problem: Problem, mask: Array, scale: float, *, head_map: Array | None = None, weights: str = "softmax",
    softcap: float | None = None, raw: Array | None = None,
) -> Meaning:  # fmt: skip
    """Plain attention as a meaning. `mask` ``[Sq, Sk]`` or more axes; `raw` where Q K^T is not the exact one."""
    heads = default_heads(problem) if head_map is None else head_map
    raw = raw_scores(problem, heads) if raw is None else raw
    scores = raw * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    full = np.broadcast_to(mask, scores.shape)
    return Meaning(raw, scores, full, problem.v[:, heads], weights, None, None if softcap else scale)


def default_heads(problem: Problem) -> Array:
    """The KV head of each query head: h / (H / Hkv)."""
    return np.arange(problem.H) // (problem.H // problem.Hkv)
