"""Which attention a kernel computes, found by value: its weights are read off as an output, and a formula is fitted.

With one-hot rows in V the output is the matrix of weights itself. The rows of Q have a common component of many sizes,
so that scores of a row differ little among each other and much from row to row: then the slope of log P over Q K^T at a
row shows a cap, what is missing from the row's sum shows a sink, and which weights are zero shows the mask. Nothing is
named that does not explain every weight; a simpler formula that does comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .function import BOUNDS, difference, head_maps, lse_units, output_of, scales
from .model import Array, Function, Meaning, Problem
from .probe_fit import Fit, fits
from .probe_mask import Keep, keep_of, mask_of
from .problem import raw_scores, stored

Launch = Callable[[Problem], Array | None]  # O [B, H, Sq, Dv] of a problem; None where it did not run
REACH = 60.0  # natural units by which rows are moved at most
# rms of the logarithm of a weight, and what a row's sum may be off: by the type of O and P.
PRECISION = {"float32": (4e-4, 2e-3), "float16": (2.5e-3, 1e-2), "bfloat16": (1.5e-2, 4e-2)}
SHRINK = (1.0, 0.125)  # sizes of inputs that are tried: a kernel that does not scale needs small ones
_LEAST_ROWS = 4  # rows that must show a sink
_SINK_SPREAD = 0.1


def moved(problem: Problem, size: float = 1.0, seed: int = 31) -> Problem:
    """`problem` with other inputs: every row of Q is moved by a common amount along a direction that all keys share."""
    rng = np.random.default_rng(seed)
    unit = np.full(problem.D, problem.D**-0.5)
    scale = max(abs(problem.scale), 1e-6)
    beta = math.sqrt(REACH / scale)
    x = np.linspace(-1, 1, problem.Sq) if problem.Sq > 1 else np.zeros(1)
    steps = REACH * np.sign(x) * np.abs(x) ** 1.5

    def across(shape: tuple[int, ...]) -> Array:
        noise = rng.standard_normal(shape)
        return noise - (noise @ unit)[..., None] * unit

    q, k = across(problem.q.shape), across(problem.k.shape)
    amounts = np.stack([rng.permutation(steps) for _ in range(problem.B * problem.H)]).reshape(q.shape[:3])
    q = size * (q / (scale * math.sqrt(problem.D)) + (amounts / (scale * beta))[..., None] * unit)
    k = k + beta * unit
    v = rng.standard_normal(problem.v.shape)
    return replace(problem, **{n: stored(a, problem.dtype) for n, a in (("q", q), ("k", k), ("v", v))})


def probe_of(problem: Problem, size: float = 1.0) -> Problem:
    """A problem of as many batches as V is narrower than it has rows, with the same Q and K in each: O of batch b is
    the weights of keys ``[b Dv, (b + 1) Dv)``.
    """
    blocks = -(-problem.Sk // problem.Dv)
    one = replace(moved(replace(problem, B=1, q=problem.q[:1], k=problem.k[:1], v=problem.v[:1]), size), B=blocks)
    v = np.zeros((blocks, problem.Hkv, problem.Sk, problem.Dv))
    for j in range(problem.Sk):
        v[j // problem.Dv, :, j, j % problem.Dv] = 1.0
    return replace(one, q=np.repeat(one.q, blocks, 0), k=np.repeat(one.k, blocks, 0), v=v)


def weights_in(problem: Problem, o: Array) -> Array:
    """P ``[H, Sq, Sk]`` of the output of a probe."""
    return np.concatenate(list(o), -1)[..., : problem.Sk].astype(np.float64)


def holds(function: Function, problem: Problem, o: Array) -> bool:
    """Whether O of another problem is what a function says, where it is finite."""
    made = meaning_for(function, problem)
    alive = np.asarray(np.isfinite(o).all(-1))
    if alive.mean() < 0.5:
        return False
    want = np.where(alive[..., None], output_of(made), 0.0)
    return difference(np.where(alive[..., None], o, 0.0), want) <= max(BOUNDS[problem.dtype])


def confirmed(function: Function, problem: Problem, launch: Launch) -> bool | None:
    """Whether the function holds on moved rows, where caps and sinks show; None where that cannot be decided."""
    for size in SHRINK:
        other = moved(problem, size)
        o = launch(other)
        if o is None:
            return None
        if np.isfinite(o).mean() > 0.5:
            return holds(function, other, o)
    return None


def probed(problem: Problem, o: Array, lse: Array | None, launch: Launch) -> Function | None:
    """The function by value; `o` and `lse` are those of `problem`, which it must give too. None where no formula of the
    family explains all weights.
    """
    for size in SHRINK:
        probe = probe_of(problem, size)
        out = launch(probe)
        if out is None or not np.isfinite(out).all():
            continue
        weights = weights_in(probe, out)
        for found in _formulas(probe, weights):
            made = _function(found, problem, o, lse)
            if made is not None:
                return made
    return None


@dataclass(frozen=True, slots=True)
class Formula:
    """What was found: a fit of the scores, the keys that are attended, sinks by head (None: none), the head map."""

    fit: Fit
    keep: Keep
    sink: tuple[float, ...] | None
    head_text: str


def _formulas(probe: Problem, weights: Array) -> Iterator[Formula]:
    rms, slack = PRECISION[probe.dtype]
    if (weights < -1e-3).any() or (weights.sum(-1) > 1 + slack).any():
        return
    for head_text, heads in head_maps(probe).items():
        raw = raw_scores(probe, heads)[0]
        for fit in fits(raw, weights, probe.Sk - probe.Sq, rms):
            keep = keep_of(weights, fit.predicted, probe.Sq, probe.Sk)
            if keep is None:
                continue
            sink = _sinks(weights, fit, mask_of(keep, probe.Sq, probe.Sk), slack)
            if sink is not None:
                yield Formula(fit, keep, sink or None, head_text)


def _sinks(weights: Array, fit: Fit, mask: Array, slack: float) -> tuple[float, ...] | None:
    """The sink of each head by what is missing from the sums of rows: () where nothing is, None where no sink fits."""
    total = weights.sum(-1)
    alive = np.broadcast_to(mask.any(-1), total.shape)
    if (np.abs(total - 1)[alive] <= slack).all():
        return ()
    scores = np.where(mask, fit.scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = scores.max(-1)
        level = top + np.log(np.exp(scores - np.where(np.isfinite(top), top, 0)[..., None]).sum(-1))
        logit = level + np.log1p(-np.minimum(total, 1)) - np.log(total)
    telling = alive & (total > 0.06) & (total < 0.94)
    found: list[float] = []
    for head in range(len(total)):
        values = logit[head][telling[head]]
        if len(values) < _LEAST_ROWS or np.quantile(np.abs(values - np.median(values)), 0.9) > _SINK_SPREAD:
            return None
        found.append(float(np.median(values)))
    expected = 1 / (1 + np.exp(np.array(found)[:, None] - level))
    return tuple(found) if (np.abs(expected - total)[alive] <= 2 * slack).all() else None


def _function(found: Formula, problem: Problem, o: Array, lse: Array | None) -> Function | None:
    """The formula on the problem that was watched; None where its output is another one."""
    fit, keep = found.fit, found.keep
    named = scales(problem.D, problem.scale)
    text = next((t for t, s in named.items() if math.isclose(s, fit.scale, rel_tol=5e-3)), "")
    scale = named[text] if text else fit.scale
    cap = _plain(fit.softcap) if fit.softcap is not None else None
    sink, sink_text = (None, "") if found.sink is None else _known_as(found.sink, problem)
    made = Function(
        keep.name, keep.diagonal, scale, text or f"{scale:.5g}", "softmax", found.head_text, "", 0.0, 0.0,
        softcap=cap, bias=fit.bias, slopes=fit.slopes, low=keep.low, high=keep.high, first=keep.first,
        block=keep.block, sink=sink, sink_text=sink_text, confirmed=True, alike=keep.alike,
    )  # fmt: skip
    meaning = meaning_for(made, problem)
    error, bound = difference(o, output_of(meaning)), max(BOUNDS[problem.dtype])
    if error > bound:
        return None
    units, lse_error = lse_units(meaning, lse)
    return replace(made, error=error, bound=bound, lse=units, lse_error=lse_error, meaning=meaning)


def _known_as(values: tuple[float, ...], problem: Problem) -> tuple[tuple[float, ...], str]:
    """Numbers by head as those of an operand where they are; else as somebody would write them."""
    for name, array in problem.operands.items():
        if array.shape == (len(values),) and np.abs(array - values).max() <= 0.03:
            return tuple(float(x) for x in array), f"{name}[h]"
    return tuple(_plain(x, 0.03) for x in values), ""


def _plain(x: float, absolute: float = 0.0) -> float:
    """A number as somebody would write it, where it is one within what was measured."""
    if abs(x) <= absolute / 10:
        return 0.0
    for digits in (1, 2, 3):
        short = float(f"{x:.{digits}g}")
        if abs(short - x) <= max(4e-3 * abs(x), absolute):
            return short
    return x


def meaning_for(f: Function, problem: Problem) -> Meaning:
    """A function as arrays on a problem."""
    heads = head_maps(problem).get(f.head_map)
    heads = np.arange(problem.H) if heads is None else heads
    raw = raw_scores(problem, heads)
    scores = raw * f.scale
    if f.softcap is not None:
        scores = f.softcap * np.tanh(scores / f.softcap)
    if f.slopes:
        scores = scores + np.array(f.slopes)[:, None, None] * _distance(f.bias, problem.Sq, problem.Sk)
    keep = Keep(f.mask, f.diagonal, f.low, f.high, f.first, f.block)
    mask = np.broadcast_to(mask_of(keep, problem.Sq, problem.Sk), scores.shape)
    shape = (problem.B, problem.H, problem.Sq)
    sink = None if f.sink is None else np.broadcast_to(np.array(f.sink)[None, :, None], shape)
    plain = f.softcap is None and not f.slopes
    return Meaning(raw, scores, mask, problem.v[:, heads], f.weights, sink, f.scale if plain else None, f.scale)


def _distance(bias: str, sq: int, sk: int) -> Array:
    from .probe_fit import FEATURES

    return FEATURES[bias](np.arange(sq)[:, None], np.arange(sk)[None], sk - sq)
