"""The numbers of a launch against those of the attention that is expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract, Instance
from ..simulate import Schedule
from ..spec.attention import Attention, TensorInput, TensorOutput
from ..spec.formula import evaluate_attention
from ..verify.measure import Measure, measure_lse, measure_o
from .watch_cases import WatchCase

Array = NDArray[Any]
LN2 = math.log(2.0)
_BOTH = (
    TensorOutput("o", ("b", "h", "i", "d"), "float64", 0),
    TensorOutput("lse", ("b", "h", "i"), "float64", 1),
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A launch whose O or LSE is not what is expected: the worst element, and all that is needed to look for why."""

    contract: Contract
    instance: Instance
    meaning: Attention
    case: WatchCase
    tensors: Mapping[str, Array]
    schedule: Schedule
    measure: Measure
    rows_wrong: float  # the share of the rows that are wrong


def reference(meaning: Attention, tensors: Mapping[str, Array]) -> tuple[Array, Array]:
    """O [B, H, Sq, Dv] and natural LSE [B, H, Sq] in float64."""
    o, lse = evaluate_attention(replace(meaning, outputs=_BOTH), [tensors[role] for role in ("q", "k", "v")])
    return o, lse


def reference_with(meaning: Attention, tensors: Mapping[str, Array], extra: Mapping[str, Array]) -> tuple[Array, Array]:
    """The same, with further tensors that the mask or the score reads, by name: [Sk] each."""
    inputs = [TensorInput(n, "operand", ("Sk",), "int32", 3 + at) for at, n in enumerate(extra)]
    wider = replace(meaning, outputs=_BOTH, inputs=(*meaning.inputs, *inputs))
    o, lse = evaluate_attention(wider, [*(tensors[role] for role in ("q", "k", "v")), *extra.values()])
    return o, lse


def wrong_numbers(
    contract: Contract,
    instance: Instance,
    meaning: Attention,
    case: WatchCase,
    tensors: Mapping[str, Array],
    o: Array,
    lse: Array | None,
    schedule: Schedule,
) -> Wrong | None:
    """None where O [B, H, Sq, Dv] and LSE [B, H, Sq] (None: not written) are right, by the tolerances of `verify`.

    Rows without a key hold what the contract says: 0, NaN, or anything.
    """
    want, want_lse = reference(meaning, tensors)
    dead = np.isneginf(want_lse)
    want, o = _dead_rows(contract, want, o, dead)
    measures = [measure_o(o, want, instance.dtype, None, "exact")]
    if lse is not None and contract.lse != "none":
        natural = lse * LN2 if contract.lse == "log2" else lse
        if contract.empty_rows != "zero":
            natural = np.where(dead, want_lse, natural)
        measures.append(measure_lse(natural, want_lse, instance.dtype, None, "exact"))
    failed = next((m for m in measures if not m.passed), None)
    if failed is None:
        return None
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(o - want) <= failed.tolerance * np.maximum(np.abs(want).max(axis=-1, keepdims=True), 1e-3))
    share = float(off.any(axis=-1).mean()) if off.size else 0.0
    return Wrong(contract, instance, meaning, case, dict(tensors), schedule, failed, share)


def _dead_rows(contract: Contract, want: Array, got: Array, dead: Array) -> tuple[Array, Array]:
    """Reference and output with rows without a key made comparable."""
    if contract.empty_rows == "nan":
        return np.where(dead[..., None], np.nan, want), got
    if contract.empty_rows == "undefined":
        return want, np.where(dead[..., None], want, got)
    return want, got
