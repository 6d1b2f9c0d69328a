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


def fit(held: Held, axes: Sequence[str], wanted: Sequence[str]) -> LaneMap:
    """The map of the axes in `wanted`, those that say nothing (one index) included."""
    if len(held.thread) > _MOST:
        some = np.random.default_rng(0).permutation(len(held.thread))[:_MOST]
        held = Held(held.thread[some], held.coords[some], held.trip[some], held.register[some], held.index[some])
    names, columns = _features(held)
    found = [_fit_axis(axis, columns, held.register, held.index[:, axes.index(axis)], names) for axis in wanted]
    return LaneMap(tuple(found))


def _features(held: Held) -> tuple[list[str], Array]:
    names: list[str] = []
    columns: list[Array] = []
    for name, values in (("t", held.thread), *zip("xyz", held.coords.T, strict=True)):
        for bit in range(int(values.max(initial=0)).bit_length()):
            names.append(f"{name}{bit}")
            columns.append((values >> bit) & 1)
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
