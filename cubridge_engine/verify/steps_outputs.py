"""The end of a kernel whose state was right at every tile: what is stored for O and LSE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.interp import Outputs
from ..ir.nodes import NOWHERE
from .steps_causes import near, pattern, ratio_of
from .steps_model import Element, WrongStep
from .steps_parts import Parts
from .steps_tables import Tables
from .steps_trip import Ending

__all__ = ["Ending", "wrong_output"]
Array = NDArray[Any]
LN2 = math.log(2.0)


def wrong_output(parts: Parts, tables: Tables, outputs: Outputs, endings: Sequence[Ending]) -> WrongStep | None:
    """The stored O or LSE that does not follow from a state that does; None where both do."""
    for end in endings:
        found = _wrong_o(parts, tables, outputs, end) or _wrong_lse(parts, tables, outputs, end)
        if found is not None:
            return found
    return None


def _state(tables: Tables, end: Ending, rows: int) -> tuple[Array, Array, Array]:
    """What the state must be at the end, relative to the references: l and O, and which rows have a key."""
    at = slice(end.q0, end.q0 + rows)
    keep, x = tables.keep[end.b, end.h, at], tables.x[end.b, end.h, at]
    with np.errstate(invalid="ignore", over="ignore"):
        weight = np.where(keep, np.exp(x - end.ref[..., None]), 0.0)
        total = weight.sum(axis=2)
        if tables.sink is not None:
            total = total + np.exp(tables.sink[end.b, end.h, at] - end.ref)
    return total, weight @ tables.v[end.b, tables.heads[end.h]], keep.any(axis=2) & np.isfinite(end.ref)


def _wrong_o(parts: Parts, tables: Tables, outputs: Outputs, end: Ending) -> WrongStep | None:
    rows = end.ref.shape[1]
    total, acc, live = _state(tables, end, rows)
    got = outputs.o[end.b, end.h, end.q0 : end.q0 + rows, : acc.shape[2]]
    with np.errstate(invalid="ignore", divide="ignore"):
        want = acc / total[..., None]
    wrong = live[..., None] & ~near(np.where(live[..., None], got, 0.0), np.where(live[..., None], want, 0.0))
    if not wrong.any():
        return None
    cause = ""
    if not np.isfinite(got[live]).any():
        cause = "it is not written"
    elif bool(near(got[live], acc[live]).all()):
        cause = "it is not divided by l"
    elif end.l is not None and end.l.shape[2] > 1 and not bool(near(end.l[..., 0], end.l.sum(axis=2) / 4).all()):
        share = acc / end.l[..., :1]
        if bool(near(got[live], share[live], 1e-4).all()) or ratio_of(got[live], want[live]) is None:
            cause = "l is one lane's share of the row sum: it is not added up over the lanes that share the row"
    return _step("o", parts, end, wrong, got, want, cause)


def _wrong_lse(parts: Parts, tables: Tables, outputs: Outputs, end: Ending) -> WrongStep | None:
    if outputs.lse is None:
        return None
    rows = end.ref.shape[1]
    total, _, live = _state(tables, end, rows)
    got = outputs.lse[end.b, end.h, end.q0 : end.q0 + rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_l = np.log(total)
    want = log_l + end.ref
    wrong = live & ~near(np.where(live, got, 0.0), np.where(live, want, 0.0))
    if not wrong.any():
        return None
    hypotheses = (
        (want / LN2, "it is in units of log2, not of the natural logarithm"),
        (end.ref + log_l / LN2, "log2(l) is added to a maximum in natural units"),
        (end.ref / LN2 + log_l, "log(l) is added to a maximum in units of log2"),
        (log_l, "the maximum is not added to log(l)"),
        (end.ref, "log(l) is not added to the maximum"),
        (-want, "its sign is wrong"),
        (end.ref + total, "l is added instead of its logarithm"),
    )
    cause = next((words for table, words in hypotheses if bool(near(got[live], table[live]).all())), "")
    return _step("lse", parts, end, wrong, got, want, cause)


def _step(step: str, parts: Parts, end: Ending, wrong: Array, got: Array, want: Array, cause: str) -> WrongStep:
    first = [int(n) for n in np.argwhere(wrong)[0]]
    cta, row = first[0], first[1]
    element = Element(
        int(end.b[cta]),
        int(end.h[cta]),
        end.q0 + row,
        None,
        first[2] if len(first) > 2 else None,
        float(got[tuple(first)]),
        float(want[tuple(first)]),
    )
    store = parts.store_tile if step == "o" else parts.store_row
    origin = store.origin if store is not None else NOWHERE
    tile = end.q0 // max(parts.rows, 1)
    return WrongStep(step, element, tile, None, pattern(wrong[cta]), cause, origin)
