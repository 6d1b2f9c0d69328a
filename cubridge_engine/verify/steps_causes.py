"""Hypotheses: which single fault explains the numbers of a step that is wrong. Each is tested on the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .steps_tables import Tables

Array = NDArray[Any]
LN2 = math.log(2.0)
CLOSE = 1e-5
NO_SCALE = "the scale is missing"


def near(got: Array, want: Array, slack: float = CLOSE) -> Array:
    """Element-wise: equal up to `slack` of the larger of 1 and the largest finite |want|."""
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        return (np.abs(got - want) <= slack * scale) | (got == want)


def ratio_of(got: Array, want: Array) -> float | None:
    """The one factor between two sets of numbers; None where there is none."""
    ok = np.isfinite(got) & np.isfinite(want)
    if not ok.all() or not got.size or not (want != 0).any():
        return None
    factor = float((got * want).sum() / (want * want).sum())
    return factor if bool(near(got, factor * want).all()) else None


def scale_cause(ratio: float, scale: float, d: int) -> str:
    """What a score that is `ratio` times the expected one says; `scale` is the expected factor of the raw product."""
    named = (
        (LN2, "exp2 is taken of a score that is not multiplied by log2(e)"),
        (1 / LN2, "log2(e) is multiplied in, although exp is taken of the score"),
        (1 / scale if scale else 0.0, NO_SCALE),
        (scale, "the scale is multiplied in twice"),
        (LN2 / scale if scale else 0.0, "scale and log2(e) are missing"),
        (LN2 * scale, "the scale is multiplied in twice, and exp2 is taken without log2(e)"),
        (1 / math.sqrt(d), "it is divided by the square root of D once too often"),
        (math.sqrt(d), "it is not divided by the square root of D"),
        (-1.0, "its sign is wrong"),
    )
    for factor, words in named:
        if factor and abs(ratio / factor - 1) < 1e-4:
            return words
    return f"it is {ratio:.6g} times the expected one"


@dataclass(frozen=True, slots=True)
class RowOf:
    """A row of a tensor that was found by its numbers: the tensor's role, batch, KV head (head for q) and row."""

    role: str
    b: int
    head: int
    row: int

    def words(self) -> str:
        """``row 65 of K, head 1``."""
        batch = f", batch {self.b}" if self.b else ""
        return f"row {self.row} of {self.role.upper()}, head {self.head}{batch}"


def find_row(tables: Tables, data: Array) -> RowOf | None:
    """The row of q, k or v that holds `data` [width]."""
    for role in ("k", "v", "q"):
        tensor: Array = getattr(tables, role)
        width = min(len(data), tensor.shape[3])
        if not np.any(data[:width]):
            return None
        hit = np.argwhere((np.abs(tensor[..., :width] - data[:width]) <= 1e-6).all(axis=-1))
        if len(hit):
            b, head, row = (int(n) for n in hit[0])
            return RowOf(role, b, head, row)
    return None


@dataclass(frozen=True, slots=True)
class OperandFault:
    """An operand tile that does not hold what it should: the first wrong row (of the tile), its numbers, the cause."""

    row: int
    cta: int
    column: int
    got: float
    want: float
    wrong: Array  # [rows, columns] of that CTA
    cause: str
    other_head: bool  # the same row of another head


def operand_fault(
    tables: Tables, role: str, data: Array, heads: Mapping[str, Array], row0: int, rows: int
) -> OperandFault | None:
    """Compare an operand tile [CTAs, rows, width] with rows `row0`.. of a tensor; only the first `rows` are judged.

    `heads` gives for each CTA ``b`` and the ``head`` of the tensor. Up to one factor (Q may be scaled beforehand).
    """
    tensor: Array = getattr(tables, role)
    want = np.zeros(data.shape)
    part = tensor[heads["b"], heads["head"], max(row0, 0) : row0 + rows]
    want[:, : part.shape[1], : part.shape[2]] = part[:, :, : data.shape[2]]
    judged, target = data[:, : part.shape[1]], want[:, : part.shape[1]]
    if ratio_of(judged, target) is not None:
        return None
    wrong = ~near(judged, target)
    if not wrong.any():
        return None
    cta, row, column = (int(n) for n in np.argwhere(wrong)[0])
    held, head = judged[cta, row], int(heads["head"][cta])
    found = find_row(tables, held) if np.isfinite(held).all() else None
    asked = RowOf(role, int(heads["b"][cta]), head, row0 + row)
    return OperandFault(
        row,
        cta,
        column,
        float(judged[cta, row, column]),
        float(target[cta, row, column]),
        wrong[cta],
        _operand_words(held, found, asked),
        found is not None and (found.role, found.row) == (asked.role, asked.row),
    )


def _operand_words(held: Array, found: RowOf | None, asked: RowOf) -> str:
    if found is not None:
        return f"it holds {found.words()}, instead of {asked.words()}"
    if not np.isfinite(held).all():
        return "it is read before it was written"
    if not held.any():
        return f"zeros stand in place of {asked.words()}"
    return ""


def pattern(wrong: Array, rows: str = "rows", columns: str = "columns") -> str:
    """Which elements of a tile [rows, columns] are wrong, in words."""
    if wrong.ndim == 1:
        wrong = wrong[:, None]
    if wrong.all():
        return "every element"
    bad_rows, bad_columns = np.asarray(wrong.any(axis=1)), np.asarray(wrong.any(axis=0))
    if wrong.shape[1] > 1 and bool((wrong == bad_rows[:, None] * bad_columns[None, :]).all()):
        parts = [] if bad_rows.all() else [f"{rows} {_places(bad_rows)}"]
        parts += [] if bad_columns.all() else [f"{columns} {_places(bad_columns)}"]
        return ", ".join(parts)
    at = np.argwhere(wrong)
    offsets = np.unique(at[:, 1] - at[:, 0])
    if wrong.shape[1] > 1 and len(offsets) == 1:
        return f"the elements of one diagonal, column = row {int(offsets[0]):+d}"
    if wrong.shape[1] == 1:
        return f"{rows} {_places(bad_rows)}"
    return f"{len(at)} of {wrong.size} elements"


def _places(bad: Array) -> str:
    """``8..15``, ``8..15 of each 16``, or a count."""
    at = np.flatnonzero(bad)
    if at[-1] - at[0] + 1 == len(at):
        return _span(at)
    for period in (2, 4, 8, 16, 32, 64):
        if len(bad) % period or len(bad) == period:
            continue
        folded = bad.reshape(-1, period)
        one = np.flatnonzero(folded[0])
        if bool((folded == folded[0]).all()) and len(one) and one[-1] - one[0] + 1 == len(one):
            return f"{_span(one)} of each {period}"
    shown = ", ".join(str(int(n)) for n in at[:6])
    return shown if len(at) <= 6 else f"{shown}, ... ({len(at)} of {len(bad)})"


def _span(at: Array) -> str:
    return str(int(at[0])) if len(at) == 1 else f"{int(at[0])}..{int(at[-1])}"
