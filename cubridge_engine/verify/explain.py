"""Say what differs when numbers do: the kernel's mask, score, sink, fill or head map against the spec's, with both
lines.

Only explains; whether a kernel is right is decided by executing it. Expressions are compared by value at many points,
so two spellings of one condition are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Related, Span, make
from ..ir.evaluate import UnboundName
from ..ir.expr import TRUE, Call, Const, Expr, J, Read, S, free_vars, rebuild
from ..ir.nodes import NOWHERE, Kernel, Mask, Op, Origin, RowMap, Score, StoreTile
from ..ir.text_expr import print_expr
from ..spec.attention import Attention
from ..transfer.sampling import bind_unknown, close, flatten_reads, points, value_at
from ..transfer.semantics import NotAttention, Semantics, semantics_of, walk_ops
from ..transfer.tile_lists import TileList

Array = NDArray[Any]
Env = dict[str, Any]
MASKED = (
    -9000.0
)  # a logit at or below it is a masked key: sentinels start at -10000, scores at the points are far above


@dataclass(frozen=True, slots=True)
class Binding:
    """How a kernel is called: parameter values, and for each parameter that is an extra tensor the spec's name for it.

    A kernel leaves out the axes of one element; `kept` gives the axes of the spec's tensor that it indexes, in order.
    `stride_params` gives the axis for each stride parameter that belongs to the tensor; `strides` the element strides
    that the kernel uses (by parameter), `spec_strides` the same over all axes of the spec's tensor (by its name there).
    `tiles` are the parameters that are lists of tiles, made from the spec's mask and the other tensors; `pages` those
    that are tables of the pages in which k and v lie, with the rows of a page.
    """

    values: Mapping[str, float | int]
    operands: Mapping[str, str] = field(default_factory=dict[str, str])
    kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    stride_params: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    strides: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    spec_strides: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    tiles: Mapping[str, TileList] = field(default_factory=dict[str, TileList])
    pages: Mapping[str, int] = field(default_factory=dict[str, int])


def rename_reads(expr: Expr, names: Mapping[str, str]) -> Expr:
    """`expr` with tensors under the names that the spec gives them."""
    expr = rebuild(expr, lambda e: rename_reads(e, names))
    return Read(names.get(expr.tensor, expr.tensor), expr.index) if isinstance(expr, Read) else expr


def explain(kernel: Kernel, binding: Binding, attention: Attention) -> tuple[Diagnostic, ...]:
    """One CB702 to CB707 diagnostic for each part of the kernel that differs from the spec; none when no difference is
    found.
    """
    try:
        sem = semantics_of(kernel, dict(binding.values))
    except NotAttention:
        return ()
    pair = _Pair(kernel, sem, binding, attention)
    found = [check(pair) for check in (_head_map, _mask, _fill, _score, _sink, _output)]
    return tuple(item for item in found if item is not None)


class _Pair:
    """The two sides, and points of many problem sizes at which to compare them."""

    def __init__(self, kernel: Kernel, sem: Semantics, binding: Binding, attention: Attention) -> None:
        self.kernel, self.sem, self.attention = kernel, sem, attention
        self.binding = binding
        self.types = {t.name: _kind(t.dtype) for t in attention.operands}
        self.spec_mask = attention.mask if attention.mask is not None else TRUE
        parts = [self.spec_mask, attention.score, self.mine(sem.keep), self.mine(sem.score)]
        square = attention.head_map == Const(0) or free_vars(attention.head_map) <= frozenset(("h",))
        self.env: Env = points(parts, tile=(kernel.Br, kernel.Bc), square_heads=square)
        self.env["D"] = kernel.D

    def mine(self, expr: Expr) -> Expr:
        """An expression of the kernel in the spec's terms."""
        return rename_reads(expr, self.binding.operands)

    def values(self, mine: Expr, spec: Expr, env: Env | None = None) -> tuple[Array, Array] | None:
        """Both at every point, or None when one cannot be evaluated."""
        base = self.env if env is None else env
        a = self.mine(flatten_reads(mine, self.binding.strides))
        b = flatten_reads(spec, self.binding.spec_strides)
        full = bind_unknown(base, free_vars(a) | free_vars(b))
        count = len(self.env["i"])
        try:
            left, right = value_at(a, full, self.types), value_at(b, full, self.types)
        except (UnboundName, ValueError, TypeError):
            return None
        return np.broadcast_to(left, (count,)), np.broadcast_to(right, (count,))

    def at(self, where: int) -> str:
        """A point in words: sizes, row and key."""
        e = {name: int(self.env[name][where]) for name in ("Sq", "Sk", "h", "i", "j")}
        return f"Sq={e['Sq']}, Sk={e['Sk']}, head {e['h']}, row {e['i']}, key {e['j']}"

    def related(self, part: str, text: str) -> tuple[Related, ...]:
        """The spec's line for a part."""
        span = self.attention.spans.get(part) or self.attention.spans.get("function")
        return (Related(span, text),) if span is not None else ()

    def span_of(self, kind: type[Op], accept: Callable[[Any], bool] = lambda op: True) -> Span | None:
        """The line of the last operation of a kind, else of the kernel."""
        found = [op for op in walk_ops(self.kernel.body) if isinstance(op, kind) and accept(op)]
        origins: list[Origin] = [getattr(op, "origin", NOWHERE) for op in found]
        spans = [origin.span for origin in origins if origin.span is not None]
        return spans[-1] if spans else self.kernel.origin.span


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"


def _smallest(pair: _Pair, wrong: Array) -> int:
    """Among the points that differ, one of the smallest problem: easiest to look at."""
    size = pair.env["Sq"] * pair.env["Sk"]
    return int(np.where(wrong, size, np.iinfo(np.int64).max).argmin())


def _head_map(pair: _Pair) -> Diagnostic | None:
    both = pair.values(pair.sem.head_map, pair.attention.head_map)
    if both is None or bool((both[0] == both[1]).all()):
        return None
    return make(
        "CB704",
        pair.kernel.grid.origin.span or pair.kernel.origin.span,
        related=pair.related("head_map", "the spec's head map"),
        got=print_expr(pair.mine(pair.sem.head_map)),
        want=print_expr(pair.attention.head_map),
    )


@dataclass(frozen=True, slots=True)
class _Logits:
    """What both sides put into the softmax at every point, and where each masks: by its mask, or by a sentinel in its
    score.
    """

    mine: Array
    spec: Array
    mine_masked: Array
    spec_masked: Array


def _logits(pair: _Pair) -> _Logits | None:
    keep = pair.values(pair.sem.keep, pair.spec_mask)
    mine = Call("where", (pair.sem.keep, pair.sem.score, pair.sem.fill))
    spec = Call("where", (pair.spec_mask, pair.attention.score, pair.attention.fill))
    both = pair.values(mine, spec)
    if keep is None or both is None:
        return None
    masked = [~k.astype(bool) | (x <= MASKED) for k, x in zip(keep, both, strict=True)]
    return _Logits(both[0], both[1], masked[0], masked[1])


def _mask(pair: _Pair) -> Diagnostic | None:
    both = _logits(pair)
    if both is None:
        return None
    wrong = both.mine_masked != both.spec_masked
    if not wrong.any():
        return None
    where = _smallest(pair, wrong)
    verb = "does not attend" if bool(both.spec_masked[where]) else "attends"
    return make(
        "CB702",
        pair.span_of(Mask),
        related=pair.related("mask", "the spec's mask"),
        got=_mask_text(pair.mine(pair.sem.keep)),
        want=_mask_text(pair.spec_mask),
        example=f"for {pair.at(where)} the spec {verb}",
    )


def _mask_text(expr: Expr) -> str:
    return "every key" if expr == TRUE else print_expr(expr)


def _fill(pair: _Pair) -> Diagnostic | None:
    """Fills that differ where both mask. Beyond -1e29 all finite fills act alike in fp32."""
    both = _logits(pair)
    if both is None or pair.spec_mask == TRUE:
        return None
    a, b = (np.where(np.isfinite(x), np.maximum(x, -1e29), x) for x in (both.mine, both.spec))
    wrong = both.mine_masked & both.spec_masked & ~np.isclose(a, b, rtol=1e-4, atol=0)
    if not wrong.any():
        return None
    where = _smallest(pair, wrong)
    return make(
        "CB706",
        pair.span_of(Mask),
        related=pair.related("fill", "the spec's fill") or pair.related("mask", "the spec's mask"),
        got=f"{both.mine[where]:.6g}",
        want=f"{both.spec[where]:.6g}",
    )


def _score(pair: _Pair) -> Diagnostic | None:
    """Scores may differ by a constant of the row where there is no sink: softmax does not see it."""
    both = _logits(pair)
    free = pair.attention.sink is None and pair.attention.normaliser == pair.sem.normaliser == "softmax"
    base = _row_base(pair) if free else (np.zeros(1), np.zeros(1))
    if both is None or base is None:
        return None
    with np.errstate(invalid="ignore"):
        a, b = both.mine - base[0], both.spec - base[1]
    wrong = ~both.mine_masked & ~both.spec_masked & ~np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    issues = "; ".join(pair.sem.issues)
    if not wrong.any() and not issues:
        return None
    where = _smallest(pair, wrong) if wrong.any() else 0
    text = print_expr(pair.mine(pair.sem.score))
    return make(
        "CB703",
        pair.span_of(Score),
        related=pair.related("score", "the spec's score"),
        got=f"{text} ({issues})" if issues else text,
        want=print_expr(pair.attention.score),
        example=f"for {pair.at(where)}, s = {pair.env['s'][where]:.3g}: {a[where]:.4g} against {b[where]:.4g}",
    )


def _row_base(pair: _Pair) -> tuple[Array, Array] | None:
    """Both scores at key 0, which every problem has, for one value of s: what a row's constant is judged against."""
    shifted = dict(pair.env)
    shifted["j"] = np.zeros_like(pair.env["j"])
    shifted["s"] = np.full_like(pair.env["s"], 0.75)
    return pair.values(pair.sem.score, pair.attention.score, shifted)


def _sink(pair: _Pair) -> Diagnostic | None:
    spec = pair.attention.sink
    mine = pair.sem.sink
    lanes = _lane_sum(pair)
    start = Const(-math.inf) if mine is None else mine
    want = Const(-math.inf) if spec is None else spec
    both = pair.values(start, want)
    if both is None:
        return None
    same = close(both[0].astype(float), both[1].astype(float), 1e-4)
    weight = 0.0 if spec is None else 1.0
    if same and (lanes is None or abs(lanes - weight) < 1e-9):
        return None
    got = print_expr(pair.mine(start))
    if same:
        got = f"{got}, counted {lanes:g} times in the row sum"
    return make(
        "CB705",
        pair.span_of(RowMap, lambda op: op.role == "init"),
        related=pair.related("sink", "the spec's sink"),
        got=got,
        want="none" if spec is None else print_expr(spec),
    )


def _output(pair: _Pair) -> Diagnostic | None:
    """What O is divided by, and whether both sides mean a softmax, where one of them does not."""
    sem, spec = pair.sem, pair.attention
    if sem.normaliser == spec.normaliser == "softmax":
        return None
    want = S if spec.divisor is None else S / spec.divisor
    env = {**pair.env, "l": np.exp(pair.env["s"] / 4) * np.where(np.arange(len(pair.env["s"])) % 2, 1.0, -1.0)}
    both = pair.values(sem.output, want, env) if sem.normaliser == spec.normaliser else None
    if both is not None and close(both[0].astype(float), both[1].astype(float), 1e-4):
        return None
    return make(
        "CB707",
        pair.span_of(StoreTile),
        related=pair.related("normaliser", "the spec's weights"),
        got=_output_text(sem.normaliser, sem.output),
        want=_output_text(spec.normaliser, want),
    )


def _output_text(normaliser: str, output: Expr) -> str:
    if normaliser == "softmax":
        return "s / l of a softmax"
    return print_expr(output) + (" (l sums absolute values)" if normaliser == "abs_sum" else "")


def _lane_sum(pair: _Pair) -> float | None:
    """The row sum before any key, over the lanes that share the row."""
    lanes = np.arange(pair.sem.lanes)
    try:
        value = value_at(pair.sem.l_init, {"lane": lanes, "D": pair.kernel.D})
    except (UnboundName, ValueError, TypeError):
        return None
    return float(np.broadcast_to(np.asarray(value, dtype=float), lanes.shape).sum())


def first_differing_key(
    kernel: Kernel, binding: Binding, attention: Attention, sizes: Mapping[str, int], b: int, h: int, i: int
) -> int | None:
    """The first key of a row that kernel and spec treat differently by their masks (index masks only); None when there
    is none.
    """
    try:
        sem = semantics_of(kernel, dict(binding.values))
    except NotAttention:
        return None
    j = np.arange(sizes["Sk"])
    env: Env = {**sizes, "D": kernel.D, "b": b, "h": h, "i": i, "j": j, "hk": 0, "q0": i // kernel.Br * kernel.Br}
    mine = Call("and", (sem.keep, Call("and", (Call("ge", (J, sem.lo)), Call("lt", (J, sem.hi))))))
    try:
        got = np.broadcast_to(np.asarray(value_at(rename_reads(mine, binding.operands), env), dtype=bool), j.shape)
        want = np.broadcast_to(np.asarray(value_at(attention.mask or TRUE, env), dtype=bool), j.shape)
    except (UnboundName, ValueError, TypeError):
        return None
    wrong = np.nonzero(got != want)[0]
    return int(wrong[0]) if wrong.size else None
