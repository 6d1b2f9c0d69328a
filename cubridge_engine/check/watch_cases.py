"""The problems that a kernel is watched on: the grid of `verify` without a spec, smallest first, and their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract, Instance
from ..compile.size_text import evaluate_condition
from ..ir.evaluate import evaluate
from ..simulate.tensors import bits_of, floats
from ..spec.attention import Attention
from ..verify.grid import Case, Heads, base_cases

Array = NDArray[Any]
FAR = 120.0  # natural score units by which twisted inputs move a row


@dataclass(frozen=True, slots=True)
class WatchCase:
    """A case, and the value of the argument with role ``flag:causal``."""

    case: Case
    flag: int

    @property
    def name(self) -> str:
        """``short-query, causal``."""
        return f"{self.case.name}, causal" if self.flag else self.case.name

    @property
    def sizes(self) -> dict[str, int]:
        """B, H, Hkv, Sq, Sk, D and Dv."""
        return {"Dv": self.case.D, **self.case.sizes}


def watch_cases(contract: Contract, instance: Instance, flags: tuple[int, ...]) -> tuple[WatchCase, ...]:
    """The cases that the contract allows, those with fewer scores first: the first one that shows a fault is the
    smallest.
    """
    heads = Heads((2, 2), (4, 2)) if contract.gqa else Heads((2, 2), (2, 2))
    found: dict[tuple[Any, ...], WatchCase] = {}
    for case in base_cases(contract.br, contract.bc, instance.head_dim, heads):
        fitted = _fitted(case, contract, instance)
        if fitted is None:
            continue
        for flag in flags:
            key = (fitted.Sq, fitted.Sk, fitted.H, fitted.B, fitted.twists, fitted.layout, flag)
            found.setdefault(key, WatchCase(fitted, flag))
    return tuple(sorted(found.values(), key=lambda c: c.case.B * c.case.H * max(c.case.Sq, 1) * max(c.case.Sk, 1)))


def meant(case: WatchCase, meaning: Attention) -> bool:
    """Whether `meaning` says what the case computes: the KV heads that it names are there (without ``gqa`` head h reads
    KV head h).
    """
    sizes = case.sizes
    heads = np.asarray(evaluate(meaning.head_map, {**sizes, "h": np.arange(sizes["H"])}))
    return bool(np.all((heads >= 0) & (heads < sizes["Hkv"])))


def _fitted(case: Case, contract: Contract, instance: Instance) -> Case | None:
    """The case with its lengths made such that the contract allows them; None where that is not possible."""
    dv = instance.value_dim if instance.value_dim != instance.head_dim else 0
    whole = [(contract.br * -(-n // contract.br), contract.bc * -(-m // contract.bc)) for n, m in ((case.Sq, case.Sk),)]
    lengths = ((case.Sq, case.Sk), (case.Sq, case.Sq), *whole, (whole[0][0], whole[0][0]), (1, case.Sk))
    for sq, sk in lengths:
        for hkv in (case.Hkv, case.H):
            fits = (sq, sk) == (case.Sq, case.Sk)
            tried = Case(
                case.name if fits else f"like {case.name}", case.why, case.B, case.H, hkv, sq, sk, case.D,
                case.twists, case.layout, seed=case.seed, Dv=dv,
            )  # fmt: skip
            if allowed(tried, contract, instance):
                return tried
    return None


def allowed(case: Case, contract: Contract, instance: Instance) -> bool:
    """True when the contract takes the sizes of the case."""
    sizes = {"Dv": case.D, **case.sizes}
    rows = case.H // case.Hkv * case.Sq
    if contract.empty_rows == "undefined" and case.Sk == 0:
        return False
    return (not instance.rows or rows <= instance.rows) and all(evaluate_condition(c, sizes) for c in contract.requires)


def inputs_of(case: WatchCase, dtype: str, scale: float) -> dict[str, Array]:
    """q [B, H, Sq, D], k [B, Hkv, Sk, D] and v of a case, rounded to `dtype`, as float64."""
    c = case.case
    rng = np.random.default_rng(1000 * c.seed + c.Sq + 7 * c.Sk)
    arrays = {
        "q": rng.standard_normal((c.B, c.H, c.Sq, c.D)),
        "k": rng.standard_normal((c.B, c.Hkv, c.Sk, c.D)),
        "v": rng.standard_normal((c.B, c.Hkv, c.Sk, c.Dv or c.D)) + 0.25,
    }
    # The maximum of most rows moves late, and by much: a lost correction shows.
    arrays["k"][:, :, -max(c.Sk // 4, 1) :] *= 2.0
    for twist in c.twists:
        _TWISTS[twist](arrays, scale)
    return {name: floats(bits_of(array, dtype), dtype) for name, array in arrays.items()}


def _rising(arrays: dict[str, Array], scale: float) -> None:
    n = arrays["k"].shape[2]
    arrays["k"] *= (1.0 + 3.0 * np.arange(n) / max(n, 1))[:, None]


def _large(arrays: dict[str, Array], scale: float) -> None:
    arrays["q"] *= 25.0 / max(abs(scale) * math.sqrt(arrays["q"].shape[3]), 1e-6)


def _shift(arrays: dict[str, Array], scale: float, natural: tuple[float, ...]) -> None:
    """Add ``natural[i % n]`` to every natural score of row i, by a common component in q and k."""
    width = arrays["q"].shape[3]
    a = math.sqrt(max(abs(x) for x in natural) / abs(scale))
    u = np.full(width, 1 / math.sqrt(width))
    factors = np.resize(np.array(natural) / max(abs(x) for x in natural), arrays["q"].shape[2])
    arrays["q"] += a * math.copysign(1.0, scale) * factors[:, None] * u
    arrays["k"] += a * u


_TWISTS: Mapping[str, Callable[[dict[str, Array], float], None]] = {
    "rising": _rising,
    "large": _large,
    "row_shift": lambda arrays, scale: _shift(arrays, scale, (0.0, FAR, -FAR)),
    "negative": lambda arrays, scale: _shift(arrays, scale, (-FAR,)),
}
