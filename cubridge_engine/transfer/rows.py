"""The row side of a program: the state of the online softmax, or the row sum and the divisor of weights that are no
softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.evaluate import evaluate
from ..ir.expr import NEG_INF, Call, Const, Expr, S, Var, free_vars, substitute, walk
from ..ir.nodes import For, Kernel, Map, Mma, Op, RowMap, RowReduce, StoreRow, StoreTile
from ..ir.simplify import simplify
from .conventions import empty_rows, empty_tile_safe, lse_convention, shares_factor
from .structure import NotAttention, outside_loop, walk_ops

ROW_SUM = Var("l")
ZERO, ONE = Const(0.0), Const(1.0)
FINITE_START = Const(-1e30)  # of a row maximum: below every score, above -inf


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Fields of `Semantics` that come from row operations."""

    normaliser: str
    m_init: Expr = NEG_INF
    m_unit: Expr = ONE
    l_init: Expr = ZERO
    lanes: int = 1
    sink: Expr | None = None
    lse: str = "none"
    empty_rows: str = "none"
    empty_tile_safe: bool = True
    output: Expr = S
    issues: tuple[str, ...] = ()


def row_facts(kernel: Kernel, loop: For, tile: str, unit: Expr) -> RowFacts:
    """What the row operations around score tile `tile` compute. Raises NotAttention."""
    if is_softmax(loop):
        return _softmax_facts(kernel, loop, tile, unit)
    return _weight_facts(kernel, loop, tile)


def is_softmax(loop: For) -> bool:
    """True for a loop with a row maximum."""
    return any(isinstance(op, RowReduce) and op.role == "row_max" for op in walk_ops(loop.body))


# ---- softmax --------------------------------------------------------------------------------------------------------


def _softmax_facts(kernel: Kernel, loop: For, tile: str, unit: Expr) -> RowFacts:
    m, l = state_names(kernel, loop)  # noqa: E741
    initial = _initial_rows(kernel, loop)
    m_init = simplify(initial[m].expr)
    base = exponent_base(loop) if reference_of(loop, set(initial)) is not None else None
    issues = () if base is None or shares_factor(loop, m, l, tile, base) else (_FACTOR,)
    unit = unit if base is None else Const(math.log(base))  # a reference is an exponent, not a score
    return RowFacts(
        "softmax",
        m_init,
        unit,
        simplify(initial[l].expr),
        _lanes_of(kernel, l),
        sink=None if is_lowest(m_init) else simplify(m_init * unit),
        lse=lse_convention(kernel, loop, m, l, unit),
        empty_rows=empty_rows(kernel, loop, m, l),
        empty_tile_safe=empty_tile_safe(loop, m, l, tile, _start(m_init) if base is None else _some_start(m_init)),
        issues=issues,
    )


def _start(m_init: Expr) -> float:
    """The least number that the row maximum may start from: its own, or that below which a sink is not taken."""
    if is_lowest(m_init):
        return float(evaluate(m_init, {}))
    floor = [a for a in m_init.args if is_lowest(a)] if isinstance(m_init, Call) and m_init.op == "max" else []
    return float(evaluate(floor[0], {})) if floor else -math.inf


def _some_start(reference: Expr) -> float:
    """A number that a reference may start from: its own, or one for a sink."""
    return float(evaluate(reference, {})) if is_lowest(reference) else 0.0


_FACTOR = "P, l and O of a row do not share the factor that its reference stands for, so that it does not cancel"


def reference_of(loop: For, initial: set[str]) -> str | None:
    """The row vector that takes the place of the running maximum: subtracted in the exponent, though no row maximum
    starts from it. P, l and O then share a factor of the row, which cancels. None for an ordinary online softmax.
    """
    feeds = {
        v
        for op in walk_ops(loop.body)
        if isinstance(op, RowReduce) and op.role == "row_max"
        for v in free_vars(op.init)
    }
    if feeds & initial:
        return None
    for op in walk_ops(loop.body):
        if isinstance(op, Map) and op.role == "exp":
            found = sorted(free_vars(op.expr) & initial)
            return found[0] if len(found) == 1 else None
    return None


def exponent_base(loop: For) -> float:
    """2 for weights by exp2, e for weights by exp."""
    power = next(op for op in walk_ops(loop.body) if isinstance(op, Map) and op.role == "exp")
    return 2.0 if any(isinstance(x, Call) and x.op == "exp2" for x in walk(power.expr)) else math.e


def state_names(kernel: Kernel, loop: For) -> tuple[str, str]:
    """Names of the row vectors m and l: m feeds the row maximum, l is the other one the loop carries. Raises
    NotAttention.
    """
    initial = _initial_rows(kernel, loop)
    feeds: set[str] = set()
    for op in walk_ops(loop.body):
        if isinstance(op, RowReduce) and op.role == "row_max":
            feeds |= free_vars(op.init)
    reference = reference_of(loop, set(initial))
    m_names = [name for name in initial if name in feeds or name == reference]
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


def is_lowest(m: Expr) -> bool:
    """True for -inf and for the finite numbers that kernels use in its place (-FLT_MAX, -1e30, -1e20)."""
    return isinstance(m, Const) and isinstance(m.value, float) and m.value <= -1e4


# ---- weights that are no softmax ------------------------------------------------------------------------------------


def _weight_facts(kernel: Kernel, loop: For, tile: str) -> RowFacts:
    inside = list(walk_ops(loop.body))
    product = next((op for op in inside if isinstance(op, Mma) and op.role == "pv"), None)
    issues: list[str] = []
    if any(isinstance(op, Map) and product is not None and op.dst == product.acc for op in inside):
        issues.append("O is rescaled in the loop, which only a softmax needs")
    total = _total(kernel, loop)
    if any(isinstance(op, StoreRow) for op in walk_ops(kernel.body)):
        issues.append("a row value is stored, and there is no softmax it could be the log-sum-exp of")
    return RowFacts(
        _summed(inside, tile, total, issues),
        l_init=Const(0.0) if total is None else simplify(_initial_rows(kernel, loop)[total].expr),
        lanes=1 if total is None else _lanes_of(kernel, total),
        empty_rows=empty_rows(kernel, loop, "", total or ""),
        output=output_of(kernel, loop, total),
        issues=tuple(issues),
    )


def _total(kernel: Kernel, loop: For) -> str | None:
    """The row vector that the loop carries. Raises NotAttention when there are several."""
    written = {op.row for op in walk_ops(loop.body) if isinstance(op, RowMap)}
    written |= {op.dst for op in walk_ops(loop.body) if isinstance(op, RowReduce)}
    names = [name for name in _initial_rows(kernel, loop) if name in written]
    if len(names) > 1:
        raise NotAttention(f"rows {', '.join(names)} are carried through the loop without a row maximum")
    return names[0] if names else None


def _summed(inside: list[Op], tile: str, total: str | None, issues: list[str]) -> str:
    """'none', 'sum' or 'abs_sum': what the row sum adds up."""
    sums = [op for op in inside if isinstance(op, RowReduce) and op.role == "row_sum"]
    if total is None:
        if sums:
            issues.append("a row sum is formed that nothing keeps")
        return "none"
    if len(sums) != 1:
        raise NotAttention("the row sum was not found")
    if sums[0].src == tile:
        return "sum"
    made = next((op for op in inside if isinstance(op, Map) and op.dst == sums[0].src and op.src == tile), None)
    if made is not None and simplify(made.expr) == Call("abs", (S,)):
        return "abs_sum"
    issues.append("the row sum adds up something else than the weights")
    return "sum"


def output_of(kernel: Kernel, loop: For, total: str | None) -> Expr:
    """What is stored in O for an accumulated element ``s`` and the row sum ``l``. Raises NotAttention."""
    known: dict[Expr, Expr] = {} if total is None else {Var(total): ROW_SUM}
    after = False
    for op in outside_loop(kernel.body):
        after = after or op is loop
        if after and isinstance(op, RowMap):
            known[Var(op.row)] = substitute(op.expr, known)
        elif after and isinstance(op, StoreTile):
            return simplify(substitute(op.expr, known))
    raise NotAttention("O is not stored")
