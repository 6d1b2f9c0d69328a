"""The last word: what was read must reproduce the spec on whole outputs, at new sizes, rows without keys included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.expr import NEG_INF
from .attention import Attention
from .formula import evaluate_attention, keep_mask
from .inputs import make_inputs
from .no_keys import with_guarded_divisor
from .program import Program
from .reference import reference
from .sizes import Plan

# Both sides are float64; they differ by the order of sums, and by float32 constants that a spec rounds itself.
TOLERANCE = 1e-6
# A score of float16 or wider inputs never comes near this one.
_WEIGHTLESS = -1e30


class CheckFailed(Exception):
    """The reading differs from the spec at `sizes`."""

    def __init__(self, sizes: Mapping[str, int], reason: str) -> None:
        super().__init__(reason)
        self.sizes = ", ".join(f"{k} = {v}" for k, v in sizes.items())
        self.reason = reason


def check_and_settle(program: Program, attention: Attention, plan: Plan) -> Attention:
    """`attention` with its policy for empty rows, after comparing at all check sizes. Raises CheckFailed."""
    policy: str | None = None
    for n, sizes in enumerate(plan.empty_at):
        try:
            arrays, expected = _run(program, attention, sizes, seed=n + 1)
        except Exception:
            if n < len(plan.check_at):
                raise
            continue  # an extreme shape, tried only to find rows without keys, may be beyond what the spec accepts
        empty = np.asarray(~keep_mask(attention, arrays, sizes).any(-1))
        found = _policy(attention, expected, empty) if empty.any() else None
        if found is not None and policy not in (None, found):
            raise CheckFailed(sizes, f"rows without keys give {policy} at one size and {found} at another")
        policy = policy or found
        if policy == "zero":
            attention = replace(attention, fill=NEG_INF)
        trial = replace(attention, empty_rows=policy or "none")
        _compare(trial, sizes, arrays, expected)
    settled = replace(attention, empty_rows=policy or "none")
    return with_guarded_divisor(program, settled, plan.check_at[0])


def _run(
    program: Program, attention: Attention, sizes: Mapping[str, int], seed: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    inputs = make_inputs(attention, sizes, seed=seed, empty_rows=True)
    expected = [t.detach().numpy() for t in reference(program, inputs)]
    arrays = [(t.double() if t.dtype.is_floating_point else t).numpy() for t in inputs]
    return arrays, expected


def _policy(attention: Attention, expected: Sequence[NDArray[Any]], empty: NDArray[Any]) -> str:
    """What the spec returned on the rows that keep no key.

    Zeros with a finite fill are a guard: such a row would have been the mean of V. Where the fill is too low to weigh
    anything beside a kept key, the function is that of -inf with zeros (and is compared as such).
    """
    fill = float(getattr(attention.fill, "value", 0.0))
    if attention.sink is not None or fill > _WEIGHTLESS:
        return "computed"
    for output, array in zip(attention.outputs, expected, strict=True):
        if output.role != "o":
            continue
        letters = [a for a in "bhi" if a in output.axes]
        moved = np.transpose(array, [output.axes.index(a) for a in [*letters, "d"]])
        rows = moved.reshape(*[n if a in letters else 1 for a, n in zip("bhi", empty.shape, strict=True)], -1)[empty]
        if np.isnan(rows).all() and np.isneginf(fill):
            return "nan"
        if (rows == 0).all():
            return "zero"
    return "computed"


def _compare(
    attention: Attention, sizes: Mapping[str, int], arrays: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]
) -> None:
    got = evaluate_attention(attention, arrays)
    for output, x, y in zip(attention.outputs, got, expected, strict=True):
        if x.shape != y.shape:
            raise CheckFailed(sizes, f"the output {output.role} has shape {y.shape}, not {x.shape}")
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            raise CheckFailed(sizes, f"NaN or infinity in other places of {output.role}")
        finite = np.isfinite(x)
        if not finite.any():
            continue
        error = float(np.abs(x[finite] - y[finite]).max())
        if error > TOLERANCE * max(1.0, float(np.abs(y[finite]).max())):
            raise CheckFailed(sizes, f"the output {output.role} differs by {error:.3g}")
