"""Tensors a spec brings along (buffers, lists of numbers), written as expressions where that is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.expr import Call, Const, Expr
from .nodes import Algebra, both

# A longer list is a table: it belongs in an argument.
_LONGEST_LIST = 32
_SHORTEST_PROGRESSION = 3  # any two numbers are one


def constant_element(algebra: Algebra, data: Any, index: Sequence[Expr]) -> Expr | None:
    """The element of the constant tensor `data` at `index`, or None when no formula gives all its values.

    Understood: one value everywhere; numbers in equal steps along one axis (positions, as `tensor(range(n))` gives
    them), or a short list of any; a band of two values along the last two axes (causal masks, windows).
    """
    long = [d for d, n in enumerate(data.shape) if n > 1 and not _same_along(data, d)]
    small = data[tuple(slice(None) if d in long else 0 for d in range(data.dim()))]
    if not long:
        return Const(small.item())
    if len(long) == 1:
        count = data.shape[long[0]]
        even = _progression(algebra, small.tolist(), index[long[0]])
        if even is not None:
            return even
        if count > _LONGEST_LIST:
            return None
        values = tuple(Const(v) for v in small.tolist())
        return algebra.cat(index[long[0]], tuple(range(count + 1)), values)
    return _band(algebra, small, index[long[0]], index[long[1]]) if len(long) == 2 else None


def _same_along(data: Any, dim: int) -> bool:
    return bool((data == data.narrow(dim, 0, 1)).all())


def _progression(algebra: Algebra, values: list[Any], at: Expr) -> Expr | None:
    """``first + step * at`` where that gives every value, all of them whole numbers."""
    if len(values) < _SHORTEST_PROGRESSION or any(type(v) is bool or not float(v).is_integer() for v in values):
        return None
    first, step = int(values[0]), int(values[1]) - int(values[0])
    if any(v != first + step * n for n, v in enumerate(values)):
        return None
    return algebra.add(algebra.mul(at, Const(step)), Const(first))


def _band(algebra: Algebra, data: Any, row: Expr, column: Expr) -> Expr | None:
    """A matrix that has one value where ``low <= column - row <= high`` and another elsewhere."""
    import torch

    rows, columns = data.shape
    offset = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    values = data.unique().tolist()
    for inside in values if len(values) == 2 else ():
        chosen = data == inside
        low, high = int(offset[chosen].min()), int(offset[chosen].max())
        rest = data[~chosen].unique()
        if rest.numel() != 1 or not torch.equal(chosen, (offset >= low) & (offset <= high)):
            continue
        keep: Expr = Const(True)
        if high < columns - 1:
            keep = both(keep, Call("le", (column, algebra.add(row, Const(high)))))
        if low > 1 - rows:
            keep = both(keep, Call("ge", (column, algebra.add(row, Const(low)))))
        outside = rest[0].item()
        if isinstance(inside, bool):
            return keep if inside else Call("not", (keep,))
        return Call("where", (keep, Const(inside), Const(outside)))
    return None
