"""What execution saw that CuIR does not keep: each access to memory, each barrier and shuffle with the threads that
come to it. Findings about orchestration are made from this, also where the kernel as a whole was not understood.

`Observer` writes down symbolic values while the machine runs; `observed` turns them into numbers per thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import conditions
from .addresses import MemoryError_, identity, split_uniform
from .values import Node, NotUnderstood, Poly, Store, Value

if TYPE_CHECKING:
    from .machine import Machine
    from .trace import Place

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MOST = 60_000  # of what is written down; a kernel that does more is looked at in part
DYNAMIC = 1 << 20  # address of the extern __shared__ array (declarations.DYNAMIC_SHARED)


@dataclass(frozen=True, slots=True)
class Access:
    """All threads access memory once: `size` bytes at `address` plus a uniform part that `slot` identifies.

    `address` is None where it is not known; `active` where it is not known which threads do it. `how` is plain, async
    (cp.async: the write happens later), matrix (ldmatrix) or warp (wmma: which lane does what is not said). `root` is
    the parameter's position for global memory. `plain` are the threads whose address is that number
    alone in the first block and trip, whatever sizes and strides are.
    """

    place: Place
    space: str  # shared | global
    root: int | None
    size: int
    write: bool
    how: str
    address: Ints | None
    slot: Any
    plain: Bools
    active: Bools | None


@dataclass(frozen=True, slots=True)
class Meeting:
    """A barrier: `scope` cta, part (of the threads of a block) or warp, or unknown for code that is not understood,
    which may hold one.

    `splits` are the divergent ``if`` statements around it or that end threads before it (byte ranges); `active` the
    threads that come, None where sizes decide; `proven`: some threads of a block may come and others not.
    """

    place: Place
    scope: str
    splits: tuple[tuple[int, int], ...]
    active: Bools | None
    proven: bool
    named: bool  # one of the numbered barriers, which may be for a part of the block
    parts: tuple[Bools, ...] | None = None  # of scope ``part``: the threads that meet each other, where they are known


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A shuffle or vote with its constant mask, and the threads that do it (None: sizes decide)."""

    place: Place
    mask: int
    active: Bools | None


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop, executed once."""

    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """A branch that all threads take together."""

    then: tuple[Step, ...]
    orelse: tuple[Step, ...]


Step = Access | Meeting | Shuffle | Repeat | Either


@dataclass(frozen=True, slots=True)
class Observed:
    """`threads` are the linear ids of those that were executed; `shared_end` the bytes of dynamic shared memory that
    are touched, `static_end` of static; None where an address is not known.
    """

    threads: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    steps: tuple[Step, ...] = ()
    whole: bool = True  # False: more happened than was written down
    static_bytes: int = 0


@dataclass(slots=True)
class _Raw:
    kind: str  # access | meeting | shuffle | open | else | close
    place: Any
    predicates: tuple[Value, ...] = ()
    splits: tuple[tuple[int, int], ...] = ()
    fields: tuple[Any, ...] = ()


class Observer:
    """Belongs to a machine. Nothing is written down in a rehearsal, or of a producer."""

    def __init__(self) -> None:
        self.items: list[_Raw] = []
        self.splits: list[tuple[int, int]] = []  # the divergent statements around
        self.guards: list[Value] = []  # conditions of ``?:`` and ``&&`` around
        self.warps = False  # a warp accesses memory as one (wmma)
        self.full = False

    def access(
        self, m: Machine, space: str, root: Any, offset: Value, size: int, write: bool, how: str = "plain"
    ) -> None:
        """An access to shared or global memory."""
        self._add(
            m,
            "access",
            (space, root if space == "global" else None, offset, size, write, "warp" if self.warps else how),
        )

    def meeting(self, m: Machine, scope: str, named: bool = False, part: tuple[Value, int] | None = None) -> None:
        """A barrier; `part`: its number and how many threads it waits for, where these are not all of the block."""
        self._add(m, "meeting", (scope, named, part))

    def shuffle(self, m: Machine, mask: Value) -> None:
        """A shuffle or vote."""
        if isinstance(mask, int):
            self._add(m, "shuffle", (mask & 0xFFFFFFFF,))

    def mark(self, m: Machine, kind: str) -> None:
        """The beginning (loop, branch), middle (else) or end (close) of what holds other steps."""
        if not m.rehearsal and not m.producing:
            self.items.append(_Raw(kind, None))

    def _add(self, m: Machine, kind: str, fields: tuple[Any, ...]) -> None:
        if m.rehearsal or m.producing:
            return
        if len(self.items) >= MOST:
            self.full = True
            return
        self.items.append(_Raw(kind, m.place(), (*m.predicates, *self.guards), tuple(self.splits), fields))


def observed(m: Machine) -> Observed:
    """What the machine saw, in numbers."""
    items = m.observer.items
    steps, end = _steps(m.store, items, 0)
    while end < len(items):  # a mark without its partner: execution was given up in the middle
        more, end = _steps(m.store, items, end + 1)
        steps = (*steps, *more)
    return Observed(m.ids, steps, not m.observer.full, m.shared_top)


def _steps(store: Store, items: Sequence[_Raw], at: int) -> tuple[tuple[Step, ...], int]:
    """The steps from `at` to the mark that ends them, and where that is."""
    found: list[Step] = []
    seen: set[Any] = set()
    while at < len(items):
        item = items[at]
        if item.kind in ("close", "else"):
            break
        if item.kind == "loop":
            body, at = _steps(store, items, at + 1)
            found.append(Repeat(body))
        elif item.kind == "branch":
            then, at = _steps(store, items, at + 1)
            orelse: tuple[Step, ...] = ()
            if at < len(items) and items[at].kind == "else":
                orelse, at = _steps(store, items, at + 1)
            found.append(Either(then, orelse))
        elif item.kind == "meeting":
            seen.clear()
            active, proven = _active(store, item.predicates)
            scope, named, part = item.fields
            parts = None if part is None else _parts(store, part[0], part[1], active)
            found.append(Meeting(item.place, scope, item.splits, active, proven, named, parts))
        elif item.kind == "shuffle":
            found.append(Shuffle(item.place, item.fields[0], _active(store, item.predicates)[0]))
        else:
            space, root, offset, size, write, _ = item.fields
            key = (space, root, identity(offset), size, write, item.place, item.predicates)
            if write or key not in seen:  # the same read again, nothing between
                seen.add(key)
                found.append(_access(store, item))
        at += 1
    return tuple(found), at


def _access(store: Store, item: _Raw) -> Access:
    space, root, offset, size, write, how = item.fields
    address: Ints | None = None
    slot: Any = None
    plain = np.ones(store.threads, dtype=bool)
    try:
        for monomial, coefficient in store.poly(offset).terms.items():
            if monomial and not any(atom.op in ("block", "iv") for atom in monomial):
                plain = plain & (np.asarray(coefficient) == 0)
        address, rest = split_uniform(store, offset)
        slot = identity(rest)
    except (MemoryError_, NotUnderstood):
        if isinstance(offset, Poly):
            with suppress(OverflowError):  # no address has more than 64 bits
                address = np.broadcast_to(np.asarray(offset.terms.get((), 0), dtype=np.int64), (store.threads,))
                slot = ("varies", offset.key)
    return Access(item.place, space, root, size, write, how, address, slot, plain, _active(store, item.predicates)[0])


def _parts(store: Store, number: Value, count: int, active: Bools | None) -> tuple[Bools, ...] | None:
    """The threads that meet each other at barriers of these numbers, `count` at each; None where others may meet them
    at another place, or where that is not known.
    """
    if active is None:
        return None
    try:
        numbers, rest = split_uniform(store, number)
    except (MemoryError_, NotUnderstood):
        return None
    if identity(rest) != 0:
        return None
    parts = tuple(active & (numbers == one) for one in np.unique(numbers[active]))
    return parts if all(int(part.sum()) == count for part in parts) else None


def _active(store: Store, predicates: Sequence[Value]) -> tuple[Bools | None, bool]:
    """(the threads for which all predicates hold, None where sizes decide; whether the threads of a block are known to
    differ for some sizes).
    """
    active: Bools | None = np.ones(store.threads, dtype=bool)
    proven = False
    for predicate in predicates:
        known = conditions.per_thread(store, predicate)
        if known is None:
            proven = proven or _splits_block(store, predicate)
            active = None
        elif active is not None:
            active = active & known
        if known is not None and known.any() and not known.all():
            proven = True
    return active, proven


def _splits_block(store: Store, value: Value) -> bool:
    """True for a comparison of numbers that differ from thread to thread with a size: both ways are taken for some."""
    if not isinstance(value, Node):
        return False
    if value.op in ("and", "or", "not"):
        return any(_splits_block(store, a) for a in value.args)
    if value.op not in ("lt", "le", "gt", "ge"):
        return False
    try:
        difference = store.poly(store.add(value.args[0], value.args[1], -1))
    except NotUnderstood:
        return False
    varying = isinstance(difference.terms.get((), 0), np.ndarray)
    return varying and all(
        isinstance(c, int) and all(a.uniform for a in m) for m, c in difference.terms.items() if m
    ) and len(difference.terms) > 1  # fmt: skip
