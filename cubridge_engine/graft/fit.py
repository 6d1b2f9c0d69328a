"""Which score each seen value is, and its indices as sums over bits of thread and element and the integers in scope."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .model import Affine, Array, Term

TOLERANCE = 4e-5  # of the largest score, where a value is compared with the one that it should be
NEAR = 4e-7  # where the score is still looked for among many: what summing in another order moves
EXACT = 0.9999
AXES = ("b", "h", "i", "j")
_APART = 4.0  # a value names a score where the next one is that many tolerances away
_LABELS = 3_000
_ENOUGH = 64
_MOST_VARIED = 14  # integers that move, the nearest ones


@dataclass(frozen=True, slots=True)
class Observation:
    """The values that passed one place on one problem, and by its text everything in scope, all of one length.

    `bits` are threadIdx and the loop variables, `integers` the others. `raw` ``[B, H, Sq, Sk]`` are the scores,
    `attended` those of them that the kernel needs.
    """

    values: Array
    bits: Mapping[str, Array]
    integers: Mapping[str, Array]
    raw: Array
    attended: Array


@dataclass(frozen=True, slots=True)
class Matched:
    """The units of a place, the index of each axis (None: not found), and for each problem how often a score passed
    (None where an index is missing).
    """

    units: str
    indices: Mapping[str, Affine | None]
    passed: tuple[Array, ...] | None


def units_of(scale: float) -> dict[str, float]:
    """What raw scores are multiplied with in each unit."""
    return {"raw": 1.0, "scaled": scale, "log2": scale * float(np.log2(np.e))}


def match(seen: Sequence[Observation], factors: Mapping[str, float]) -> Matched | None:
    """Which scores passed a place on all problems; None where what passed is something else."""
    partial: Matched | None = None
    for units, factor in factors.items():
        if not all(_are_scores(one.values, one.raw * factor) for one in seen):
            continue
        labels = [_labels(one.values, one.raw * factor) for one in seen]
        if min(len(which) for which, _ in labels) < _ENOUGH:
            continue
        indices = {axis: _affine(seen, labels, n) for n, axis in enumerate(AXES)}
        found = [a for a in indices.values() if a is not None]
        if len(found) < len(AXES):
            partial = partial or Matched(units, indices, None)
            continue
        passed = [_passed(one, found, factor) for one in seen]
        if all(p is not None for p in passed):
            return Matched(units, indices, tuple(p for p in passed if p is not None))
    return partial


def _tolerance(table: Array, relative: float) -> float:
    return relative * float(np.abs(table).max())


def _are_scores(values: Array, table: Array) -> bool:
    """True where most values have a score near by; with many scores that says little, and spares work."""
    flat = np.sort(table, axis=None)
    at = np.clip(np.searchsorted(flat, values), 1, flat.size - 1)
    near = np.minimum(np.abs(flat[at] - values), np.abs(flat[at - 1] - values))
    return float((near <= _tolerance(table, NEAR)).mean()) >= 0.9


def _labels(values: Array, table: Array) -> tuple[Array, tuple[Array, ...]]:
    """(positions of values, their indices) for some of the values that only one score can be."""
    order = np.argsort(table, axis=None)
    flat = table.ravel()[order]
    some = np.random.default_rng(3).permutation(len(values))[: 40 * _LABELS]
    at = np.clip(np.searchsorted(flat, values[some]), 1, flat.size - 1)
    best = np.where(np.abs(flat[at] - values[some]) < np.abs(flat[at - 1] - values[some]), at, at - 1)
    padded = np.concatenate([[-np.inf], flat, [np.inf]])
    gap = np.minimum(padded[best + 2] - flat[best], flat[best] - padded[best])
    tolerance = _tolerance(table, NEAR)
    close = np.abs(flat[best] - values[some]) <= tolerance
    good = np.flatnonzero(close & (gap > _APART * tolerance))[:_LABELS]
    return some[good], np.unravel_index(order[best[good]], table.shape)


def _affine(seen: Sequence[Observation], labels: Sequence[tuple[Array, tuple[Array, ...]]], axis: int) -> Affine | None:
    """The shortest sum that gives the index at every label: bits of thread and element, and as few of the integers in
    scope as will do.
    """
    index = np.concatenate([at[axis] for _, at in labels]).astype(float)

    def column(name: str, kind: str) -> Array:
        parts = [getattr(one, kind)[name][which] for one, (which, _) in zip(seen, labels, strict=True)]
        return np.concatenate(parts)

    bits = _bits({name: column(name, "bits") for name in seen[0].bits})
    integers = {name: column(name, "integers") for name in seen[0].integers}
    moving = {n for n in integers if any(np.ptp(one.integers[n]) > 0 for one in seen)}
    order = sorted(integers, key=lambda n: n not in moving)  # sizes, which differ from problem to problem only, last
    varied = [(n, integers[n]) for n in order if np.ptp(integers[n]) > 0][:_MOST_VARIED]
    for count in range(3):
        solved = (_solved(index, bits, chosen) for chosen in itertools.combinations(varied, count))
        found = sorted((a for a in solved if a is not None), key=_length)
        if found:
            return found[0]
    return None


def _length(affine: Affine) -> tuple[int, int]:
    """How long it is to read: terms, and what there is to multiply."""
    return len(affine.terms), sum(t.factor != 1 for t in affine.terms)


def _bits(columns: Mapping[str, Array]) -> dict[tuple[str, int], Array]:
    """The bits that move, by name and number."""
    out: dict[tuple[str, int], Array] = {}
    for name, column in columns.items():
        for bit in range(int(column.max(initial=0)).bit_length()):
            out[name, bit] = ((column >> bit) & 1).astype(float)
    return out


def _solved(y: Array, bits: Mapping[tuple[str, int], Array], chosen: Sequence[tuple[str, Array]]) -> Affine | None:
    """Least squares over the bits and the chosen integers; None unless whole coefficients give every label."""
    keys = list(bits)
    matrix = np.stack([*(c.astype(float) for _, c in chosen), *bits.values(), np.ones(len(y))], 1)
    whole = np.rint(np.linalg.lstsq(matrix, y, rcond=None)[0])
    exact = float((np.abs(matrix @ whole - y) < 0.5).mean())
    if exact < EXACT or (whole[: len(chosen)] == 0).any():
        return None
    terms = [Term(n, int(w)) for (n, _), w in zip(chosen, whole, strict=False)]
    terms += _runs({key: int(w) for key, w in zip(keys, whole[len(chosen) :], strict=False) if w})
    return Affine(tuple(terms), int(whole[-1]), exact)


def _runs(bits: Mapping[tuple[str, int], int]) -> list[Term]:
    """Neighbouring bits whose coefficients double, as one term each."""
    out: list[Term] = []
    for (name, bit), factor in sorted(bits.items()):
        last = out[-1] if out else None
        width = last.mask.bit_length() if last is not None else 0
        if last is not None and last.name == name and bit == last.shift + width and factor == last.factor << width:
            out[-1] = Term(name, last.factor, last.shift, last.mask << 1 | 1)
        else:
            out.append(Term(name, factor, bit, 1))
    return out


def index_values(affine: Affine, columns: Mapping[str, Array], count: int) -> Array:
    """The index at every value."""
    total = np.full(count, affine.constant, np.int64)
    for term in affine.terms:
        column = columns[term.name]
        total += ((column >> term.shift & term.mask) if term.mask else column) * term.factor
    return total


def _passed(seen: Observation, indices: Sequence[Affine], factor: float) -> Array | None:
    """How often each score passed; None where the indices do not give every value its own score."""
    columns = {**seen.integers, **seen.bits}
    table = seen.raw * factor
    at = tuple(index_values(a, columns, len(seen.values)) for a in indices)
    inside = np.logical_and.reduce([(x >= 0) & (x < n) for x, n in zip(at, table.shape, strict=True)])
    if not inside.all() or not (np.abs(table[at] - seen.values) <= _tolerance(table, TOLERANCE)).all():
        return None
    passed = np.zeros(table.shape, np.int32)
    np.add.at(passed, at, 1)
    if (passed > 1).any() and not _each_once(np.ravel_multi_index(at, table.shape), seen):
        return None
    return passed


def _each_once(scores: Array, seen: Observation) -> bool:
    """Whether no element of a thread holds a score twice: copies of a score in several lanes are changed alike, and one
    that passes again would be changed again.
    """
    keys = scores.astype(np.int64)
    where = {n: c for n, c in seen.integers.items() if n.startswith("blockIdx.")} | dict(seen.bits)
    for column in where.values():
        keys = keys * (int(column.max(initial=0)) + 1) + column
    return len(np.unique(keys)) == len(keys)
