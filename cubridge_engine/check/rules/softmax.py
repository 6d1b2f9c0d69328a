"""The online softmax as numbers: is what a tile adds, and what earlier tiles left, in the units of one maximum?

A program is run on raw scores that are given (`rowwise`). Where its output is the softmax of its own scores under its
own masks, nothing is said. Where it is not, each tile's weights tell by which factor the exponent moved,
``P = exp(natural score) * g(m)``; O and l must have been rescaled by that factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnostics import Span
from ...ir.evaluate import UnboundName, evaluate
from ...ir.expr import Call, Const, free_vars, walk
from ...ir.nodes import Kernel, LaneReduce, Map, Mma, Op, RowMap, RowReduce, Score, StoreRow, StoreTile
from ...ir.validate import iterate
from .. import repairs
from ..model import Finding
from ..problems import Problem, operands, problem
from ..rowwise import COLUMNS, Rows, Tile, Undecided, run_rows
from ..subject import Subject, finding
from ..text_places import weight_of

Array = NDArray[Any]
_CLOSE = 1e-6
_MOVED = 1e-3  # a factor that differs from 1 by less says nothing
_FAR = 300.0  # natural units: exp of that is no number of float32
_NEAR = 40.0  # exp of that still is
_TURNED = "the correction is exp(m_new - m_old), the wrong way round: it is infinite while the maximum is still -inf"
_TWICE = "P multiplies by the scale once more: it is in another unit than the correction, and the scale counts twice"
_TWO_BASES = "P is in another unit than the correction and the stored log-sum-exp: they differ by log2(e), exp for exp2"


class Softmax:
    """A program and one run of it, on whole tiles."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ops = list(iterate(kernel.body))
        rows = kernel.Br * max(1, -(-3 * kernel.Bc // kernel.Br))
        keys = kernel.Bc * max(3, -(-rows // kernel.Bc)) if rows > 3 * kernel.Bc else 3 * kernel.Bc
        flags = {p.name: 0 for p in kernel.params if p.role == "flag"}
        self.problem: Problem = problem(kernel, rows, keys, flags)
        self.q_tile = rows // kernel.Br - 1
        tensors = operands(kernel)
        if tensors is None:
            raise Undecided("the tiles are read from a list")
        self.tensors = tensors
        self.unit = float(np.asarray(evaluate(kernel.exp_unit, self.problem.values)).flat[0])
        if not np.isfinite(self.unit) or self.unit == 0:
            raise Undecided("the unit of the exponent")

    def run(self, offset: float, rising: float) -> Rows:
        """Natural scores around `offset`, moving by `rising` from one KV tile to the next."""

        def scores(rows: Array, keys: Array) -> Array:
            noise = np.sin(12.9898 * rows + 78.233 * keys)
            return (offset + noise + rising * (keys // self.kernel.Bc)) / self.unit

        def values(keys: Array) -> Array:
            return np.cos(1.7 * keys[:, None] + 0.9 * np.arange(COLUMNS)[None, :]) + 0.25

        return run_rows(self.kernel, self.problem, self.tensors, self.q_tile, scores, values)

    def natural(self, tile: Tile) -> Array:
        """Scores in natural units; -inf where they are not attended."""
        assert tile.scores is not None
        return np.where(tile.attended(), tile.scores * self.unit, -np.inf)

    def want(self, rows: Rows) -> tuple[Array, Array]:
        """(O, LSE) of the softmax over what the tiles attend to."""
        scores = np.concatenate([self.natural(t) for t in rows.tiles], axis=1)
        values = np.concatenate([t.values for t in rows.tiles if t.values is not None], axis=0)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        return weights @ values / total, (top + np.log(total))[:, 0]

    def last(self, kinds: type[Op] | tuple[type[Op], ...], **fields: str) -> Any:
        """The last operation of these kinds with these fields, or None."""
        return next(
            (
                op
                for op in reversed(self.ops)
                if isinstance(op, kinds) and all(getattr(op, name, None) == value for name, value in fields.items())
            ),
            None,
        )


def softmax(subject: Subject) -> Iterator[Finding]:
    """CB861, CB862, CB870, CB871, CB872."""
    kernel = subject.kernel
    if kernel is None or not any(isinstance(op, RowReduce) and op.role == "row_max" for op in iterate(kernel.body)):
        return
    try:
        soft = Softmax(kernel)
        yield from _judge(subject, soft)
    except (Undecided, UnboundName, ValueError, KeyError):
        return


def _judge(subject: Subject, soft: Softmax) -> Iterator[Finding]:
    right = True
    for rising in (7.0, -7.0):
        rows = soft.run(0.0, rising)
        if rows.o is None or len(rows.tiles) < 2 or any(t.weights is None or t.scores is None for t in rows.tiles):
            return
        o, lse = soft.want(rows)
        if np.isnan(rows.o).any() and (turned := _turned(soft, rows)) is not None:
            yield turned
            return
        if _same(rows.o, o):
            yield from _lse(subject, soft, rows, lse) if rising > 0 else ()
            continue
        right = False
        wrong = list(_factors(subject, soft, rows))
        if wrong:
            yield from wrong
            return
    yield from _exponent(subject, soft, right)


def _same(a: Array, b: Array) -> bool:
    return bool(np.all(np.isfinite(a)) and np.max(np.abs(a - b)) <= _CLOSE * max(1.0, float(np.max(np.abs(b)))))


# ---- rescaling


def _factors(subject: Subject, soft: Softmax, rows: Rows) -> Iterator[Finding]:
    """What went wrong from one tile to the next."""
    partial = any(isinstance(op, LaneReduce) and op.op == "sum" and op.row == "l" for op in soft.kernel.body)
    before: Array | None = None
    for tile in rows.tiles:
        assert tile.weights is not None
        natural = soft.natural(tile)
        with np.errstate(all="ignore"):
            moved = np.where(np.isfinite(natural), tile.weights / np.exp(natural), np.nan)
        low, high = (f.reduce(moved, axis=1, keepdims=True) for f in (np.fmin, np.fmax))
        if not np.all(high - low <= _CLOSE * np.abs(high)):
            yield from _lanes(soft, moved)
            return
        if before is not None:
            found = list(_one_tile(subject, soft, tile, high / before, partial))
            if found:
                yield from found
                return
        before = high


def _lanes(soft: Softmax, moved: Array) -> Iterator[Finding]:
    """The weights of a row have different maxima: is it one for each lane?"""
    lane = np.arange(moved.shape[1]) % 8 // 2
    own = [moved[:, lane == n] for n in range(4)]
    spread = [np.fmax.reduce(m, axis=1) / np.fmin.reduce(m, axis=1) for m in own]
    reduce = soft.last(RowReduce, role="row_max")
    if reduce is not None and all(bool(np.all(s - 1 <= _CLOSE)) for s in spread):
        what = "each subtracts the maximum of its own columns"
        yield finding("CB871", reduce.origin.span, "warp", what=what)


def _one_tile(subject: Subject, soft: Softmax, tile: Tile, want: Array, partial: bool) -> Iterator[Finding]:
    rows = np.abs(want[:, 0] - 1) > _MOVED
    if not rows.any():
        return
    assert tile.weights is not None
    assert tile.values is not None
    want = want[rows]
    factors: dict[str, Array] = {}
    if "l" in tile.behind and "l" in tile.before:
        now, old = (_total(v["l"], partial)[rows] for v in (tile.behind, tile.before))
        factors["the row sum"] = (now - tile.weights.sum(axis=1, keepdims=True)[rows]) / old
    if tile.o_behind is not None and tile.o_before is not None:
        factors["the accumulator O"] = (tile.o_behind - tile.weights @ tile.values)[rows] / tile.o_before[rows]
    wrong = {what: f for what, f in factors.items() if not np.allclose(f, want, rtol=1e-5, atol=1e-12)}
    stale = [what for what, f in wrong.items() if np.allclose(f, 1.0, rtol=1e-7)]
    for what in stale:
        yield finding("CB861", _span_of(soft, what), "softmax", what=what)
    other = {what: f for what, f in wrong.items() if what not in stale and bool(np.all(f >= 0))}
    if not other:
        return
    correction = soft.last(RowMap, role="correction")
    shared = len(other) == len(factors) and correction is not None
    what, factor = next(iter(other.items()))
    weights = soft.last(Map, role="exp")
    with np.errstate(all="ignore"):
        ratio = float(np.log(factor.flat[0]) / np.log(want.flat[0]))
    if shared and weights is not None and _scaled_twice(soft, weights):
        yield finding("CB862", weight_of(subject, weights.origin.span), "softmax", what=_TWICE)
        return
    if shared and weights is not None and abs(_stored_unit(soft) - ratio) < _CLOSE:
        yield finding("CB862", weight_of(subject, weights.origin.span), "softmax", what=_TWO_BASES)
        return
    span = correction.origin.span if shared and correction is not None else _rescaling(soft, what)
    got, expected = float(factor.flat[0]), float(want.flat[0])
    words = "the correction" if shared else f"the factor of {what}"
    text = f"{words} is not the exponential of m_old - m_new in the unit of P: it is {got:.4g} for {expected:.4g}"
    yield finding("CB862", span, "softmax", what=text)


def _turned(soft: Softmax, rows: Rows) -> Finding | None:
    """A correction that is infinite in the first tile has its maxima the wrong way round."""
    correction = soft.last(RowMap, role="correction")
    if correction is None:
        return None
    first = rows.tiles[0].behind.get(correction.row)
    if first is None or not bool(np.isposinf(first).all()):
        return None
    return finding("CB862", correction.origin.span, "softmax", what=_TURNED)


def _scaled_twice(soft: Softmax, weights: Map) -> bool:
    """True when P multiplies by a parameter that the scores were multiplied by already."""
    scales = {p.name for p in soft.kernel.params if p.role in ("scale", "scale_log2", "scalar")}
    scored = {n for op in soft.ops if isinstance(op, Score) for n in free_vars(op.expr)}
    return bool(scales & scored & free_vars(weights.expr))


def _stored_unit(soft: Softmax) -> float:
    """How far the stored log-sum-exp moves where natural scores (in the unit of P) move by one; 0: none is stored."""
    low, high = soft.run(0.0, 0.0).lse, soft.run(1.0, 0.0).lse
    return float(high[0] - low[0]) if low is not None and high is not None else 0.0


def _total(vector: Array, partial: bool) -> Array:
    return vector.sum(axis=1, keepdims=True) if partial else vector[:, :1]


def _span_of(soft: Softmax, what: str) -> Span | None:
    """Where a tile is added to O or to l."""
    if what == "the accumulator O":
        op = soft.last(Mma, role="pv")
    else:
        op = soft.last(RowReduce, dst="l") or soft.last(RowMap, row="l")
        inside = [o for o in soft.ops if isinstance(o, RowMap) and o.row == "l" and o.role != "init"]
        op = soft.last(RowReduce, dst="l") or (inside[0] if inside else op)
    return op.origin.span if op is not None else None


def _rescaling(soft: Softmax, what: str) -> Span | None:
    """Where O or l is multiplied by the correction."""
    if what == "the accumulator O":
        op = soft.last(Map, role="rescale") or soft.last(Mma, role="pv")
        return op.origin.span if op is not None else None
    op = soft.last(RowMap, row="l", role="rescale")
    return op.origin.span if op is not None else _span_of(soft, what)


# ---- the exponent, and what is stored


def _exponent(subject: Subject, soft: Softmax, right: bool) -> Iterator[Finding]:
    """The largest weight of a row must stay near 1, whatever the size of the scores."""
    weights = soft.last(Map, role="exp")
    if weights is None:
        return
    for offset in (_FAR, -_FAR):
        rows = soft.run(offset, 0.0)
        top = np.max(np.stack([np.max(t.weights, axis=1) for t in rows.tiles if t.weights is not None]), axis=0)
        with np.errstate(all="ignore"):
            exponent = float(np.log(top[0]))
        if not np.isfinite(exponent) or abs(exponent) <= _NEAR:
            continue
        start = next((o for o in soft.ops if isinstance(o, RowMap) and o.row == "m" and o.role == "init"), None)
        begins = _number(soft, start)
        tile = soft.last(RowReduce, role="row_max")
        if offset < 0 and right and isinstance(tile.init, Const) and tile.init.value > -_FAR:
            yield finding("CB870", tile.origin.span, "softmax", start=f"{tile.init.value:g} in every tile")
            return
        if offset < 0 and right and start is not None and begins is not None and begins > -_FAR:
            sites = [s.value for s in subject.lifted.anchors.state if s.role == "m"]
            fix = repairs.replaced("Start at -INFINITY", sites[0], "-INFINITY") if len(sites) == 1 else None
            yield finding("CB870", start.origin.span, "softmax", fix=fix, start=f"{begins:g}")
        elif offset > 0 or (begins is not None and begins <= -_FAR):  # a start from a sink may be above all scores
            far = f"natural units for scores near {offset:g}"
            text = f"the maximum is not in the unit of the score: P's largest exponent is {exponent:.0f} {far}, not 0"
            yield finding("CB862", weight_of(subject, weights.origin.span), "softmax", what=text)
        return


def _number(soft: Softmax, op: RowMap | None) -> float | None:
    if op is None:
        return None
    try:
        return float(np.asarray(evaluate(op.expr, soft.problem.values)).flat[0])
    except UnboundName:
        return None


def _lse(subject: Subject, soft: Softmax, rows: Rows, want: Array) -> Iterator[Finding]:
    """The log-sum-exp in natural units, or in those of log2; the contract may say which."""
    store = soft.last(StoreRow, tensor="lse")
    if store is None or rows.lse is None:
        return
    if not any(isinstance(e, Call) and e.op in ("log", "log2") for e in _with_rows(soft, store)):
        return
    said = subject.contract.lse if subject.contract is not None else "any"
    units = {"natural": 1.0, "log2": float(np.log2(np.e))}
    allowed = [units[said]] if said in units else list(units.values())
    if any(_same(rows.lse, want * unit) for unit in allowed):
        return
    words = f"log-sum-exp ({said})" if said in units else "a log-sum-exp"
    got = f"{float(rows.lse[0]):.4g} where the row's is {float(want[0] * allowed[0]):.4g}"
    yield finding("CB872", store.origin.span, "softmax", found=got, want=words)


def _with_rows(soft: Softmax, store: StoreRow) -> Iterator[Any]:
    """The expressions that a stored row is made of, row vectors of the epilogue looked into."""
    yield from walk(store.expr)
    for op in soft.kernel.body:
        if isinstance(op, RowMap):
            yield from walk(op.expr)


def normalised(subject: Subject) -> Iterator[Finding]:
    """CB847: O is stored without its division by the row sum."""
    kernel = subject.kernel
    if kernel is None:
        return
    try:
        soft = Softmax(kernel)
        rows = soft.run(0.0, 7.0)
    except (Undecided, UnboundName, ValueError, KeyError):
        return
    store = soft.last(StoreTile, tensor="o")
    last = rows.tiles[-1].o_behind if rows.tiles else None
    if store is None or last is None or rows.o is None or "l" not in rows.tiles[-1].behind:
        return
    o, _ = soft.want(rows)
    if not _same(rows.o, o) and _same(rows.o, last) and not _same(last, o):
        yield finding("CB847", store.origin.span, "softmax")
