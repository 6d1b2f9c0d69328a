"""Persistent CTAs: a producer takes work items, publishes each in shared memory, and the consumers work on it.

A trip of the producer's loop is executed for one item. Where it publishes the item, the numbers by which the item was
chosen are replaced by two of their own: the query tile and the head of a CTA in a grid that has one CTA per item.
Consumers then read that item, and at the next reading the one that says that no work is left, so that the program is
that of one item. Dealing the items out must reach each exactly once; that is tried for sizes of many kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from .addresses import identity
from .machine import Machine, copied
from .syntax import Syn
from .values import Cells, Node, NotUnderstood, Poly, Ptr, Record, Value
from .walking import walk

_COORDINATES = ("x", "y")  # of the grid of items
_SIZES = (1, 1, 2, 2, 4, 300)
_ITEMS = 1200  # of a launch that is tried
_ENOUGH = 24  # launches


@dataclass(slots=True)
class Work:
    """The item that the producer has drawn, the record that ends the work, and what it published where (addresses in
    the order of publishing); `read` counts what consumers read.
    """

    item: Record
    end: Record
    drawn: int = 1
    published: list[tuple[Any, Record]] = field(default_factory=list[tuple[Any, Record]])
    body: Syn | None = None  # of the function that makes the items
    read: int = 0
    mark: int = 0  # of the trace, where the consumers begin with the item
    noted: list[int] = field(default_factory=list[int])  # how much was noted of the text by then


def drawn(m: Machine, record: Record, body: Syn) -> Record:
    """A struct that a function of the producer returns: the first that is a work item becomes *the* item, the next one
    the end of the work; anything else stays what it is. Raises NotUnderstood.
    """
    end = _end_of(record)
    if end is None:
        return record
    if m.work is not None:
        m.work.drawn += not m.rehearsal
        return copied(m, m.work.end)
    condition, ends_first = end
    work = Work(copied(m, record), copied(m, record), body=body)
    for name, member in record.fields.items():
        if not isinstance(member, Cells):
            raise NotUnderstood("a work item with structs in it")
        chosen = [_sides(v, condition, ends_first) for v in member.values]
        _cells(work.item, name).values[:] = [x for x, _ in chosen]
        _cells(work.end, name).values[:] = [x for _, x in chosen]
    _name_coordinates(m, work, condition)
    m.work = work
    return copied(m, work.item)


def publish(m: Machine, pointer: Ptr, record: Record) -> None:
    """``*pointer = record`` by the producer. Raises NotUnderstood."""
    if not m.producing or pointer.space != "shared" or m.work is None:
        raise NotUnderstood("a struct stored to memory by someone else than a producer of work items")
    if not m.rehearsal:
        m.work.published.append((identity(pointer.offset), copied(m, record)))


def received(m: Machine, pointer: Ptr) -> Record:
    """``*pointer`` read by a consumer: what was published there, in order. Raises NotUnderstood."""
    work = m.work
    if work is None or work.read >= len(work.published):
        raise NotUnderstood("a struct in shared memory that no producer has published")
    address, record = work.published[work.read]
    if address != identity(pointer.offset):
        raise NotUnderstood("a work item that is read elsewhere than it was published")
    if not m.rehearsal:
        work.read += 1
    if work.read == 1:
        work.mark = len(m.items)
        work.noted = [len(known) for known in m.notes]
    return record


def _cells(record: Record, name: str) -> Cells:
    member = record.fields[name]
    assert isinstance(member, Cells)
    return member


def _end_of(record: Record) -> tuple[Node, bool] | None:
    """(the condition of a member that is a negative number at the end of the work, whether it then is)."""
    for member in record.fields.values():
        value = member.values[0] if isinstance(member, Cells) else None
        if isinstance(value, Node) and value.op == "select" and isinstance(value.args[0], Node) and _depends(value):
            for at, side in enumerate(value.args[1:]):
                if isinstance(side, int) and side < 0:
                    return value.args[0], at == 0
    return None


def _sides(value: Value, condition: Node, ends_first: bool) -> tuple[Value, Value]:
    """(value of an item, value at the end of the work)."""
    if isinstance(value, Node) and value.op == "select" and value.args[0] is condition:
        ended, item = value.args[1:] if ends_first else value.args[:0:-1]
        return item, ended
    return value, value


# ---- the grid of items


def _name_coordinates(m: Machine, work: Work, condition: Node) -> None:
    """Replace what depends on the item's number by coordinates of a grid of items. Raises NotUnderstood."""
    store = m.store
    chosen: dict[Node, Value] = {}
    members = [c for c in work.item.fields.values() if isinstance(c, Cells)]
    found: list[Value] = []
    for cells in members:
        value = store.substitute(cells.values[0], lambda n: chosen.get(n))
        if _depends(value):
            if len(found) == len(_COORDINATES):
                raise NotUnderstood("a work item that is chosen by more than two numbers")
            coordinate = store.node("block", (), _COORDINATES[len(found)], "int")
            atom, solved, size = _solved(m, value, coordinate)
            found.append(store.divide(cells.values[0], size, floor=True) if size > 1 else cells.values[0])
            chosen[atom] = solved
    if len(found) != len(_COORDINATES):
        raise NotUnderstood("a work item that is not chosen by two numbers")
    for cells in members:
        cells.values[0] = store.substitute(cells.values[0], lambda n: chosen.get(n))
        if _depends(cells.values[0]) and not _only_coordinates(cells.values[0]):
            raise NotUnderstood("a work item of which a part depends on its number in another way")
    _reaches_all(found, condition)
    for snapshot in m.snapshots.values():
        for name, value in snapshot.items():
            snapshot[name] = store.substitute(value, lambda n: chosen.get(n))


def _depends(value: Value) -> bool:
    """True when a value depends on the number of a block or on a ticket, other than through coordinates."""
    return any(n.op in ("block", "ticket", "grid") for n in walk([value])) and not _only_coordinates(value)


def _only_coordinates(value: Value) -> bool:
    return all(n.data in _ITEM for n in walk([value]) if n.op in ("block", "ticket", "grid"))


_ITEM = frozenset(f"{c}_item" for c in _COORDINATES)


def _solved(m: Machine, value: Value, coordinate: Node) -> tuple[Node, Value, int]:
    """(the atom that chooses, what it is in terms of the coordinate, the size of a step): value = size * coordinate."""
    coordinate = m.store.node("block", (), f"{coordinate.data}_item", "int")
    terms = m.store.poly(value).terms
    for monomial, factor in reversed(list(terms.items())):
        if len(monomial) != 1 or not isinstance(factor, int) or not _depends(monomial[0]):
            continue
        if monomial[0].op not in ("tdiv", "tmod", "mod", "floordiv") or not _alone(terms, monomial[0]):
            continue
        size = abs(factor)
        rest = m.store.add(m.store.mul(coordinate, size), m.store.lower(dict(terms)), -1)
        rest = m.store.add(rest, m.store.mul(monomial[0], factor))
        parts = m.store.poly(rest).terms
        if all(isinstance(c, int) and c % size == 0 for c in parts.values()):
            sign = 1 if factor > 0 else -1
            return monomial[0], m.store.lower({k: sign * c // size for k, c in parts.items()}), size
    raise NotUnderstood("a work item whose rows or head are not a sum with its number")


def _alone(terms: dict[Any, Any], atom: Node) -> bool:
    return sum(atom in monomial for monomial in terms) == 1


def _reaches_all(found: list[Value], condition: Node) -> None:
    """Each pair of coordinates is reached by exactly one item, for sizes of many kinds. Raises NotUnderstood."""
    params = sorted({n.data for n in walk([*found, condition]) if n.op == "param"})
    numbers = {n for n in walk([*found, condition]) if n.op in ("block", "ticket")}
    if len(numbers) != 1:
        raise NotUnderstood("a work item that is chosen by more than one number")
    tried = 0
    index = np.arange(_ITEMS)
    for sizes in _samples(len(params)):
        env: dict[Any, Any] = {**dict(zip(params, sizes, strict=True)), next(iter(numbers)).op: index}
        try:
            ended = np.broadcast_to(_value(condition, env), index.shape)
            if not ended.any() or ended[0]:
                continue
            env[next(iter(numbers)).op] = index[~ended]
            pairs = [np.broadcast_to(_value(f, env), index[~ended].shape).tolist() for f in found]
        except ZeroDivisionError:
            continue  # sizes that no launch has
        tried += 1
        reached = list(zip(*pairs, strict=True))
        whole = set(product(range(1 + max(pairs[0])), range(1 + max(pairs[1]))))
        if set(reached) != whole or len(reached) != len(whole):
            raise NotUnderstood("work items that do not cover every query tile of every head exactly once")
        if tried == _ENOUGH:
            return
    raise NotUnderstood("work items whose number was not understood")


def _samples(count: int) -> Iterator[tuple[int, ...]]:
    """Sizes for `count` parameters: a fixed walk through mixtures of small and large ones."""
    state = 12345
    for _ in range(400):
        sizes: list[int] = []
        for _ in range(count):
            state = (state * 1103515245 + 12345) % (1 << 31)
            sizes.append(_SIZES[(state >> 16) % len(_SIZES)])
        yield tuple(sizes)


def _value(value: Value, env: dict[Any, Any]) -> Any:
    """An integer with numbers for parameters (by position) and for the item's number. Raises ZeroDivisionError."""
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, Poly):
        total: Any = 0
        for monomial, factor in value.terms.items():
            if not isinstance(factor, int):
                raise NotUnderstood("a work item that differs from thread to thread")
            term: Any = factor
            for atom in monomial:
                term = term * _value(atom, env)
            total = total + term
        return total
    if isinstance(value, Node):
        if value.op == "param":
            return env[value.data]
        if value.op in env:
            return env[value.op]
        if value.op in _ARITHMETIC:
            return _ARITHMETIC[value.op](*(_value(a, env) for a in value.args))
    raise NotUnderstood("a work item whose number was not understood")


def _checked(b: Any) -> Any:
    if np.any(np.asarray(b) == 0):
        raise ZeroDivisionError
    return b


def _divided(a: Any, b: Any) -> Any:
    """C's division, towards zero."""
    return np.sign(a) * np.sign(_checked(b)) * (abs(a) // abs(b))


_ARITHMETIC: dict[str, Any] = {
    "tdiv": _divided,
    "floordiv": lambda a, b: a // _checked(b),
    "tmod": lambda a, b: a - b * _divided(a, b),
    "mod": lambda a, b: a % _checked(b),
    "select": np.where,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
