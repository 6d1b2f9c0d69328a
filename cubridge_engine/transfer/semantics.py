"""What a program computes, read off its operations: score, mask, KV range, sink, conventions. Pipeline details do not
matter here.

Used to explain a kernel in words, to decide what a transfer must change, and to compare a kernel lifted again with
what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir.expr import (
    Const,
    Expr,
    conjoin,
    conjuncts,
    free_vars,
)
from ..ir.nodes import (
    For,
    Kernel,
    Op,
    RowMap,
    RowReduce,
)
from ..ir.simplify import simplify
from .conventions import empty_rows, empty_tile_safe, lse_convention
from .sampling import bind
from .scores import TAIL, ElementTest, compose_scores, is_tail, masks_tail
from .structure import NotAttention, kv_loop_of, outside_loop, resolve_lets, score_tile_of, walk_ops

__all__ = [
    "TAIL",
    "ElementTest",
    "NotAttention",
    "Semantics",
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
    sizes. `sink` is the natural logit of the extra column, or None. `l_init` is the initial row sum by lane. `issues`
    are facts that make the program no attention of the usual kind.
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
    l_init: Expr
    lanes: int
    sink: Expr | None
    head_map: Expr
    lse: str  # 'ln' | 'none' | why it is neither
    empty_rows: str  # 'zero' | 'nan' | 'none' (cannot be told)
    empty_tile_safe: bool
    issues: tuple[str, ...] = ()


def semantics_of(kernel: Kernel, bindings: Mapping[str, float | int] | None = None) -> Semantics:
    """Compose the operations of `kernel` into its mathematics, with `bindings` substituted. Raises NotAttention."""
    loop = kv_loop_of(kernel)
    if sum(isinstance(op, For) and op.role == "kv_loop" for op in walk_ops(kernel.body)) > 1:
        raise NotAttention("it has more than one loop over key tiles")
    elem = compose_scores(kernel, loop)
    state = _initial_state(kernel, loop)
    unit = resolve_lets(kernel, kernel.exp_unit)
    sink = None if _is_lowest(state.m) else _sink_of(state.m, unit)
    parts = [c for c in conjuncts(simplify(elem.keep)) if not is_tail(c)]
    tests = tuple(ElementTest(resolve_lets(kernel, t.keep), _guard_of(kernel, t.guard)) for t in elem.tests)
    step = loop.step
    lo, hi = resolve_lets(kernel, loop.lo), resolve_lets(kernel, loop.hi)
    in_tiles = step != kernel.Bc
    result = Semantics(
        score=simplify(resolve_lets(kernel, elem.value) * unit),
        site=resolve_lets(kernel, elem.value),
        unit=unit,
        keep=resolve_lets(kernel, conjoin(parts)),
        tail=masks_tail(kernel, resolve_lets(kernel, elem.keep), bindings or {}),
        fill=simplify(elem.fill * unit) if not _is_inf(elem.fill) else elem.fill,
        tests=tests,
        lo=simplify(lo * kernel.Bc) if in_tiles else lo,
        hi=simplify(hi * kernel.Bc) if in_tiles else hi,
        m_init=resolve_lets(kernel, state.m),
        l_init=resolve_lets(kernel, state.l),
        lanes=state.lanes,
        sink=sink if sink is None else resolve_lets(kernel, sink),
        head_map=resolve_lets(kernel, kernel.grid.hk),
        lse=lse_convention(kernel, loop, state.m_name, state.l_name, unit),
        empty_rows=empty_rows(kernel, loop, state.m_name, state.l_name),
        empty_tile_safe=empty_tile_safe(loop, state.m_name, state.l_name, elem.tile),
        issues=elem.issues,
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
        l_init=put(sem.l_init),
        sink=None if sem.sink is None else put(sem.sink),
        head_map=put(sem.head_map),
    )


def _is_inf(expr: Expr) -> bool:
    return isinstance(expr, Const) and isinstance(expr.value, float) and math.isinf(expr.value)


def _guard_of(kernel: Kernel, guard: Expr | None) -> Expr | None:
    return None if guard is None else resolve_lets(kernel, guard)


# ---- row state ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    m_name: str
    l_name: str
    m: Expr
    l: Expr  # noqa: E741 - the field's name of the row sum
    lanes: int


def state_names(kernel: Kernel, loop: For) -> tuple[str, str]:
    """Names of the row vectors m and l: m feeds the row maximum, l is the other one the loop carries. Raises
    NotAttention.
    """
    initial = _initial_rows(kernel, loop)
    feeds: set[str] = set()
    for op in walk_ops(loop.body):
        if isinstance(op, RowReduce) and op.role == "row_max":
            feeds |= free_vars(op.init)
    m_names = [name for name in initial if name in feeds]
    if len(m_names) != 1:
        raise NotAttention("the initial row maximum was not found")
    written = {op.row for op in walk_ops(loop.body) if isinstance(op, RowMap)}
    written |= {op.dst for op in walk_ops(loop.body) if isinstance(op, RowReduce)}
    l_names = [name for name in initial if name != m_names[0] and name in written]
    if len(l_names) != 1:
        raise NotAttention("the initial row sum was not found")
    return m_names[0], l_names[0]


def _initial_rows(kernel: Kernel, loop: For) -> dict[str, RowMap]:
    return {op.row: op for op in outside_loop(kernel.body) if isinstance(op, RowMap) and _before(kernel, op, loop)}


def _initial_state(kernel: Kernel, loop: For) -> _State:
    m, l = state_names(kernel, loop)  # noqa: E741
    initial = _initial_rows(kernel, loop)
    return _State(m, l, simplify(initial[m].expr), simplify(initial[l].expr), _lanes_of(kernel, l))


def _lanes_of(kernel: Kernel, row: str) -> int:
    """Lanes of a row vector: an initial value that is the same on all lanes may be written with one."""
    lanes = [op.lanes for op in walk_ops(kernel.body) if isinstance(op, RowMap) and op.row == row]
    lanes += [op.lanes for op in walk_ops(kernel.body) if isinstance(op, RowReduce) and op.dst == row]
    return max(lanes)


def _before(kernel: Kernel, op: Op, loop: For) -> bool:
    for item in outside_loop(kernel.body):
        if item is loop:
            return False
        if item is op:
            return True
    return False


def _is_lowest(m: Expr) -> bool:
    """True for -inf and for the finite numbers that kernels use in its place (-FLT_MAX, -1e30, -1e20)."""
    return isinstance(m, Const) and isinstance(m.value, float) and m.value <= -1e4


def _sink_of(m: Expr, unit: Expr) -> Expr:
    return simplify(m * unit)
