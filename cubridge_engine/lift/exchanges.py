"""Registers that threads have exchanged: each thread selects one of several, its own or another lane's.

Before 16-byte stores of O the four threads of a quad transpose their registers. What a thread then holds is a register
that some thread had before: which one, and of whom, is known for each thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import conditions
from .addresses import Ints
from .values import Node, Store, Value

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Origin:
    """A register before the exchange, the threads that hold it now, and for each thread whose it was."""

    value: Value
    holders: NDArray[np.bool_]
    source: Ints


def origins(store: Store, value: Value) -> list[Origin] | None:
    """Where the register comes from, for every thread; None when it was not exchanged."""
    everyone = np.ones(store.threads, bool)
    found = _origins(store, value, everyone, np.arange(store.threads), 0)
    if found is None or all(o.value is _bare(value) for o in found):
        return None
    return found


def _bare(value: Value) -> Value:
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


def _origins(store: Store, value: Value, holders: NDArray[np.bool_], source: Ints, depth: int) -> list[Origin] | None:
    """`value` as thread ``source[t]`` has it, for the threads t of `holders`."""
    node = _bare(value)
    if not isinstance(node, Node) or depth > _DEEPEST:
        return None
    if node.op == "select":
        condition = conditions.per_thread(store, node.args[0])
        if condition is None:
            return None
        sides = [(node.args[1], holders & condition[source]), (node.args[2], holders & ~condition[source])]
        parts = [_origins(store, v, h, source, depth + 1) for v, h in sides if h.any()]
        return None if any(p is None for p in parts) else [o for p in parts if p is not None for o in p]
    if node.op == "shfl":
        kind, lane = node.data
        if kind == "xor" and isinstance(lane, int):
            return _origins(store, node.args[0], holders, source ^ lane, depth + 1)
        return None
    return [Origin(node, holders, source)]
