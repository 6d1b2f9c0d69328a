"""Which attention a kernel's output is: compared with a table of masks, scales and weights, without any label.

Every other function of the list is off by far more than rounding, so the bound can be that of the widest rounding that
kernels use; which functions the problem cannot tell apart is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .model import Array, Function, Meaning, Problem
from .problem import default_heads, meaning_of, raw_scores

LOG2E = math.log2(math.e)
SCREENED = 16  # query rows that are looked at before a candidate is compared as a whole
# Largest |O - reference| allowed, in units of the largest |reference|: plain, and with inputs rounded on the way.
BOUNDS = {"float32": (1e-4, 4e-3), "float16": (4e-3, 1e-2), "bfloat16": (2.5e-2, 4e-2)}


@dataclass(frozen=True, slots=True)
class MaskRow:
    """A mask of the table: its name, and the range of j - i that is attended (None: no end)."""

    name: str
    low: int | None
    high: int | None
    diagonal: int = 0


def mask_rows(sq: int, sk: int) -> tuple[MaskRow, ...]:
    """The masks that are tried, those that occur most first."""
    off = sk - sq
    rows = [MaskRow("full", None, None), MaskRow("causal", None, 0)]
    if off:
        rows.append(MaskRow("causal bottom-right", None, off, off))
    rows.append(MaskRow("strict causal", None, -1))
    return (*rows, MaskRow("anti-causal", 0, None))


def band(sq: int, sk: int, low: int | None, high: int | None) -> Array:
    """True where low <= j - i <= high, ``[Sq, Sk]``."""
    distance = np.arange(sk)[None] - np.arange(sq)[:, None]
    above = True if low is None else distance >= low
    below = True if high is None else distance <= high
    return np.broadcast_to(np.logical_and(above, below), (sq, sk))


def scales(d: int, passed: float) -> dict[str, float]:
    """Scales by their text. A caller's own comes first."""
    root = d**-0.5
    table = {"1/sqrt(D)": root, "1": 1.0, "1/D": 1 / d, "log2(e)/sqrt(D)": root * LOG2E, "ln(2)/sqrt(D)": root / LOG2E}
    return table if any(math.isclose(passed, s) for s in table.values()) else {"the argument": passed, **table}


def head_maps(problem: Problem) -> dict[str, Array]:
    """KV head of each query head, by its text."""
    heads = np.arange(problem.H)
    if problem.Hkv == problem.H:
        return {"h": heads}
    return {"h / (H / Hkv)": default_heads(problem), "h % Hkv": heads % problem.Hkv}


def weights_of(meaning: Meaning) -> Array:
    """The weights of V, normalised where the function is, ``[B, H, Sq, Sk]``; rows without keys are 0."""
    masked = np.where(meaning.mask, meaning.scores, -np.inf)
    if meaning.weights != "softmax":
        return np.where(meaning.mask, SINGLE[meaning.weights](meaning.scores), 0.0)
    top = masked.max(-1, keepdims=True, initial=-np.inf)
    if meaning.sink is not None:
        top = np.maximum(top, meaning.sink[..., None])
    p = np.exp(masked - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    if meaning.sink is not None:
        total = total + np.exp(meaning.sink[..., None] - np.where(np.isfinite(top), top, 0))
    return p / np.where(total > 0, total, 1)


SINGLE: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda s: 1 / (1 + np.exp(-s)),
    "relu": lambda s: np.maximum(s, 0),
    "linear": lambda s: s,
}


def output_of(meaning: Meaning) -> Array:
    """O ``[B, H, Sq, Dv]``."""
    return weights_of(meaning) @ meaning.v


def lse_of(meaning: Meaning) -> Array:
    """The natural logarithm of the row sum of exp(scores), a sink included, ``[B, H, Sq]``."""
    masked = np.where(meaning.mask, meaning.scores, -np.inf)
    if meaning.sink is not None:
        masked = np.concatenate([masked, meaning.sink[..., None]], -1)
    top = masked.max(-1, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(masked - safe[..., None]).sum(-1))


def difference(o: Array, want: Array) -> float:
    """The largest |O - reference| in units of the largest |reference|; infinite where O has NaN."""
    error = np.abs(o - want)
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0) / max(np.abs(want).max(initial=0.0), 1e-30))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One function of the list, as a meaning, with its words."""

    row: MaskRow
    scale_text: str
    scale: float
    weights: str
    head_text: str
    meaning: Meaning


def candidates(problem: Problem, some: Array | None = None) -> Iterator[Candidate]:
    """The list, the likely ones first. `some`: numbers of the query rows that the meanings are made for (None: all)."""
    rows = mask_rows(problem.Sq, problem.Sk)
    chosen = slice(None) if some is None else some
    for weights in ("softmax", *SINGLE):
        for head_text, heads in head_maps(problem).items():
            raw = raw_scores(problem, heads, problem.q[:, :, chosen])
            for text, scale in scales(problem.D, problem.scale).items():
                for row in rows:
                    mask = band(problem.Sq, problem.Sk, row.low, row.high)[chosen]
                    meaning = meaning_of(problem, mask, scale, head_map=heads, weights=weights, raw=raw)
                    yield Candidate(row, text, scale, weights, head_text, meaning)


def identify(problem: Problem, o: Array, lse: Array | None = None) -> Function | None:
    """The function of the list that O ``[B, H, Sq, Dv]`` agrees with; None where it is none of them."""
    best, loose = min(BOUNDS[problem.dtype]), max(BOUNDS[problem.dtype])
    # A few rows tell most of the list from the kernel.
    some = np.unique(np.linspace(0, problem.Sq - 1, min(problem.Sq, SCREENED)).round().astype(int))
    size = max(float(np.abs(o).max(initial=0.0)), 1e-30)
    found: tuple[Candidate, float] | None = None
    for part in candidates(problem, some):
        away = np.abs(o[:, :, some] - output_of(part.meaning))
        if not away.size or not np.nan_to_num(away, nan=np.inf).max() <= 2 * loose * size:
            continue
        candidate = _whole(problem, part)
        error = difference(o, output_of(candidate.meaning))
        if error <= loose and (found is None or error < found[1]):
            found = candidate, error
            if error <= best:
                break
    if found is None:
        return None
    return _function(problem, found[0], found[1], best if found[1] <= best else loose, o, lse)


def _whole(problem: Problem, part: Candidate) -> Candidate:
    """A candidate with its meaning for all rows."""
    row, heads = part.row, head_maps(problem)[part.head_text]
    mask = band(problem.Sq, problem.Sk, row.low, row.high)
    return replace(part, meaning=meaning_of(problem, mask, part.scale, head_map=heads, weights=part.weights))


def _function(problem: Problem, c: Candidate, error: float, bound: float, o: Array, lse: Array | None) -> Function:
    units, lse_error = lse_units(c.meaning, lse)
    alike = [
        row.name
        for row in mask_rows(problem.Sq, problem.Sk)
        if row != c.row and difference(o, _with_mask(problem, c, row)) <= bound
    ]
    if problem.Sq == problem.Sk and c.row.name == "causal":
        alike.append("causal bottom-right")
    return Function(
        c.row.name, c.row.diagonal, c.scale, c.scale_text, c.weights, c.head_text, units, error,
        bound, lse_error, tuple(alike), c.meaning, low=c.row.low, high=c.row.high,
    )  # fmt: skip


def _with_mask(problem: Problem, c: Candidate, row: MaskRow) -> Array:
    mask = np.broadcast_to(band(problem.Sq, problem.Sk, row.low, row.high), c.meaning.scores.shape)
    return output_of(replace(c.meaning, mask=mask))


def lse_units(meaning: Meaning, lse: Array | None) -> tuple[str, float | None]:
    """In which units a kernel writes LSE (``natural``, ``log2``; ``other`` where neither), and how far it is off."""
    if lse is None or np.isnan(lse).all() or meaning.weights != "softmax":
        return "", None
    want = lse_of(meaning)
    alive = np.isfinite(want)
    if not alive.any():
        return "other", None
    errors = {
        name: float(np.nan_to_num(np.abs(lse - want * factor)[alive], nan=np.inf).max())
        for name, factor in (("natural", 1.0), ("log2", LOG2E))
    }
    name = min(errors, key=lambda n: errors[n])
    return (name, errors[name]) if errors[name] < 2e-2 else ("other", errors[name])
