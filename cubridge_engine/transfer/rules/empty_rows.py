"""Rows that attend to nothing: the kernel's convention is kept and said, or the spec's is made exact."""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Call, Const, Expr, Var
from ...ir.nodes import Kernel, Op, RowMap, StoreTile
from ...ir.simplify import simplify
from ..draft import Draft, map_ops
from ..model import Check, InverseEdit
from ..semantics import kv_loop_of, semantics_of, state_names
from ..weights import divides_by, unguarded
from .rule import Example, Rule


def _apply(draft: Draft) -> Draft:
    want, have = draft.attention.empty_rows, draft.sem.empty_rows
    if want not in ("nan", "zero") or draft.attention.sink is not None or want == have or draft.attention.mask is None:
        return draft
    if draft.empty_rows == "keep":
        return draft.note("CB310", "mask", spec="NaN" if want == "nan" else want, kernel=have)
    guarded = want == "zero"
    kernel = _with_inverse(draft, guarded)
    got = semantics_of(kernel).empty_rows
    check = Check("empty-rows-exact", got == want, f"a row without a key gives {got}")
    reason = f"a row without a key gives {want}, as in the spec"
    return replace(draft, kernel=kernel).step("empty_rows", "mask", reason, InverseEdit(guarded), checks=(check,))


def _with_inverse(draft: Draft, guarded: bool) -> Kernel:
    loop = kv_loop_of(draft.kernel)
    _, total = state_names(draft.kernel, loop)

    def fix(expr: Expr) -> Expr:
        if guarded:
            return Call("where", (Call("eq", (Var(total), Const(0.0))), Const(0.0), expr))
        return unguarded(expr, total)

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, RowMap | StoreTile) and divides_by(op.expr, total):
            return (replace(op, expr=simplify(fix(op.expr))),)
        return (op,)

    return replace(draft.kernel, body=map_ops(draft.kernel.body, change))


RULE = Rule(
    "empty_rows",
    "With `--empty-rows exact`, divide by the row sum without its test (NaN, as in PyTorch), or add the test (zero).",
    ("empty-rows-exact",),
    _apply,
    Example(
        {"mask": "j <= i", "empty_rows": "nan", "policy": "exact"},
        "row guard inv = where(l == 0.0, 0.0, 1.0 / l); lanes=4",
        ("row guard inv = 1.0 / l; lanes=4",),
    ),
)
