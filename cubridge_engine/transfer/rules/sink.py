"""Attention sink: one more logit in the denominator, by the initial state of the online softmax."""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Call, Const, Expr, Var
from ...ir.nodes import Kernel, LaneReduce, Op, RowMap
from ...ir.simplify import simplify
from ...ir.text_expr import print_expr
from ..checks import before_loop, state_lane_role
from ..draft import Draft, map_ops
from ..model import StateEdit
from ..rows import FINITE_START, is_lowest
from ..semantics import kv_loop_of, state_names, walk_ops
from .rule import Example, Rule


def _apply(draft: Draft) -> Draft:
    sink = draft.attention.sink
    if sink is None:
        return draft
    if draft.sem.sink is not None or not is_lowest(draft.sem.m_init):
        return draft.refuse(
            "CB311", "sink", kernel=draft.kernel.name, what=f"a plain start (it is {print_expr(draft.sem.m_init)})"
        )
    loop = kv_loop_of(draft.kernel)
    m, total = state_names(draft.kernel, loop)
    partial = is_partial(draft.kernel, total)
    start = _in_unit(sink, draft.sem.m_unit)
    if not draft.sem.empty_tile_safe and draft.attention.mask is not None:
        # A sink may be -inf, to be none; exp(-inf - -inf) on a tile without a key for a row is no weight.
        start = Call("max", (start, FINITE_START))
    one: Expr = Call("where", (Call("eq", (Var("lane"), Const(0))), Const(1.0), Const(0.0))) if partial else Const(1.0)
    values = {m: simplify(start), total: one}
    initial = [op for op in before_loop(draft.kernel.body, loop) if isinstance(op, RowMap) and op.row in values]

    def change(op: Op) -> tuple[Op, ...]:
        if not isinstance(op, RowMap) or not any(op is x for x in initial):
            return (op,)
        lanes = draft.sem.lanes if op.row == total and partial else op.lanes
        return (replace(op, expr=values[op.row], lanes=lanes),)

    kernel = replace(draft.kernel, body=map_ops(draft.kernel.body, change))
    edits = (StateEdit("m", values[m]), StateEdit("l", one))
    check = state_lane_role(one, draft.sem.lanes, partial)
    reason = f"the softmax has one more logit, {print_expr(sink)}: m starts there, l at its exponential, 1"
    return replace(draft, kernel=kernel).step("sink", "sink", reason, *edits, checks=(check,))


def _in_unit(sink: Expr, unit: Expr) -> Expr:
    """A natural logit in the unit of the kernel's row maximum."""
    if isinstance(unit, Const):
        return sink if unit.value == 1.0 else sink * Const(1.0 / float(unit.value))
    return sink / unit


def is_partial(kernel: Kernel, total: str) -> bool:
    """True when each lane holds its share of the row sum, to be added up after the loop."""
    inside = {id(op) for op in walk_ops(kv_loop_of(kernel).body)}
    return any(isinstance(op, LaneReduce) and op.row == total and id(op) not in inside for op in walk_ops(kernel.body))


RULE = Rule(
    "sink",
    "Start the row maximum at the sink and the row sum at 1, counted once per row.",
    ("state-lane-role",),
    _apply,
    Example(
        {"sink": "sinks[h]"},
        "row init m = -inf; lanes=4",
        (
            "row init m = sinks[h] / (c * 0.6931471805599453); lanes=4",
            "row init l = where(lane == 0, 1.0, 0.0); lanes=4",
        ),
    ),
)
