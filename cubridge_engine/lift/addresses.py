"""Addresses as numbers per thread plus a uniform symbolic part, and the small questions about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .trace import Branch, Loop
from .values import Coefficient, Monomial, Node, Poly, Store, Value
from .walking import walk

Ints = NDArray[np.int64]


@dataclass(slots=True)
class RowStride:
    """Distance of two rows of a tensor in elements: ``factor * product(symbols)``; `row_atoms` select the tile along
    the rows.
    """

    symbols: Monomial
    factor: int
    row_atoms: frozenset[Node]


@dataclass(slots=True)
class GlobalAccess:
    """A global address split by the tensor's row stride: element ``base + row * stride + column``."""

    tensor: int  # parameter position
    row: Ints  # per thread, relative to row0
    row0: Value  # uniform
    column: Ints
    base: Value  # uniform: batch and head offset in elements


class MemoryError_(Exception):
    """An access that cannot be described; its text says why."""


def events_of(items: Sequence[Any]) -> Iterator[Any]:
    """All events in program order, loops and branches flattened."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from events_of(item.items)
        elif isinstance(item, Branch):
            yield from events_of(item.then)
            yield from events_of(item.orelse)


def split_uniform(store: Store, value: Value) -> tuple[Ints, Value]:
    """A value as per-thread numbers plus a uniform rest. Raises MemoryError_ when a symbol's factor depends on the
    thread.
    """
    poly = store.poly(store.fold(value))
    rest: dict[Monomial, Coefficient] = {}
    for m, c in poly.terms.items():
        if not m:
            continue
        if not isinstance(c, int) or not all(a.uniform for a in m):
            sized = all(of_parameters(a) for a in m) and not isinstance(c, int)
            raise MemoryError_(
                "an address that multiplies the thread's row by a size known only at run time"
                if sized
                else "an address whose symbols depend on the thread"
            )
        rest[m] = c
    try:
        constant = np.asarray(poly.terms.get((), 0), dtype=np.int64)
    except OverflowError as error:
        raise MemoryError_("an address beyond 64 bits") from error
    numbers = np.array(np.broadcast_to(constant, (store.threads,)))
    return numbers, store.lower(rest)


def row_of(facts: Sequence[Value]) -> tuple[Value, Value] | None:
    """(row, limit) of a predicate ``row < limit`` among `facts` (conjunctions looked into)."""
    for fact in facts:
        if not isinstance(fact, Node):
            continue
        if fact.op == "and":
            found = row_of(fact.args)
            if found is not None:
                return found
        pair: tuple[Value, Value] | None = None
        if fact.op == "lt":
            pair = fact.args[0], fact.args[1]
        elif fact.op == "gt":
            pair = fact.args[1], fact.args[0]
        elif fact.op == "not" and isinstance(fact.args[0], Node) and fact.args[0].op in ("ge", "le"):
            a, b = fact.args[0].args
            pair = (a, b) if fact.args[0].op == "ge" else (b, a)
        if pair is None or not isinstance(pair[1], Node | Poly) or not pair[1].uniform:
            continue
        row, limit = pair
        varying = isinstance(row, Poly | Node) and not row.uniform
        # A tile as wide as the block: the row is the same for all threads of one copy.
        stepping = isinstance(row, int | Poly | Node) and isinstance(limit, Node) and limit.op == "param"
        if varying or (stepping and not any(n.op == "param" for n in walk([row]))):
            return row, limit
    return None


def of_parameters(node: Node) -> bool:
    """True for a parameter, and for an expression of parameters alone (the number of KV heads as ``H / G``)."""
    return node.op == "param" or (bool(node.args) and all(n.op == "param" for n in walk([node]) if not n.args))


def without(m: Monomial, part: Monomial) -> Monomial | None:
    """The monomial `m` divided by `part`, or None."""
    rest = list(m)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def ratio(a: Coefficient, b: Coefficient) -> int | None:
    """The integer k with ``a == k * b``."""
    x, y = np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64)
    x, y = np.broadcast_arrays(x, y)
    x, y = x.reshape(-1), y.reshape(-1)
    at = int(np.argmax(np.abs(y)))
    if y[at] == 0 or x[at] % y[at]:
        return None
    k = int(x[at] // y[at])
    return k if k > 0 and (x == k * y).all() else None


def is_zero(value: Value) -> bool:
    """True for the number zero and for a vector of zeros."""
    if isinstance(value, Node) and value.op in ("vec", "ver", "pack"):
        return all(is_zero(a) for a in value.args)
    return isinstance(value, int | float) and value == 0


def factor_of(node: Node) -> tuple[Value, Value] | None:
    """(load side, uniform factor) of a product of a loaded value and a uniform number."""
    for a, b in (node.args, node.args[::-1]):
        if isinstance(b, float | int) or (isinstance(b, Node) and b.uniform and _is_number(b)):
            return a, b
    return None


def _is_number(node: Node) -> bool:
    """True for a parameter, and for parameters and constants multiplied: ``scale * log2(e)``."""
    return all(n.op == "param" or n.op in _FACTORS for n in walk([node]))


_FACTORS = frozenset({"ver", "mul", "div", "float"})


def identity(value: Value) -> Any:
    if isinstance(value, Poly):
        return value.key
    return value.uid if isinstance(value, Node) else value
