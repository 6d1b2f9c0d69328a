"""How far an output is from the reference: error relative to each row's scale, NaN and infinity exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest accepted row error of O and error of LSE; `floor` is the smallest row scale that errors are divided
    by.
    """

    relative: float
    lse: float
    floor: float
    why: str


# Fixed by what rounding P and O to the element type costs on correct kernels; never loosened to make a kernel pass.
TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(
        1e-6, 1e-6, 1e-12, "nothing is rounded; literals of the kernel such as log2(e) have seven digits"
    ),
    "float32": Tolerance(2e-4, 2e-4, 1e-12, "fp32 sums over a few thousand keys and exp in fp32"),
    "float16": Tolerance(
        4e-3,
        2e-4,
        1e-3,
        (
            "P and O are rounded to 11 bits; below 1e-3 fp16 is subnormal in P, where a sink that swallows a row has "
            "no relative accuracy"
        ),
    ),
    "bfloat16": Tolerance(2.5e-2, 2e-4, 1e-12, "P and O are rounded to 8 bits"),
}


@dataclass(frozen=True, slots=True)
class Counterexample:
    """One element that is wrong: output ('o' or 'lse'), batch, head, row, column of the output (None for LSE)."""

    output: str
    b: int
    h: int
    i: int
    d: int | None
    got: float
    want: float
    error: float


@dataclass(frozen=True, slots=True)
class Measure:
    """The worst error of one output, the tolerance it was held to, and the element that breaks it, if one does.

    `worst` is infinite when NaN or an infinity stands where the reference has another value.
    """

    output: str
    worst: float
    tolerance: float
    counterexample: Counterexample | None
    kept_rows: int = 0  # rows without a key where the kernel's 0 / -inf was accepted for the spec's NaN

    @property
    def passed(self) -> bool:
        """True when no element breaks the tolerance."""
        return self.counterexample is None


def row_errors(got: Array, want: Array, floor: float) -> Array:
    """Element-wise ``|got - want|`` over the scale of the element's row (its largest finite |want|, at least `floor`).

    The last axis is the row. Where either is NaN or infinite the error is 0 if both are the same, else infinite.
    """
    exact = ~np.isfinite(want) | ~np.isfinite(got)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    finite_want = np.where(np.isfinite(want), np.abs(want), 0.0)
    scale = np.maximum(finite_want.max(axis=-1, keepdims=True, initial=0.0), floor)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - want) / scale
    return np.where(exact, np.where(same, 0.0, np.inf), error)


def measure_o(
    got: Array, want: Array, dtype: str, dead: Array | None, empty_rows: str, slack: Array | None = None
) -> Measure:
    """Compare O ``[B, H, Sq, D]`` in float64. `dead` ``[B, H, Sq]`` marks rows without a key.

    With `empty_rows` 'keep' a dead row of zeros is accepted where the reference is NaN; with 'exact' it is not.
    `slack` (of O's shape) is what the rounding of the raw products alone may move; it is no error. A softmax has none:
    there it moves a weight by as much as it moves the sum.
    """
    tolerance = TOLERANCES[dtype]
    want, kept = _keep(got, want, dead, empty_rows, 0.0)
    errors = row_errors(got, want, tolerance.floor)
    if slack is not None:
        with np.errstate(invalid="ignore"):
            near = np.where(np.isfinite(got) & np.isfinite(want), got + np.clip(want - got, -slack, slack), got)
        # Only where it decides: what is reported otherwise is the whole error.
        excused = row_errors(near, want, tolerance.floor)
        errors = np.where(errors > tolerance.relative, excused, errors)
    return _finish("o", got, want, errors, tolerance.relative, kept)


def measure_lse(
    got: Array, want: Array, dtype: str, dead: Array | None, empty_rows: str, free: Array | None = None
) -> Measure:
    """Compare LSE ``[B, H, Sq]``: absolute error, relative to |LSE| where that is above one.

    `free` marks rows whose LSE nobody asked for.
    """
    tolerance = TOLERANCES[dtype]
    if free is not None:
        got = np.where(free, want, got)
    want, kept = _keep(got[..., None], want[..., None], dead, empty_rows, -np.inf)
    errors = row_errors(got[..., None], want, 1.0)
    return _finish("lse", got[..., None], want, errors, tolerance.lse, kept)


def _keep(got: Array, want: Array, dead: Array | None, empty_rows: str, kept_value: float) -> tuple[Array, int]:
    """The reference with NaN rows replaced by the kernel's convention where that is accepted, and how many rows that
    is.
    """
    if dead is None or empty_rows != "keep" or not dead.any():
        return want, 0
    accepted = dead & np.isnan(want).all(axis=-1) & (got == kept_value).all(axis=-1)
    return np.where(accepted[..., None], kept_value, want), int(accepted.sum())


def _finish(output: str, got: Array, want: Array, errors: Array, tolerance: float, kept: int) -> Measure:
    if errors.size == 0:
        return Measure(output, 0.0, tolerance, None, kept)
    # argmax of the first infinite error is its index, so a NaN is shown before any merely large error.
    b, h, i, d = (int(n) for n in np.unravel_index(int(errors.argmax()), errors.shape))
    worst = float(errors[b, h, i, d])
    if worst <= tolerance:
        return Measure(output, worst, tolerance, None, kept)
    example = Counterexample(
        output, b, h, i, d if output == "o" else None, float(got[b, h, i, d]), float(want[b, h, i, d]), worst
    )
    return Measure(output, worst, tolerance, example, kept)
