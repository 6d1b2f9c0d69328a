"""The state of the online softmax after a trip through the KV loop: l and O against the tiles seen so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.nodes import NOWHERE, Origin
from ..ir.observing import CtaState
from .steps_causes import near
from .steps_parts import Parts
from .steps_tables import Tables

Array = NDArray[Any]
SLACK = 1e-5


@dataclass(frozen=True, slots=True)
class Ending:
    """What a batch of CTAs held when it stored O: the accumulated O [CTAs, rows, Dv] and l [CTAs, rows, lanes]."""

    b: Array
    h: Array
    q0: int
    o: Array
    l: Array | None  # noqa: E741
    ref: Array


@dataclass(slots=True)
class Trip:
    """What the judge remembers of a batch of CTAs: tiles seen, and for the current one the values before and after."""

    tables: Tables
    b: Array
    h: Array
    q0: int
    rows: int
    bc: int
    parts: Parts
    seen: list[int] = field(default_factory=list[int])
    kv0: int = 0
    ref: Array = field(init=False)
    before: Array = field(init=False)  # the reference before this trip
    o: Array | None = None
    l: Array | None = None  # noqa: E741
    rescaled: Array | None = None
    weights: Array | None = None

    def __post_init__(self) -> None:
        self.ref = self.before = np.full((len(self.b), self.rows), np.nan)

    def begin(self, kv0: int, cta: CtaState) -> None:
        """A new tile: remember what the state was."""
        self.kv0 = kv0
        self.seen.append(kv0)
        self.o = cta.tiles[self.parts.acc].copy() if self.parts.acc in cta.tiles else None
        self.l = cta.rows[self.parts.l].copy() if self.parts.l in cta.rows else None
        self.rescaled = self.weights = None

    def keys(self) -> Array:
        """The keys of the tiles seen, each as often as it was seen."""
        tiles = [np.arange(max(kv0, 0), min(kv0 + self.bc, self.tables.x.shape[3])) for kv0 in self.seen]
        return np.concatenate(tiles) if tiles else np.zeros(0, dtype=int)

    def _part(self, table: Array) -> Array:
        return table[self.b, self.h, self.q0 : self.q0 + self.rows][:, :, self.keys()]

    def live(self) -> Array:
        """Rows that have seen a key that they attend: [CTAs, rows]."""
        return np.asarray(self._part(self.tables.keep).any(axis=2))

    def top(self) -> Array:
        """The largest attended score that each row has seen."""
        return np.where(self._part(self.tables.keep), self._part(self.tables.x), -np.inf).max(axis=2, initial=-np.inf)

    def refer(self, ref: Array) -> None:
        """The reference of each row in this tile; rows that attend none of its keys keep theirs."""
        self.before = self.ref
        self.ref = np.where(np.isfinite(ref), ref, self.ref)

    def expected(self) -> tuple[Array, Array]:
        """l [CTAs, rows] and O [CTAs, rows, Dv] relative to the references, over the tiles seen."""
        keep, x = self._part(self.tables.keep), self._part(self.tables.x)
        with np.errstate(invalid="ignore", over="ignore"):
            weight = np.where(keep, np.exp(x - self.ref[..., None]), 0.0)
            total = weight.sum(axis=2)
            if self.tables.sink is not None:
                total = total + np.exp(self.tables.sink[self.b, self.h, self.q0 : self.q0 + self.rows] - self.ref)
        v = self.tables.v[self.b, self.tables.heads[self.h]][:, self.keys()]
        return total, weight @ v

    def correction(self) -> Array:
        """What l and O of the tiles before are multiplied by; NaN for rows that had none."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.exp(self.before - self.ref)

    def ending(self, cta: CtaState, q0: int) -> Ending:
        """The state at the store of O."""
        o = cta.tiles.get(self.parts.acc, np.zeros((len(self.b), self.rows, 0)))
        return Ending(self.b, self.h, q0, o[:, : self.rows].copy(), _rows(cta, self.parts.l, self.rows), self.ref)


@dataclass(frozen=True, slots=True)
class StateFault:
    """A part of the state that is wrong: arrays [CTAs, rows] or [CTAs, rows, Dv]."""

    step: str
    wrong: Array
    got: Array
    want: Array
    origin: Origin
    cause: str


def wrong_state(trip: Trip, cta: CtaState) -> StateFault | None:
    """The first part of l and O that does not follow from the tiles seen; None where both do."""
    judged = np.isfinite(trip.ref) & trip.live()
    want_l, want_o = trip.expected()
    checks = (_row_sum(trip, cta, judged, want_l), _accumulator(trip, cta, judged, want_o))
    first, second = checks if trip.parts.l_first else checks[::-1]
    found = first or second
    if found is None:
        return None
    wrong = _correction(trip, cta, judged) if found.step in ("l", "rescale") else None
    return wrong or found


def _rows(cta: CtaState, name: str, rows: int) -> Array | None:
    held = cta.rows.get(name)
    return None if held is None else held[:, :rows].copy()


def _total(held: Array, judged: Array) -> Array:
    """A row sum [CTAs, rows] over its lanes: of partial ones the sum, of equal ones any."""
    alike = bool(near(held[judged], held[judged][:, :1]).all())
    return held[..., 0] if alike else held.sum(axis=2)


def _row_sum(trip: Trip, cta: CtaState, judged: Array, want: Array) -> StateFault | None:
    held = _rows(cta, trip.parts.l, trip.rows)
    if held is None:
        return None
    got = _total(held, judged)
    wrong = judged & ~near(np.where(judged, got, 0.0), np.where(judged, want, 0.0), SLACK)
    if not wrong.any():
        return None
    cause = ""
    if trip.l is not None and trip.weights is not None:
        before = trip.l[:, : trip.rows]
        now = trip.weights[:, : trip.rows].sum(axis=2)
        old = (before.sum(axis=2), before[..., 0])
        if any(bool(near(got[judged], (o + now)[judged], SLACK).all()) for o in old):
            cause = "the sum of the tiles before is not multiplied by the correction when the maximum moves"
        elif bool(near(got[judged], now[judged], SLACK).all()):
            cause = "only the last tile is summed"
    return StateFault("l", wrong, got, want, trip.parts.l_origin, cause)


def _accumulator(trip: Trip, cta: CtaState, judged: Array, want: Array) -> StateFault | None:
    parts = trip.parts
    if parts.pv is None or parts.acc not in cta.tiles:
        return None
    got = cta.tiles[parts.acc][:, : trip.rows, : want.shape[2]]
    wrong = judged[..., None] & ~near(np.where(judged[..., None], got, 0.0), np.where(judged[..., None], want, 0.0))
    if not wrong.any():
        return None
    rescale = _rescaling(trip, judged, got, wrong, want)
    return rescale or StateFault("pv", wrong, got, want, parts.pv.origin, _values_cause(trip, got))


def _rescaling(trip: Trip, judged: Array, got: Array, wrong: Array, want: Array) -> StateFault | None:
    """O of the tiles before, times the correction, where that is what is wrong."""
    parts = trip.parts
    if trip.o is None or trip.weights is None or parts.pv is None:
        return None
    width = want.shape[2]
    before = trip.o[:, : trip.rows, :width]
    factor = trip.correction()
    moved = judged & np.isfinite(factor)
    due = np.where(moved[..., None], before * np.where(moved, factor, 0.0)[..., None], 0.0)
    if trip.rescaled is not None:
        have = trip.rescaled[:, : trip.rows, :width]
        off = moved[..., None] & ~near(np.where(moved[..., None], have, 0.0), due)
        if not off.any():
            return None
        at = parts.rescale.origin if parts.rescale is not None else NOWHERE
        same = bool(near(have[moved], before[moved]).all())
        cause = "O of the tiles before is not multiplied by the correction when the maximum moves" if same else ""
        return StateFault("rescale", off, have, due, at, cause)
    change = got - before
    product = want - due
    if bool(near(change[moved], product[moved]).all()) and not bool(near(before[moved], due[moved]).all()):
        cause = "O of the tiles before is not multiplied by the correction when the maximum moves"
        return StateFault("rescale", wrong, got, want, parts.pv.origin, cause)
    return None


def _values_cause(trip: Trip, got: Array) -> str:
    if not np.isfinite(got).all():
        return "P or V of this tile is not finite"
    return ""


def _correction(trip: Trip, cta: CtaState, judged: Array) -> StateFault | None:
    """The correction itself, where there is one and it is not ``exp(m_old - m_new)`` of the references that P shows."""
    op = trip.parts.correction
    if op is None or op.row not in cta.rows:
        return None
    got = cta.rows[op.row][:, : trip.rows, 0]
    want = trip.correction()
    first = judged & ~np.isfinite(trip.before) & np.isinf(got)
    if first.any():
        cause = "it is exp(m_new - m_old) where m_old is still -inf: old and new maximum are exchanged"
        return StateFault("correction", first, got, np.where(first, 0.0, got), op.origin, cause)
    moved = judged & np.isfinite(want)
    wrong = moved & ~near(np.where(moved, got, 1.0), np.where(moved, want, 1.0))
    if not wrong.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log(got[wrong]) / np.log(want[wrong])
    cause = ""
    power = float(np.median(powers)) if np.isfinite(powers).all() else 0.0
    if power and bool((np.abs(powers - power) < 1e-4).all()):
        cause = _power_cause(power)
    return StateFault("correction", wrong, got, want, op.origin, cause)


def _power_cause(power: float) -> str:
    if abs(power + 1) < 1e-4:
        return "old and new maximum are exchanged"
    if abs(power - 1) < 1e-4:
        return ""
    return f"its exponent is {power:.6g} times m_old - m_new: it is in another unit than the exponent of P"
