"""What a program computes, read off its operations: score, mask, KV range, sink, conventions. Pipeline details do not
matter here.

Used to explain a kernel in words, to decide what a transfer must change, and to compare a kernel lifted again with
what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir.expr import FALSE, SK, TRUE, Call, Const, Expr, S, conjoin, conjuncts, free_vars, substitute
from ..ir.nodes import For, Kernel
from ..ir.simplify import simplify
from .rows import row_facts, state_names
from .sampling import bind
from .scores import TAIL, ElementTest, compose_scores, is_tail, masks_tail
from .structure import (
    PARTIAL,
    NotAttention,
    TileWalk,
    bounds_of,
    kv_loop_of,
    partial_of,
    resolve_lets,
    score_tile_of,
    tile_walk,
    walk_ops,
)

__all__ = [
    "PARTIAL",
    "TAIL",
    "ElementTest",
    "NotAttention",
    "Semantics",
    "TileWalk",
    "bound_semantics",
    "is_tail",
    "kv_loop_of",
    "resolve_lets",
    "score_tile_of",
    "semantics_of",
    "state_names",
    "walk_ops",
]


@dataclass(frozen=True, slots=True)
class Semantics:
    """The mathematics of a program, parameters free or bound.

    `score` is in natural units over the raw dot product ``s``; `site` the same in the unit the kernel holds at the end
    of its score operations; ``natural = site * unit``. `keep` is the mask with the tail ``j < Sk`` taken out (`tail`
    says whether it was there). `lo`/`hi` are the first and last-plus-one key columns the loop visits, over q0 and
    sizes; a loop over a list of tiles (`walk`) may visit any. `sink` is the natural logit of the extra column, or
    None. `m_init` is the initial row maximum, ``m_init * m_unit`` in natural units; `l_init` is the initial row sum by
    lane. `issues` are facts that make the program no attention of the usual kind.

    `normaliser` is 'softmax', or for weights that are the score itself what ``l`` sums: 'none', 'sum' or 'abs_sum'
    (as in `Attention`). `output` is then what is stored for the accumulated row ``s``, over ``l`` and indices.
    """

    score: Expr
    site: Expr
    unit: Expr
    keep: Expr
    tail: bool
    fill: Expr
    tests: tuple[ElementTest, ...]
    lo: Expr
    hi: Expr
    m_init: Expr
    m_unit: Expr
    l_init: Expr
    lanes: int
    sink: Expr | None
    head_map: Expr
    lse: str  # 'ln' | 'none' | why it is neither
    empty_rows: str  # 'zero' | 'nan' | 'none' (cannot be told)
    empty_tile_safe: bool
    issues: tuple[str, ...] = ()
    walk: TileWalk | None = None
    partial: Expr | None = None  # the number of leading trips of a list whose tiles are tested
    normaliser: str = "softmax"
    output: Expr = S


def semantics_of(kernel: Kernel, bindings: Mapping[str, float | int] | None = None) -> Semantics:
    """Compose the operations of `kernel` into its mathematics, with `bindings` substituted. Raises NotAttention."""
    loop = kv_loop_of(kernel)
    if sum(isinstance(op, For) and op.role == "kv_loop" for op in walk_ops(kernel.body)) > 1:
        raise NotAttention("it has more than one loop over key tiles")
    elem = compose_scores(kernel, loop)
    unit = resolve_lets(kernel, kernel.exp_unit)
    rows = row_facts(kernel, loop, elem.tile, unit)
    # A weight is what it is: only the logits of an exponential can stand for something in another unit.
    unit = unit if rows.normaliser == "softmax" else Const(1.0)
    parts = [c for c in conjuncts(simplify(elem.keep)) if not is_tail(c)]
    tests = tuple(
        ElementTest(_every_tile(resolve_lets(kernel, t.keep)), _guard_of(kernel, t.guard)) for t in elem.tests
    )
    listed = tile_walk(kernel)
    lo, hi = (Const(0), SK) if listed else tuple(resolve_lets(kernel, e) for e in bounds_of(loop))
    in_tiles = abs(loop.step) != kernel.Bc and listed is None
    result = Semantics(
        score=simplify(resolve_lets(kernel, elem.value) * unit),
        site=resolve_lets(kernel, elem.value),
        unit=unit,
        keep=_every_tile(resolve_lets(kernel, conjoin(parts))),
        tail=masks_tail(kernel, _every_tile(resolve_lets(kernel, elem.keep)), bindings or {}),
        fill=simplify(elem.fill * unit) if not _is_inf(elem.fill) else elem.fill,
        tests=tests,
        lo=simplify(lo * kernel.Bc) if in_tiles else lo,
        hi=simplify(hi * kernel.Bc) if in_tiles else hi,
        m_init=resolve_lets(kernel, rows.m_init),
        m_unit=resolve_lets(kernel, rows.m_unit),
        l_init=resolve_lets(kernel, rows.l_init),
        lanes=rows.lanes,
        sink=None if rows.sink is None else resolve_lets(kernel, rows.sink),
        head_map=resolve_lets(kernel, kernel.grid.hk),
        lse=rows.lse,
        empty_rows=rows.empty_rows,
        empty_tile_safe=rows.empty_tile_safe,
        issues=(*elem.issues, *rows.issues),
        walk=listed,
        partial=partial_of(kernel),
        normaliser=rows.normaliser,
        output=resolve_lets(kernel, rows.output),
    )
    flags = {p.name for p in kernel.params if p.role.startswith("flag")}
    values = {name: bool(value) if name in flags else value for name, value in (bindings or {}).items()}
    return result if not values else bound_semantics(result, values)


def bound_semantics(sem: Semantics, bindings: Mapping[str, float | int]) -> Semantics:
    """`sem` with parameters replaced by their bound values and simplified."""

    def put(expr: Expr) -> Expr:
        return simplify(bind(expr, bindings))

    return replace(
        sem,
        score=put(sem.score),
        site=put(sem.site),
        unit=put(sem.unit),
        keep=put(sem.keep),
        fill=put(sem.fill),
        tests=tuple(ElementTest(put(t.keep), None if t.guard is None else put(t.guard)) for t in sem.tests),
        lo=put(sem.lo),
        hi=put(sem.hi),
        m_init=put(sem.m_init),
        m_unit=put(sem.m_unit),
        l_init=put(sem.l_init),
        sink=None if sem.sink is None else put(sem.sink),
        head_map=put(sem.head_map),
        output=put(sem.output),
    )


def _is_inf(expr: Expr) -> bool:
    return isinstance(expr, Const) and isinstance(expr.value, float) and math.isinf(expr.value)


def _guard_of(kernel: Kernel, guard: Expr | None) -> Expr | None:
    if guard is None:
        return None
    listed = tile_walk(kernel)
    resolved = resolve_lets(kernel, guard)
    # A condition on the position in a list says nothing about the tile: it is not counted upon.
    return resolved if listed is None else _without_position(resolved, listed.iv)


def _without_position(guard: Expr, iv: str) -> Expr:
    if isinstance(guard, Call) and guard.op == "or":
        return simplify(Call("or", tuple(_without_position(a, iv) for a in guard.args)))
    return FALSE if iv in free_vars(guard) else guard


def _every_tile(keep: Expr) -> Expr:
    """A test that spares the whole tiles of a list: nothing is masked there, so it is the same on every tile."""
    return simplify(substitute(keep, {PARTIAL: TRUE})) if PARTIAL.name in free_vars(keep) else keep
