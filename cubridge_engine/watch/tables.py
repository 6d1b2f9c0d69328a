"""Every table that attention can contain, in float64, for a meaning and a way of going through the keys.

Rows of a table that say nothing (zeros, ones, infinities) are left to `match` to ignore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..simulate.tensors import bits_of, floats
from .model import Array, Meaning, Problem, Units, Variant
from .problem import default_heads

LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Table:
    """Values of a role: the axes are ``model.AXES[role]``. `tolerance` is absolute and relative.

    `rounded` names the type that the values, or the weights behind them, are rounded to.
    """

    role: str
    units: Units
    values: Array
    absolute: float
    relative: float
    rounded: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a table is known by."""
        return self.role, self.units, self.rounded


def rounded(x: Array, dtype: str) -> Array:
    """Numbers rounded to a dtype (``float16``, ``bfloat16``, ``tf32``)."""
    if dtype == "tf32":
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return floats(bits_of(x, dtype), dtype) if dtype != "float32" else x


# Ways in which kernels make scores from inputs, beside exact products: what the variant is called -> raw scores.
# Each returns Q K^T in the units of `scores`: times the scale where `scaled`.
def _rounded_q(problem: Problem, heads: Array, scale: float, dtype: str) -> Array:
    return rounded(problem.q * scale, dtype) @ problem.k[:, heads].transpose(0, 1, 3, 2) / scale


def _rounded_both(problem: Problem, heads: Array, dtype: str) -> Array:
    return rounded(problem.q, dtype) @ rounded(problem.k, dtype)[:, heads].transpose(0, 1, 3, 2)


def _half_sums(problem: Problem, heads: Array, _: float) -> Array:
    """fp16 accumulators: a sum over 16 columns is added to the accumulator and rounded."""
    k = problem.k[:, heads]
    total = np.zeros((problem.B, problem.H, problem.Sq, problem.Sk))
    for at in range(0, problem.D, 16):
        part = problem.q[..., at : at + 16] @ k[..., at : at + 16].transpose(0, 1, 3, 2)
        total = rounded(total + part.astype(np.float32), "float16")
    return total


ScoreMaker = Callable[[Problem, Array, float], Array]
SCORES: dict[str, ScoreMaker] = {
    "": lambda p, heads, _: p.q @ p.k[:, heads].transpose(0, 1, 3, 2),
    "q scaled in half": lambda p, heads, s: _rounded_q(p, heads, s, "bfloat16" if p.dtype == "bfloat16" else "float16"),
    "q times scale log2(e) in half": lambda p, heads, s: _rounded_q(
        p, heads, s * LOG2E, "bfloat16" if p.dtype == "bfloat16" else "float16"
    ),
    "inputs in tf32": lambda p, heads, _: _rounded_both(p, heads, "tf32"),
    "inputs in float16": lambda p, heads, _: _rounded_both(p, heads, "float16"),
    "inputs in bfloat16": lambda p, heads, _: _rounded_both(p, heads, "bfloat16"),
    "float16 sums": _half_sums,
}


def score_makers(dtype: str) -> tuple[str, ...]:
    """Those of ``SCORES`` that a dtype can have, the exact one first."""
    if dtype == "float32":
        return "", "inputs in tf32", "inputs in float16", "inputs in bfloat16"
    return ("", "q scaled in half", "q times scale log2(e) in half", *(("float16 sums",) if dtype == "float16" else ()))


def with_scores(meaning: Meaning, problem: Problem, name: str, heads: Array | None = None) -> Meaning:
    """The meaning with raw scores made in one of the ways of ``SCORES``. Only for scores that are raw times a scale."""
    if not name or meaning.scale is None:
        return meaning
    raw = SCORES[name](problem, default_heads(problem) if heads is None else heads, meaning.scale)
    return replace(meaning, raw=raw, scores=raw * meaning.scale)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The running values, one per KV tile, on a last axis of tiles in the order of the loop."""

    weights: Array
    rows: Mapping[str, Array]
    accumulators: Mapping[str, Array]
    end: tuple[Array, Array, Array]  # what is subtracted, the sum and O after all keys


def _steps(meaning: Meaning, variant: Variant, half: str, references: Array | None = None) -> _Steps:
    """Online softmax by tiles of `bc` keys; weights are rounded to `half` before the product with V. `references` is
    what is subtracted in place of the maximum, by row and tile; what is not known of it (NaN) stays so. Where the tiles
    are dealt to parts, each has running values of its own, and what they are merged to is among the values.
    """
    masked = np.where(meaning.mask, meaning.scores, -np.inf)
    keys = masked.shape[-1]
    starts = list(range(0, keys, variant.bc))
    if variant.descending:
        starts.reverse()
    final = masked.max(-1)
    first = (*_start(meaning, variant, final.shape), np.zeros((*final.shape, meaning.v.shape[-1])))
    parts = [(first[0], *first)] * variant.parts  # the highest score, what is subtracted, the sum, O
    weights = np.zeros(masked.shape)
    rows: dict[str, list[Array]] = {n: [] for n in ("tile max", "m", "reference", "correction", "tile sum", "l")}
    sums: dict[str, list[Array]] = {n: [] for n in ("tile PV", "O rescaled", "O unnormalised")}
    for number, start in enumerate(starts):
        before, m, total, o = parts[number % variant.parts]
        part = slice(start, start + variant.bc)
        tile = masked[..., part]
        top = tile.max(-1)
        running = np.maximum(before, top)
        new = running if references is None else references[..., start // variant.bc]
        p = np.exp(tile - (new if references is not None else _shift(variant, new, top, final))[..., None])
        weights[..., part] = p
        product = rounded(p, half) @ meaning.v[..., part, :]
        moves = variant.kind in ("online", "per tile", "free")
        factor = np.exp(m - (new if references is not None else _finite(new))) if moves else np.ones_like(new)
        own = np.exp(top - _finite(new)) if variant.kind == "per tile" else np.ones_like(new)
        rescaled = o * factor[..., None]
        o = rescaled + product * own[..., None]
        total = total * factor + p.sum(-1) * own
        parts[number % variant.parts] = running, new, total, o
        # The maximum of a row's first tile is that of a tile where nothing shows that the kernel keeps a running one.
        kept = running if references is None else np.where(np.isfinite(before), running, np.nan)
        for name, value in zip(rows, (top, kept, new, factor, p.sum(-1), total), strict=True):
            rows[name].append(value)
        for name, value in zip(sums, (product, rescaled, o), strict=True):
            sums[name].append(value)
    end = parts[0][1:]
    if variant.parts > 1:
        end = _merged([(m, total, o) for _, m, total, o in parts])
        _with_merged(variant, {"l": rows["l"], **sums}, end)
    return _Steps(
        weights,
        {n: np.stack(v, -1) for n, v in rows.items()},
        {n: np.stack(v, -1) for n, v in sums.items()},
        end,
    )


def _merged(parts: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Maximum, sum and O of all keys, from those of parts."""
    top = np.max([m for m, _, _ in parts], axis=0)
    share = [np.exp(m - _finite(top)) for m, _, _ in parts]
    total = sum((t * f for (_, t, _), f in zip(parts, share, strict=True)), np.zeros_like(top))
    o = sum((x * f[..., None] for (_, _, x), f in zip(parts, share, strict=True)), np.zeros_like(parts[0][2]))
    return top, total, o


def _with_merged(variant: Variant, lists: Mapping[str, list[Array]], end: tuple[Array, Array, Array]) -> None:
    """Add the sum and O of all keys (their maximum is that of a part) behind the last tile. Where a tile is one key,
    they take the place of what the first keys of the parts say: a sum of 1, and O that is a row of V.
    """
    for name, held in lists.items():
        value = {"l": end[1], "O unnormalised": end[2]}.get(name, np.full(end[2].shape, np.nan))
        if variant.bc == 1:
            held[: variant.parts] = [value] + [np.full(value.shape, np.nan)] * (variant.parts - 1)
        else:
            held.append(value)


def _shift(variant: Variant, new: Array, top: Array, final: Array) -> Array:
    """What a tile's scores are lowered by: finite."""
    kinds = {"online": new, "per tile": top, "two passes": final}
    return _finite(kinds[variant.kind]) if variant.kind in kinds else np.zeros_like(new)


def _start(meaning: Meaning, variant: Variant, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Maximum and sum before the first tile: a sink may count from the start."""
    if meaning.sink is None or variant.sink != "first":
        return np.full(shape, -np.inf), np.zeros(shape)
    return meaning.sink.astype(float).copy(), np.isfinite(meaning.sink).astype(float)


def _ended(meaning: Meaning, variant: Variant, m: Array, total: Array) -> Array:
    """The sum after the last tile, by which O is divided: a sink that does not count from the start is added."""
    if meaning.sink is None or variant.sink == "first":
        return total
    return total + np.exp(meaning.sink - _finite(m) * (variant.kind != "none"))


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0.0)


def size(x: Array) -> float:
    """Root mean square of the finite values."""
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0


SCORE_TOLERANCE = 1.5e-6, 1e-6
WEIGHT_TOLERANCE = 1e-9, 6e-6
ROW_TOLERANCE = 1e-9, 2e-5


def _in_units(role: str, values: Array, scale: float | None) -> list[Table]:
    """Natural scores in the three units that kernels keep them in."""
    factors: dict[Units, float] = {"scaled": 1.0, "log2": LOG2E}
    if scale:
        factors = {"raw": 1 / scale, **factors}
    absolute, relative = SCORE_TOLERANCE
    made: list[Table] = []
    for units, factor in factors.items():
        # A scale of 1 (or log2 e) makes two units one: the first name stands.
        if not any(np.isclose(factor, factors[t.units]) for t in made):
            x = values * factor
            made.append(Table(role, units, x, absolute * size(x), relative))
    return made


def weight_tables(meaning: Meaning, variant: Variant) -> Table:
    """P alone, to find out how the kernel goes through the keys."""
    masked = np.where(meaning.mask, meaning.scores, -np.inf)
    starts = list(range(0, masked.shape[-1], variant.bc))
    final = masked.max(-1)
    parts = [_start(meaning, variant, final.shape)[0]] * variant.parts
    weights = np.zeros(masked.shape)
    for number, start in enumerate(reversed(starts) if variant.descending else starts):
        tile = masked[..., start : start + variant.bc]
        top = tile.max(-1)
        m = parts[number % variant.parts] = np.maximum(parts[number % variant.parts], top)
        weights[..., start : start + variant.bc] = np.exp(tile - _shift(variant, m, top, final)[..., None])
    return Table("P", "", weights, *WEIGHT_TOLERANCE)


def score_tables(meaning: Meaning) -> tuple[Table, ...]:
    """S in all units."""
    if meaning.scale is not None:
        return tuple(_in_units("S", meaning.scores, meaning.scale))
    # Products as they are, times the scale alone, and what a cap or a bias makes of them.
    unit = meaning.unit
    plain = meaning.raw if unit is None else meaning.raw * unit
    return (*_in_units("S", plain, unit), *_in_units("score", meaning.scores, unit))


def tables(
    meaning: Meaning, variant: Variant, dtype: str = "float32", references: Array | None = None
) -> tuple[Table, ...]:
    """All tables of a softmax: S, m, P, l, O and what lies between, in the units and roundings that kernels use.

    `dtype` is the type that the weights are rounded to for the product with V, where the kernel rounds them.
    `references` ``[B, H, Sq, T]`` goes with the kind ``free``.
    """
    if meaning.weights != "softmax":
        return single_tables(meaning)
    exact = _steps(meaning, variant, "float32", references)
    made = [*score_tables(meaning)]
    for role in ("tile max", "m", *(("reference",) if references is not None else ())):
        made += _in_units(role, exact.rows[role], meaning.scale or meaning.unit)
    made.append(Table("P", "", exact.weights, *WEIGHT_TOLERANCE))
    made += [Table(role, "", exact.rows[role], *ROW_TOLERANCE) for role in ("correction", "tile sum", "l")]
    # What the last sum is relative to.
    last = exact.end[0]
    total = _ended(meaning, variant, last, exact.end[1])
    o = exact.end[2] / np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        made.append(Table("1/l", "", 1 / total, *ROW_TOLERANCE))
        lse = np.log(total) + (_finite(last) if references is None else last) * (variant.kind != "none")
    made += [Table("LSE", "scaled", lse, 3e-6, 2e-5), Table("LSE", "log2", lse * LOG2E, 3e-6, 2e-5)]
    for half in dict.fromkeys(("float32", dtype)):
        steps = exact if half == "float32" else _steps(meaning, variant, half, references)
        name = "" if half == "float32" else half
        slack = 3e-6 if half == "float32" else 4e-5
        made += [Table(role, "", x, slack * size(x), 2e-5, name) for role, x in steps.accumulators.items()]
        if half != "float32":
            o = steps.end[2] / np.where(total == 0, 1, total)[..., None]
        made.append(Table("O", "", o, slack * size(o), 2e-5, name))
    return tuple(made)


def single_tables(meaning: Meaning) -> tuple[Table, ...]:
    """Tables of weights that are functions of a single score."""
    from .function import output_of, weights_of

    p, o = weights_of(meaning), output_of(meaning)
    return (
        *score_tables(meaning),
        Table("P", "", p, *WEIGHT_TOLERANCE),
        Table("O", "", o, 4e-5 * size(o), 2e-5),
    )
