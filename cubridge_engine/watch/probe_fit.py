"""A formula of scores fitted to measured weights: a scale, a cap, a bias over distance with one slope per head.

``log P`` of a row is the score up to a constant of the row, so constants of rows are taken out before anything is
compared. The simplest formula that explains every weight within the precision of the output comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .model import Array

# What a bias is a multiple of, over i, j and Sk - Sq.
FEATURES: Mapping[str, Callable[[Array, Array, int], Array]] = {
    "j - i": lambda i, j, off: j - (i + off) * 1.0,
    "-|j - i|": lambda i, j, off: -np.abs(j - i) * 1.0,
    "-|j - i - (Sk - Sq)|": lambda i, j, off: -np.abs(j - i - off) * 1.0,
}
_CAPS = (3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
_LEAST = 64  # weights that must be explained
_SMALL = 1e-3  # of the largest weight of a row: below it rounding is too large
_FLOOR = 4e-4
_ROUNDS = 15
_ROWS = 48  # of a head that a formula is fitted to; it is judged by all
_STARTS = 2  # caps that a search starts from
_BETTER = 3.0  # times the rms of a formula with less in it


@dataclass(frozen=True, slots=True)
class Fit:
    """`scores` ``[H, Sq, Sk]`` by the formula, and `predicted` the weights if every key were attended (0 in rows of
    which nothing is known).
    """

    scale: float
    softcap: float | None
    bias: str
    slopes: tuple[float, ...]
    scores: Array
    predicted: Array
    rms: float


def fits(raw: Array, weights: Array, off: int, rms: float) -> Iterator[Fit]:
    """The formulas that explain the weights ``[H, Sq, Sk]``, the simplest first. `raw` is Q K^T of the same shape."""
    top = weights.max(-1, keepdims=True)
    valid = weights > np.maximum(_SMALL * top, _FLOOR)
    valid &= valid.sum(-1, keepdims=True) >= 2
    if valid.sum() < _LEAST:
        return
    logs = np.log(np.where(valid, weights, 1.0))
    some = np.unique(np.linspace(0, raw.shape[1] - 1, min(raw.shape[1], _ROWS)).round().astype(int))
    i, j = np.arange(raw.shape[1])[:, None], np.arange(raw.shape[2])[None]
    features = {name: np.broadcast_to(f(i, j, off), raw.shape) for name, f in FEATURES.items()}
    least = np.inf
    for capped in (False, True):
        for name in ("", *features):
            feature = features.get(name)
            part = None if feature is None else feature[:, some]
            found = _fit(raw[:, some], logs[:, some], valid[:, some], part, capped)
            if found is None:
                continue
            scale, cap, slopes, _ = found
            error = _rms(raw, logs, valid, feature, found)
            # A further term must explain what the simpler formulas do not.
            better = error < least / _BETTER
            least = min(least, error)
            if error <= rms and better and scale > 0 and (not name or _counts(slopes, features[name], valid, rms)):
                yield _made(raw, weights, valid, logs, scale, cap, name, slopes, features, error)
                break  # the other kinds of distance say the same, or worse


def _rms(
    raw: Array, logs: Array, valid: Array, feature: Array | None, found: tuple[float, float | None, Array, float]
) -> float:
    """What a formula leaves of the logarithms, over all weights that count."""
    scale, cap, slopes, _ = found
    scores = _scores(raw, scale, cap) if feature is None else _scores(raw, scale, cap) + slopes[:, None, None] * feature
    return float(np.sqrt(np.mean(_centred(logs - scores, valid)[valid] ** 2)))


def _counts(slopes: Array, feature: Array, valid: Array, rms: float) -> bool:
    """A bias that moves nothing by more than rounding is none."""
    spread = np.where(valid, feature, np.nan)
    return bool(np.nanmax(np.abs(slopes[:, None, None]) * np.abs(spread - np.nanmean(spread))) > 8 * rms)


def _made(
    raw: Array, weights: Array, valid: Array, logs: Array, scale: float, cap: float | None, name: str, slopes: Array,
    features: Mapping[str, Array], error: float,
) -> Fit:  # fmt: skip
    scores = _scores(raw, scale, cap)
    if name:
        scores = scores + slopes[:, None, None] * features[name]
    count = valid.sum(-1, keepdims=True)
    constant = np.where(valid, logs - scores, 0).sum(-1, keepdims=True) / np.maximum(count, 1)
    # A row with a single key that counts says nothing of the formula, but something of its neighbours.
    alone = (count == 0) & (weights > _FLOOR).any(-1, keepdims=True)
    at = weights.argmax(-1)[..., None]
    single = np.log(np.maximum(np.take_along_axis(weights, at, -1), 1e-30)) - np.take_along_axis(scores, at, -1)
    constant = np.where(alone, single, constant)
    known = (count > 0) | alone
    predicted = np.where(known, np.exp(np.minimum(scores + constant, 60)), 0.0)
    return Fit(scale, cap, name, tuple(float(s) for s in slopes) if name else (), scores, predicted, error)


def _scores(raw: Array, scale: float, cap: float | None) -> Array:
    return raw * scale if cap is None else cap * np.tanh(raw * scale / cap)


def _fit(
    raw: Array, logs: Array, valid: Array, feature: Array | None, capped: bool
) -> tuple[float, float | None, Array, float] | None:
    """(scale, cap, slopes by head, rms) by least squares over the weights that count."""
    heads = len(raw)
    target = _centred(logs, valid)[valid]
    extra = np.zeros((len(target), 0))
    if feature is not None:
        column = _centred(feature, valid)[valid]
        head = np.nonzero(valid)[0]
        extra = np.where(head[:, None] == np.arange(heads), column[:, None], 0.0)

    def solved(columns: Array) -> tuple[Array, float]:
        matrix = np.concatenate([columns, extra], 1)
        normal = matrix.T @ matrix
        normal = normal + 1e-10 * np.trace(normal) * np.eye(len(normal))
        solution = np.linalg.solve(normal, matrix.T @ target)
        return solution, float(np.sqrt(np.mean((matrix @ solution - target) ** 2)))

    if not capped:
        solution, error = solved(_centred(raw, valid)[valid][:, None])
        return float(solution[0]), None, solution[1:], error
    best: tuple[float, float, Array, float] | None = None
    # Where the rows are near 0 a cap hardly shows: the scale of those starts the search.
    near = valid & (np.abs(raw) < np.quantile(np.abs(raw[valid]), 0.2))
    at = _centred(raw, near)[near]
    start = float(at @ _centred(logs, near)[near] / max(float(at @ at), 1e-30))
    errors = {cap: solved(_centred(_scores(raw, abs(start), cap), valid)[valid][:, None])[1] for cap in _CAPS}
    for cap in sorted(errors, key=lambda c: errors[c])[:_STARTS]:
        found = _refined(raw, valid, solved, abs(start), cap)
        if found is not None and (best is None or found[3] < best[3]):
            best = found
    return best


def _refined(
    raw: Array, valid: Array, solved: Callable[[Array], tuple[Array, float]], scale: float, cap: float
) -> tuple[float, float, Array, float] | None:
    """Gauss-Newton over the logarithms of scale and cap, with the linear part solved along."""
    at = np.log(np.array([scale, cap]))
    best = np.inf
    kept: tuple[float, float, Array, float] | None = None
    for _ in range(_ROUNDS):
        s, c = (float(x) for x in np.exp(at))
        ratio = np.clip(raw * s / c, -30, 30)
        tanh = np.tanh(ratio)
        by_scale = c * ratio * (1 - tanh**2)
        by_cap = c * tanh - by_scale
        # The model is the sum of both columns: what they get beyond 1 are the steps of the logarithms.
        model = _centred(c * tanh, valid)[valid]
        fixed, error = solved(model[:, None])
        if abs(fixed[0] - 1) < 0.02 and error < best:
            best, kept = error, (s, c, fixed[1:], error)
        solution, _ = solved(np.stack([_centred(by_scale, valid)[valid], _centred(by_cap, valid)[valid]], 1))
        step = np.clip(solution[:2] - 1, -0.5, 0.5)
        if not np.isfinite(step).all():
            break
        at = at + step
        if np.abs(step).max() < 1e-7 or np.abs(at).max() > 12:
            break
    return kept


def _centred(x: Array, valid: Array) -> Array:
    """`x` less the mean of its row over the entries that count."""
    count = np.maximum(valid.sum(-1, keepdims=True), 1)
    return x - np.where(valid, x, 0.0).sum(-1, keepdims=True) / count
