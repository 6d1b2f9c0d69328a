"""Pages: k and v stay where a paged cache has them, and the kernel looks each of their rows up in the table."""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Var, free_vars
from ...ir.nodes import Copy, Kernel, Op
from ...spec.attention import Paging, TensorInput, widths_of
from ..draft import Draft, map_ops
from ..model import Check, PagedEdit
from ..semantics import walk_ops
from .operands import new_parameter, unused_name
from .rule import Example, Rule

PAGES = "pages of a sequence"  # the extent of the table's last axis: ceil(Sk / rows of a page), at least 1
_KEYS = ("k", "v")


def _apply(draft: Draft) -> Draft:
    paging = draft.attention.paging
    if paging is None:
        return draft
    why = _unpageable(draft.kernel)
    if not why and not draft.pages:
        why = "the place where its rows are addressed was not found"
    have = draft.kernel.D, draft.kernel.Dv
    if draft.padded or widths_of(draft.attention, have) != have:
        wide = f"{have[0]}" if have[0] == have[1] else f"{have[0]} and {have[1]}"
        why = f"its rows are {wide} wide, and the caller would have to copy the caches to widen them"
    if why:
        fields = {"k": paging.k, "v": paging.v, "table": paging.table, "bytes": paging.bytes}
        return draft.refuse("CB321", "function", kernel=draft.kernel.name, why=why, **fields)
    taken = draft.reserved | {item.name for item in draft.attention.inputs}
    name = unused_name(draft.kernel, paging.table, taken)
    kernel = _rewrite(draft.kernel, name, paging)
    item = TensorInput(name, "operand", ("B", PAGES), paging.dtype, -1, draft.span("function"))
    kernel, edit = new_parameter(replace(draft, kernel=kernel), item, paging.dtype, page=paging.size)
    reason = f"rows of k and v are looked up in pages of {paging.size} rows by {paging.table}; nothing is gathered"
    return replace(draft, kernel=kernel).step(
        "paged", "function", reason, PagedEdit(name, paging.size), edit, checks=pages_sound(kernel, name, paging.size)
    )


def _unpageable(kernel: Kernel) -> str:
    """Why the program's copies cannot take their rows from pages; '' when they can."""
    params = {p.name: p.role for p in kernel.params}
    for role in _KEYS:
        copies = [op for op in walk_ops(kernel.body) if isinstance(op, Copy) and op.tensor == role]
        if any(op.signal is not None for op in copies):
            return "its tiles come through tensor maps (TMA), which copy rows that lie one behind the other"
        strides = kernel.tensors.get(role, ())
        batch, row = (strides[0], strides[2]) if len(strides) == len(("b", "h", "row")) else (None, None)
        if not isinstance(batch, Var) or not params.get(batch.name, "").startswith("stride"):
            return f"it takes no batch stride of {role.upper()}, which is that of a page"
        if not isinstance(row, Var) or not params.get(row.name, "").startswith("stride"):
            return f"it takes no row stride of {role.upper()}"
        if not copies or any(op.limit is None for op in copies):
            return f"it does not copy {role.upper()} as rows up to their number"
    return ""


def _rewrite(kernel: Kernel, name: str, paging: Paging) -> Kernel:
    def looked_up(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Copy) and op.tensor in _KEYS:
            return (replace(op, table=name, page=paging.size),)
        return (op,)

    return replace(kernel, body=map_ops(kernel.body, looked_up))


def pages_sound(kernel: Kernel, table: str, size: int) -> tuple[Check, ...]:
    """All rows of k and v are looked up in the same table, none beyond Sk is, and no other stride has its place."""
    copies = [op for op in walk_ops(kernel.body) if isinstance(op, Copy)]
    other = [op.tensor for op in copies if (op.tensor in _KEYS) != ((op.table, op.page) == (table, size))]
    endless = [op.tensor for op in copies if op.table and (op.limit is None or "Sk" not in free_vars(op.limit))]
    own = {(role, 0) for role in _KEYS}
    pages = [kernel.tensors[role][0] for role in _KEYS]
    places = [(role, n) for role, strides in kernel.tensors.items() for n, s in enumerate(strides) if s in pages]
    free = set(places) <= own
    return (
        Check("pages-cover-rows", not other, f"{other[0]} is copied otherwise" if other else "every copy of k and v"),
        Check("rows-bounded", not endless, "a page beyond Sk is looked up" if endless else "rows beyond Sk are zeros"),
        Check("page-stride-free", free, "a stride of k and v alone" if free else "a batch stride has other uses"),
    )


RULE = Rule(
    "paged",
    "Look the rows of K and V up in the table of a paged cache; their batch strides become those of a page.",
    ("pages-cover-rows", "rows-bounded", "page-stride-free"),
    _apply,
    Example(
        {"mask": "j < lens[b]", "operand": "lens:B:int32", "pages": "block_table:16"},
        "copy Ks[0] <- k[0 : +16]",
        ("table=block_table; page=16",),
    ),
)
