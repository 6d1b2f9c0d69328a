"""The online softmax taken out of a program, and weights in the kernel's own unit and base."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..ir.expr import Call, Const, Expr, S, Var, free_vars, reads, substitute, type_of, walk
from ..ir.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    LaneReduce,
    Map,
    Mask,
    Mma,
    Op,
    RowMap,
    RowReduce,
    Score,
    StoreRow,
    StoreTile,
)
from ..ir.simplify import simplify
from .algebra import split_product
from .draft import map_ops
from .place import insert_at_score_site
from .rows import ROW_SUM, state_names
from .sampling import value_at
from .structure import kv_loop_of, score_tile_of, walk_ops

ZERO, ONE = Const(0.0), Const(1.0)
LN2, LOG2_E = math.log(2.0), 1.0 / math.log(2.0)


# ---- the weight as the kernel computes it --------------------------------------------------------------------------


def base_two(natural: Expr, unit: Expr) -> Expr:
    """`natural`, over the scaled score, as an expression over S with ``scaled = S * unit``.

    Where the kernel holds its scores for exp2 (``unit`` is c * ln 2), so does the weight: ``exp(s)`` is ``exp2(S*c)``.
    """
    natural = _decays_in_exp2(natural)
    value = natural
    if unit != ONE:
        in_log2 = _without_ln2(unit)
        value = _to_site(natural, unit, in_log2) if in_log2 is not None else substitute(natural, {S: S * unit})
        value = simplify(value)
    return _shared_first(split_product(value, lambda e: not free_vars(e) & {"s", "i", "j"}))


def _shared_first(e: Expr) -> Expr:
    """``S * f(i - j) * c`` as ``S * (f(i - j) * c)``: elements of a thread at one distance share the factor."""
    if isinstance(e, Call) and e.op == "mul" and isinstance(e.args[0], Call) and e.args[0].op == "mul":
        (score, placed), factor = e.args[0].args, e.args[1]
        if "s" not in free_vars(placed) and "s" not in free_vars(factor) and free_vars(placed) & {"i", "j"}:
            return score * (placed * factor)
    return e


def _decays_in_exp2(e: Expr) -> Expr:
    """``g ** (i - j)`` with a g that is positive for every head as ``exp2((i - j) * log2(g))``: the logarithm is the
    same for the whole CTA, and the rest is a product and one special function.
    """
    if not isinstance(e, Call):
        return e
    args = tuple(_decays_in_exp2(a) for a in e.args)
    if e.op == "pow" and not free_vars(args[0]) & {"s", "i", "j"} and _positive(args[0]):
        power = args[1] if type_of(args[1]) == "float" else Call("float", (args[1],))
        return Call("exp2", (power if args[0] == Const(2.0) else power * Call("log2", (args[0],)),))
    return Call(e.op, args)


def _positive(base: Expr) -> bool:
    """True for a formula of the head, the batch or sizes that is above zero wherever it is tried; data is not."""
    if reads(base) or free_vars(base) - {"h", "hk", "b", "H", "Hkv"}:
        return False
    heads = np.arange(1024)
    env = {"h": heads, "hk": heads, "b": heads % 64, "H": heads + 1, "Hkv": heads + 1}
    return bool((np.asarray(value_at(base, env)) > 0).all())


def _without_ln2(unit: Expr) -> Expr | None:
    """c where `unit` is ``c * ln 2``."""
    if isinstance(unit, Call) and unit.op == "mul":
        for a, b in (unit.args, unit.args[::-1]):
            if isinstance(b, Const) and math.isclose(float(b.value), LN2, rel_tol=1e-6):
                return a
    return None


def _to_site(e: Expr, unit: Expr, c: Expr) -> Expr:
    if e == S:
        return S * unit
    if not isinstance(e, Call) or "s" not in free_vars(e):
        return e
    if e.op == "exp":
        return Call("exp2", (_in_log2(e.args[0], unit, c),))
    if e.op == "sigmoid":
        return ONE / (ONE + Call("exp2", (_negated(_in_log2(e.args[0], unit, c)),)))
    return Call(e.op, tuple(_to_site(a, unit, c) for a in e.args))


def _in_log2(e: Expr, unit: Expr, c: Expr) -> Expr:
    """``e * log2(e)``: the scores lose their ln 2 instead of gaining a factor."""
    if e == S:
        return S * c
    if isinstance(e, Const):
        return Const(float(e.value) * LOG2_E)
    if isinstance(e, Call):
        if e.op == "log" and "s" not in free_vars(e):
            return Call("log2", e.args)
        if e.op in ("add", "sub", "neg"):
            return Call(e.op, tuple(_in_log2(a, unit, c) for a in e.args))
        if e.op in ("mul", "div") and "s" in free_vars(e.args[0]) and "s" not in free_vars(e.args[1]):
            return Call(e.op, (_in_log2(e.args[0], unit, c), e.args[1]))
        if e.op == "where":
            yes, no = (_in_log2(a, unit, c) for a in e.args[1:])
            return Call("where", (_to_site(e.args[0], unit, c), yes, no))
    return _to_site(e, unit, c) * Const(LOG2_E)


def _negated(e: Expr) -> Expr:
    if isinstance(e, Call) and e.op == "mul" and e.args[0] == S:
        return Call("mul", (Call("neg", (S,)), e.args[1]))
    if isinstance(e, Call) and e.op == "sub":
        return Call("sub", (e.args[1], e.args[0]))
    return Call("neg", (e,))


# ---- the program ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """The weight over S, what the row sum adds up ('none', 'sum', 'abs_sum'), and the divisor over ``l`` (None: 1)."""

    weight: Expr
    rows: str
    divisor: Expr | None


def without_softmax(kernel: Kernel, plan: Plan) -> Kernel:
    """`kernel` with weights in place of its online softmax; everything that only the softmax needed is gone."""
    loop = kv_loop_of(kernel)
    change = _Change(kernel, loop, plan)
    kernel = insert_at_score_site(kernel, lambda tile: (Score(tile, plan.weight),))
    body = map_ops(kernel.body, change.op)
    body = _inlined(body)
    body = _only_needed(body, _needed_rows(body))
    params = tuple(replace(p, role="unused") if p.role == "lse" else p for p in kernel.params)
    tensors = {role: strides for role, strides in kernel.tensors.items() if role != "lse"}
    return replace(kernel, body=body, params=params, tensors=tensors, exp_unit=ONE)


class _Change:
    """How each operation changes."""

    def __init__(self, kernel: Kernel, loop: For, plan: Plan) -> None:
        ops = list(walk_ops(loop.body))
        self.plan = plan
        self.tile = score_tile_of(loop)
        self.weights = {op.dst for op in ops if isinstance(op, Map) and op.role == "exp"}
        self.gone: dict[Expr, Expr] = {
            Var(op.row): ONE for op in ops if isinstance(op, RowMap) and op.role == "correction"
        }
        _, self.total = state_names(kernel, loop)

    def op(self, op: Op) -> tuple[Op, ...]:
        if isinstance(op, Map):
            return self._map(op)
        if isinstance(op, Mask) and op.tile == self.tile:
            return (replace(op, fill=ZERO),)
        if isinstance(op, Mma) and op.a in self.weights:
            return (replace(op, a=self.tile),)
        if isinstance(op, Alloc) and op.name in self.weights - {self.tile}:
            return ()
        if isinstance(op, RowReduce):
            return self._reduce(op)
        if isinstance(op, RowMap):
            expr = self._divided(simplify(substitute(op.expr, self.gone)))
            return () if expr == Var(op.row) else (replace(op, expr=expr),)
        if isinstance(op, StoreTile):
            return (replace(op, expr=self._divided(op.expr)),)
        return () if isinstance(op, StoreRow) else (op,)

    def _map(self, op: Map) -> tuple[Op, ...]:
        if op.role == "exp":
            return ()
        expr = simplify(substitute(op.expr, self.gone))
        return () if expr == S and op.src == op.dst else (replace(op, expr=expr),)

    def _reduce(self, op: RowReduce) -> tuple[Op, ...]:
        if op.role == "row_max":
            return ()
        init = simplify(substitute(op.init, self.gone))
        if self.plan.rows != "abs_sum":
            return (replace(op, src=self.tile, init=init),)
        # A tile of its own, since the weights themselves are still to be multiplied with V.
        size = Map("other", "A", self.tile, Call("abs", (S,)), op.origin)
        return size, replace(op, src="A", init=init)

    def _divided(self, expr: Expr) -> Expr:
        """`expr` with the plan's divisor in place of the row sum."""
        if not divides_by(expr, self.total):
            return expr
        return simplify(self._with_divisor(unguarded(expr, self.total)))

    def _with_divisor(self, expr: Expr) -> Expr:
        if isinstance(expr, Call) and expr.op == "div" and expr.args[1] == Var(self.total):
            top = self._with_divisor(expr.args[0])
            divisor = self.plan.divisor
            return top if divisor is None else top / substitute(divisor, {ROW_SUM: Var(self.total)})
        return Call(expr.op, tuple(self._with_divisor(a) for a in expr.args)) if isinstance(expr, Call) else expr


def divides_by(expr: Expr, name: str) -> bool:
    """True when `expr` holds a division by that row vector."""
    return any(isinstance(e, Call) and e.op == "div" and e.args[1] == Var(name) for e in walk(expr))


def unguarded(expr: Expr, total: str) -> Expr:
    """The branch of each selection that divides by the row sum."""
    if isinstance(expr, Call):
        if expr.op == "where":
            for branch in expr.args[1:]:
                if divides_by(branch, total):
                    return unguarded(branch, total)
        return Call(expr.op, tuple(unguarded(a, total) for a in expr.args))
    return expr


def _inlined(body: tuple[Op, ...]) -> tuple[Op, ...]:
    """Row vectors that became a number (1/l without a divisor) are put in where they are read."""
    fixed: dict[Expr, Expr] = {
        Var(op.row): op.expr
        for op in walk_ops(body)
        if isinstance(op, RowMap) and isinstance(op.expr, Const) and op.role != "init"
    }

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, StoreTile):
            return (replace(op, expr=simplify(substitute(op.expr, fixed))),)
        return (op,)

    return map_ops(body, change)


def _needed_rows(body: tuple[Op, ...]) -> frozenset[str]:
    """Row vectors that what is stored depends on."""
    ops = list(walk_ops(body))
    needed: frozenset[str] = frozenset().union(*(free_vars(op.expr) for op in ops if isinstance(op, StoreTile)))
    while True:
        more = needed.union(
            *(free_vars(op.expr) for op in ops if isinstance(op, RowMap) and op.row in needed),
            *(free_vars(op.init) for op in ops if isinstance(op, RowReduce) and op.dst in needed),
        )
        if more == needed:
            return needed
        needed = more


def _only_needed(body: tuple[Op, ...], rows: frozenset[str]) -> tuple[Op, ...]:
    """`body` without operations on other row vectors, and without the tiles only these read."""

    def wanted(op: Op) -> bool:
        if isinstance(op, RowMap | LaneReduce):
            return op.row in rows
        if isinstance(op, RowReduce):
            return op.dst in rows
        return not isinstance(op, If) or bool(op.body or op.orelse)

    body = map_ops(body, lambda op: (op,) if wanted(op) else ())
    summed = {op.src for op in walk_ops(body) if isinstance(op, RowReduce)}
    return map_ops(body, lambda op: () if isinstance(op, Map) and op.dst == "A" and "A" not in summed else (op,))
