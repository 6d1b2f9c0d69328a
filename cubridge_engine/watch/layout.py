"""Fitting which element each lane holds: every index is affine in bits of thread, CTA, and trips, one offset per
register. Layouts of GPUs are linear over bits, so that a few dozen lanes decide them, and chance never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .model import Array, AxisMap, LaneMap

_ROUNDS = 6
_MOST = 4_000
_VISIT = 12  # values of a trip of a CTA that say something beside its own offset
_VISITS = 64
_APART = 4  # different elements by register and visit


@dataclass(frozen=True, slots=True)
class Held:
    """Observed elements: lanes, trips, number of the register, and the index along each axis."""

    thread: Array
    coords: Array  # (n, 3)
    trip: Array
    register: Array
    index: Array  # (n, axes)


def joined(parts: Sequence[Held]) -> Held:
    """All of them."""
    return Held(
        *(np.concatenate([getattr(p, n) for p in parts]) for n in ("thread", "coords", "trip", "register", "index"))
    )


def fit(held: Held, axes: Sequence[str], wanted: Sequence[str], *, nested: bool = False) -> LaneMap:
    """The map of the axes in `wanted`, those that say nothing (one index) included. `nested`: bits of the trip count
    have coefficients of their own, as trips of a loop inside another have.
    """
    if len(held.thread) > _MOST:
        some = np.random.default_rng(0).permutation(len(held.thread))[:_MOST]
        held = Held(held.thread[some], held.coords[some], held.trip[some], held.register[some], held.index[some])
    names, columns = _features(held, nested)
    found = [_fit_axis(axis, columns, held.register, held.index[:, axes.index(axis)], names) for axis in wanted]
    return LaneMap(tuple(found))


def exact_by_visit(held: Held, axes: Sequence[str], wanted: Sequence[str]) -> float:
    """The share that bits of the thread give right where every trip of every CTA has an offset of its own: a CTA that
    takes items as they come, or a loop inside the KV loop, makes no map of trips. 0 where there is too little to tell.
    """
    visits = np.unique(np.concatenate([held.coords, held.trip[:, None]], 1), axis=0, return_inverse=True)[1].ravel()
    counts = np.bincount(visits)
    kept = np.flatnonzero(counts >= _VISIT)[:_VISITS]
    here = np.isin(visits, kept)
    if not len(kept) or counts[kept].sum() < 0.5 * len(visits):
        return 0.0
    # Lanes that all hold the same fit any offset: they must differ by far more than there are offsets.
    places = np.stack([held.register, visits, *held.index.T], 1)
    if len(np.unique(places, axis=0)) < _APART * len(np.unique(places[:, :2], axis=0)):
        return 0.0
    if here.sum() > _MOST:
        here[np.random.default_rng(0).permutation(np.flatnonzero(here))[_MOST:]] = False
    bits = range(int(held.thread.max(initial=0)).bit_length())
    names = [*(f"t{bit}" for bit in bits), *(f"visit{n}" for n in range(1, len(kept)))]
    columns = [(held.thread[here] >> bit) & 1 for bit in bits] + [visits[here] == n for n in kept[1:]]
    table = np.stack(columns, 1).astype(float)
    at = [axes.index(axis) for axis in wanted]
    fits = [
        _fit_axis(a, table, held.register[here], held.index[here][:, n], names) for a, n in zip(wanted, at, strict=True)
    ]
    return min(f.exact for f in fits)


def _features(held: Held, nested: bool = False) -> tuple[list[str], Array]:
    names: list[str] = []
    columns: list[Array] = []
    for name, values in (("t", held.thread), *zip("xyz", held.coords.T, strict=True)):
        for bit in range(int(values.max(initial=0)).bit_length()):
            names.append(f"{name}{bit}")
            columns.append((values >> bit) & 1)
    for bit in range(int(held.trip.max(initial=0)).bit_length() if nested else 0):
        names.append(f"trip{bit}")
        columns.append((held.trip >> bit) & 1)
    if not nested:
        names.append("trip")
        columns.append(held.trip)
    return names, np.stack(columns, 1).astype(float)


def _fit_axis(axis: str, columns: Array, register: Array, index: Array, names: list[str]) -> AxisMap:
    """Least squares without the worst, again and again: a few chance matches must not bend the map.

    The offset of a register is the mean of what the bits leave; it goes out of the equations before they are solved.
    """
    y = index.astype(float)
    keep = np.ones(len(y), bool)
    solution = np.zeros(len(names))
    registers = int(register.max(initial=0)) + 1
    for _ in range(_ROUNDS):
        centred, target = _centred(columns, register, keep, registers), _centred(y[:, None], register, keep, registers)
        part = centred[keep]
        normal = part.T @ part + 1e-6 * np.eye(len(names))
        solution = np.linalg.solve(normal, part.T @ target[keep, 0])
        away = np.abs(centred @ solution - target[:, 0])
        keep = away <= max(float(np.quantile(away, 0.85)), 0.3)
    whole = np.rint(solution)
    rest = y - columns @ whole
    order = np.lexsort((rest, register))
    counts = np.bincount(register, minlength=registers)
    middles = np.cumsum(counts) - counts + counts // 2
    offsets = np.rint(rest[order][np.minimum(middles, len(order) - 1)])
    exact = float((rest == offsets[register]).mean()) if len(y) else 0.0
    coefficients = {n: int(c) for n, c in zip(names, whole, strict=True) if c}
    return AxisMap(axis, coefficients, tuple(int(o) for o in offsets), exact, _linear(offsets))


def _centred(x: Array, register: Array, keep: Array, registers: int) -> Array:
    """Columns minus their mean over the kept entries of the same register."""
    count = np.maximum(np.bincount(register[keep], minlength=registers), 1)
    means = np.stack([np.bincount(register[keep], column[keep], registers) / count for column in x.T], 1)
    return x - means[register]


def _linear(offsets: Array) -> bool:
    """True where the offset of register r is a sum over the bits of r."""
    first = offsets[0]
    steps = {bit: offsets[1 << bit] - first for bit in range(len(offsets).bit_length()) if 1 << bit < len(offsets)}
    return all(
        offsets[r] == first + sum(step for bit, step in steps.items() if r >> bit & 1) for r in range(len(offsets))
    )
