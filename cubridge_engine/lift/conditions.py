"""Conditions and integers as numbers per thread, where no symbol decides them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .values import Node, Poly, Store, Value

_COMPARE: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_BOOL: dict[str, Callable[..., Any]] = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}


def per_thread(store: Store, value: Value) -> NDArray[np.bool_] | None:
    """The condition for each thread, or None when it depends on a symbol."""
    if isinstance(value, bool | int):
        return np.full(store.threads, bool(value))
    if not isinstance(value, Node):
        return None
    if value.op in _COMPARE:
        sides = [numbers(store, a) for a in value.args]
        if sides[0] is None or sides[1] is None:
            difference = difference_of(store, value)
            if difference is None:
                return None
            return np.asarray(_COMPARE[value.op](difference, 0), dtype=bool)
        return np.asarray(_COMPARE[value.op](*sides), dtype=bool)
    if value.op in _BOOL:
        parts = [per_thread(store, a) for a in value.args]
        if any(p is None for p in parts):
            return None
        return np.asarray(_BOOL[value.op](*parts), dtype=bool)
    return None


def difference_of(store: Store, comparison: Node) -> NDArray[np.int64] | None:
    """``a - b`` of an integer comparison when the symbols cancel."""
    a, b = comparison.args
    for side in (a, b):
        if isinstance(side, float) or (isinstance(side, Node) and side.kind != "int"):
            return None
    return numbers(store, store.add(a, b, -1))


def numbers(store: Store, value: Value) -> NDArray[np.int64] | None:
    """The integer for each thread, or None when it depends on a symbol."""
    if isinstance(value, bool | int):
        return np.full(store.threads, int(value), dtype=np.int64)
    value = store.fold(value)
    if isinstance(value, Poly):
        return value.numeric()
    if isinstance(value, Node) and value.op == "select":
        condition = per_thread(store, value.args[0])
        a, b = numbers(store, value.args[1]), numbers(store, value.args[2])
        if condition is not None and a is not None and b is not None:
            return np.where(condition, a, b)
    return None
