"""Which keys the weights of a tile belong to, by their numbers: ``log P - logit`` is one number of the row, whatever
was subtracted in the exponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROUNDED = 3e-2  # how far the logarithm of a weight may be off: it is rounded to fp16
SMALLEST = 1e-3  # weights below it have too few digits
MANY = 48  # elements of a fragment of 256 that must be there to say something


@dataclass(frozen=True, slots=True)
class Shifts:
    """``log P - logit`` [M, K] of a fragment of weights, and where it says something."""

    shift: Array
    judged: Array

    @property
    def wrong(self) -> Array:
        """Where it is not one number of the row."""
        return self.judged & ~self.agrees(np.zeros(self.shift.shape[1], dtype=int))

    def agrees(self, group: Array) -> Array:
        """Where it is one number of the row and the group of columns (``group`` [K])."""
        found = np.zeros(self.shift.shape, dtype=bool)
        for number in np.unique(group):
            at = group == number
            judged, shift = self.judged[:, at], self.shift[:, at]
            count = judged.sum(axis=1, keepdims=True)
            ordered = np.sort(np.where(judged, shift, np.inf), axis=1)
            median = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=1)
            with np.errstate(invalid="ignore"):
                found[:, at] = np.abs(shift - median) < ROUNDED
        return found


def shifts_of(a: Array, logits: Array, rows: Array, keys: Array) -> Shifts:
    seen = (rows[:, None] >= 0) & (keys[None, :] >= 0)
    want = logits[np.maximum(rows, 0)[:, None], np.maximum(keys, 0)[None, :]]
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.log(a.astype(np.float64)) - want
    judged = seen & (a > SMALLEST) & np.isfinite(want)
    return Shifts(shift, judged & (judged.sum(axis=1, keepdims=True) > 2))


# Exchanges of the elements of a 16x16 fragment A: where element (row, key) comes from.
_EXCHANGES: dict[str, tuple[Array, Array]] = {}
_HALVES = "the weights of neighbouring keys are exchanged (low and high half of a packed register)"


def _exchanges() -> dict[str, tuple[Array, Array]]:
    if not _EXCHANGES:
        r, k = np.indices((16, 16))
        crossed = (r >= 8) != (k >= 8)
        _EXCHANGES[_HALVES] = r, k ^ 1
        _EXCHANGES["registers 1 and 2 of the A fragment are exchanged"] = (
            np.where(crossed, r ^ 8, r),
            np.where(crossed, k ^ 8, k),
        )
        _EXCHANGES["the weights of keys 0..7 and 8..15 are exchanged"] = r, k ^ 8
        _EXCHANGES["rows 0..7 and 8..15 of the weights are exchanged"] = r ^ 8, k
        for n in range(4):
            inside = (r // 8 == n % 2) & (k // 8 == n // 2)
            words = f"the weights of neighbouring keys are exchanged in register {n} of the A fragment"
            _EXCHANGES[words] = r, np.where(inside, k ^ 1, k)
    return _EXCHANGES


def exchange(a: Array, logits: Array, rows: Array, keys: Array) -> str:
    """The exchange that explains weights that are not those of the keys; '' where none does."""
    if a.shape != (16, 16):
        return ""
    before = int(shifts_of(a, logits, rows, keys).judged.sum())
    for words, (r, k) in _exchanges().items():
        after = shifts_of(a[r, k], logits, rows, keys)
        # An exchange that leaves nothing to judge explains nothing.
        if not after.wrong.any() and int(after.judged.sum()) >= max(before, MANY):
            return words
    return ""


def row_offset(logits: Array, pairs: dict[int, float], bc: int) -> int | None:
    """The offset o for which the weights by V's row j are those of keys j - o, of one row of [heads, Sq, Sk]; None
    where no offset, or every one, does.
    """
    rows = np.array(sorted(pairs))
    want = np.log(np.array([pairs[int(n)] for n in rows]))
    fits: list[int] = []
    for offset in range(-bc, bc + 1):
        keys = rows - offset
        inside = (keys >= 0) & (keys < logits.shape[2])
        if inside.sum() < 5:
            continue
        with np.errstate(invalid="ignore"):
            shift = want[inside] - logits[:, :, keys[inside]]
            spread = shift.max(axis=2) - shift.min(axis=2)
        if np.nanmin(np.where(np.isfinite(spread), spread, np.inf)) < 2 * ROUNDED:
            fits.append(offset)
    return 0 if 0 in fits else fits[0] if len(fits) == 1 else None
