"""Two indices in the same block, ``i / n == j / n``, as bounds of the column that depend on the row alone.

Written as it is spoken, the test divides the column for every element of a tile. The block of a row begins at
``i / n * n``: that is one division a row, outside what is done for each element, and a comparison is left.
"""

from __future__ import annotations

from ..ir.expr import Call, Const, Expr, call, conjoin, conjuncts, free_vars
from .context import Job
from .fast_math import is_hopper


def column_bounds(job: Job, keep: Expr) -> Expr:
    """`keep` with each conjunct of that kind as bounds of its column. Unchanged outside Hopper kernels, where registers
    and instructions beside the products are scarce.
    """
    if not is_hopper(job.source.data):
        return keep
    return in_bounds(keep)


def in_bounds(keep: Expr) -> Expr:
    """The rewriting itself. Indices are never negative, so that the quotient rounds down; the upper bound is left out
    where another conjunct keeps the column at or before the row.
    """
    parts = conjuncts(keep)
    changed: list[Expr] = []
    for part in parts:
        found = _same_block(part)
        if found is None:
            changed.append(part)
            continue
        row, column, size = found
        begin = call("floordiv", row, size) * size
        changed.append(call("ge", column, begin))
        if not _not_after(parts, column, row):
            changed.append(call("lt", column, begin + size))
    return conjoin(changed)


def _same_block(part: Expr) -> tuple[Expr, Expr, Const] | None:
    """(row, column, size of a block) of a test that both are in one block."""
    if not (isinstance(part, Call) and part.op == "eq"):
        return None
    a, b = part.args
    if not (isinstance(a, Call) and isinstance(b, Call) and a.op == b.op == "floordiv" and a.args[1] == b.args[1]):
        return None
    size = a.args[1]
    if not (isinstance(size, Const) and isinstance(size.value, int) and size.value > 0):
        return None
    for row, column in ((a.args[0], b.args[0]), (b.args[0], a.args[0])):
        if "j" not in free_vars(row) and "j" in free_vars(column) and "i" not in free_vars(column):
            return row, column, size
    return None


def _not_after(parts: tuple[Expr, ...] | list[Expr], column: Expr, row: Expr) -> bool:
    return call("le", column, row) in parts or call("ge", row, column) in parts
