"""Which element of which tensor lies where: tile copies, the buffers they fill, and what a read of a buffer finds.

Addresses are numbers per thread plus a uniform symbolic part. The uniform part of a shared address is the pipeline
slot; the uniform part
of a global address is the tile's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import conditions
from .addresses import (
    GlobalAccess,
    Ints,
    MemoryError_,
    RowStride,
    events_of,
    factor_of,
    identity,
    is_zero,
    of_parameters,
    ratio,
    row_of,
    split_uniform,
    without,
)
from .hopper import pieces
from .pages import without_pages
from .shared_values import Owner, SharedValues
from .trace import AsyncCopy, BoxCopy, Event, Loop, MemoryStore, Trace
from .values import Coefficient, Monomial, Node, Poly, Store, Value, is_uniform


@dataclass(slots=True)
class CopyPart:
    """One copy instruction of all threads: global element -> shared bytes."""

    event: Event
    address: Ints  # numeric part of the shared address, per thread
    slot: Value  # uniform part of the shared address, in bytes
    shared_size: int  # bytes per element in shared memory
    count: int  # elements per thread
    access: GlobalAccess
    limit: Value | None
    active: NDArray[np.bool_]
    is_async: bool
    scale: Value | None = None  # a factor applied on the way


@dataclass(slots=True)
class Wave:
    """The copies of one tile into one slot."""

    parts: list[CopyPart]
    rows: int = 0
    columns: int = 0

    @property
    def tensor(self) -> int:
        """Position of the parameter that is copied."""
        return self.parts[0].access.tensor


@dataclass(slots=True)
class Buffer:
    """Shared memory that holds tiles of one tensor: row and column per element address of slot 0 (-1: nothing)."""

    name: str
    tensor: int
    base: int
    size: int  # bytes of one slot
    element: int
    slots: int
    stride: int  # bytes from slot to slot
    row_at: Ints
    column_at: Ints
    rows: int
    columns: int
    waves: list[Wave] = field(default_factory=list[Wave])

    def padded(self) -> bool:
        """True when rows are further apart than their length."""
        return self.size // max(1, self.element) > self.rows * self.columns


@dataclass(slots=True)
class Found:
    """What a read finds: row and column of the buffer's tile per thread, and the slot expression."""

    buffer: Buffer
    row: Ints
    column: Ints
    slot: Value


class Memory:
    """The buffers of a trace. Build once, then ask `find` what a shared address holds."""

    def __init__(self, store: Store, trace: Trace, threads: int, element_sizes: dict[int, int] | None = None) -> None:
        self.store = store
        self.threads = threads
        self.strides: dict[int, RowStride] = {}
        self.element_sizes: dict[int, int] = dict(element_sizes or {})  # bytes, by parameter position
        self.buffers: list[Buffer] = []
        self.waves: list[Wave] = []
        self.problems: list[tuple[Event, str]] = []
        self.other_stores: list[MemoryStore] = []
        self.global_stores: list[MemoryStore] = []
        trips = [x.epochs for x in events_of(trace.items) if isinstance(x, Loop)]
        self.values = SharedValues(store, threads, self.other_stores, trips)
        # Of tensors whose rows are looked up in a table of pages.
        copies, self.pages, odd = without_pages(store, list(self._copies(trace)))
        self.problems += odd
        self._learn_strides(copies)
        self._make_waves(copies)
        self._make_buffers()

    # ---- copies -----------------------------------------------------------------------------------------------------

    def _copies(self, trace: Trace) -> Iterator[tuple[Event, Value, Any, int, Value, list[Value], int, Value | None]]:
        """(event, shared address, load (root, offset), elements, limit condition, predicates, shared element size,
        factor).
        """
        for event in events_of(trace.items):
            if isinstance(event, BoxCopy):
                for at, offset, inside in pieces(self.store, self.threads, event):
                    yield event, at, (event.ptr.root, offset), 8, inside, list(event.predicates), 2, None
            elif isinstance(event, AsyncCopy):
                root = event.ptr.root
                size = self.element_sizes.get(root, 2)
                live, offset = event.live, event.ptr.offset
                condition: Value = True
                if isinstance(live, Node) and live.op == "select":
                    condition = (
                        live.args[0] if live.args[2] == 0 else self.store.node("not", (live.args[0],), kind="bool")
                    )
                    offset = self.assume(offset, condition)
                yield (
                    event,
                    event.shared,
                    (root, offset),
                    event.size // size,
                    condition,
                    list(event.predicates),
                    size,
                    None,
                )
            elif isinstance(event, MemoryStore) and event.ptr.space == "global":
                self.global_stores.append(event)
            elif isinstance(event, MemoryStore):
                load, condition, factor = self.loaded(event.value)
                if load is None or is_uniform(load.args[0]):  # one number for all threads is no tile: a sink
                    self.other_stores.append(event)
                    continue
                predicates = list(event.predicates)
                element = self.element_sizes.setdefault(load.data[0], load.data[1])
                count = max(1, load.data[1] // element)
                yield (
                    event,
                    event.ptr.offset,
                    (load.data[0], self.assume(load.args[0], condition)),
                    count,
                    condition,
                    predicates,
                    event.size // count,
                    factor,
                )

    def loaded(self, value: Value) -> tuple[Node | None, Value, Value | None]:
        """The global load behind a stored value: directly, zero-filled by a condition, converted or scaled."""
        condition: Value = True
        factor: Value | None = None
        while isinstance(value, Node):
            if value.op == "gload":
                return value, condition, factor
            if value.op in ("ver", "float", "fp16", "bf16") and value.args:
                value = value.args[0]
            elif value.op == "select" and is_zero(value.args[2]):
                condition, value = value.args[0], value.args[1]
            elif value.op == "select" and is_zero(value.args[1]):
                condition, value = self.store.node("not", (value.args[0],), kind="bool"), value.args[2]
            elif value.op == "mul" and (found := factor_of(value)) is not None:
                value, more = found
                factor = more if factor is None else self.store.node("mul", (more, factor))
            else:
                break
        return None, True, None

    def assume(self, value: Value, condition: Value) -> Value:
        """`value` where `condition` holds: selections by it are decided."""
        if condition is True:
            return value
        return self.store.substitute(
            value, lambda n: n.args[1] if n.op == "select" and n.args[0] is condition else None
        )

    # ---- row strides
    # --------------------------------------------------------------------------------------------------

    def _learn_strides(self, copies: list[Any]) -> None:
        for _, _, (root, offset), _, condition, predicates, size, _ in copies:
            self.element_sizes.setdefault(root, size)
            self.learn_stride(root, offset, [condition, *predicates])

    def learn_stride(self, root: int, offset: Value, facts: Sequence[Value]) -> None:
        """Find the row stride of a tensor from one access: its row is what a predicate compares with a limit."""
        if root in self.strides:
            known = self.strides[root]
            row = row_of(facts)
            if row is not None:
                atoms = frozenset(a for m in self.store.poly(row[0]).terms for a in m if not of_parameters(a))
                known.row_atoms = known.row_atoms | atoms
            return
        element = self.element_sizes.get(root, 2)
        terms = {m: c // element for m, c in self.store.poly(offset).terms.items()}
        row = row_of(facts)
        if row is not None:
            found = self._match_row(terms, self.store.poly(row[0]))
            if found is not None:
                self.strides[root] = found
                return
        varying = [m for m, c in terms.items() if m and isinstance(c, np.ndarray)]
        if len(varying) == 1:
            rho = varying[0]
            values = np.asarray(terms[rho])
            factor = int(np.gcd.reduce(np.abs(values)))
            rest = [without(m, rho) or () for m in terms]
            atoms = frozenset(a for m in rest for a in m if len(m) == 1 and not of_parameters(a))
            self.strides[root] = RowStride(rho, max(1, factor), atoms)
        elif not varying and (contiguous := self._contiguous(terms)) is not None:
            self.strides[root] = contiguous

    def _contiguous(self, terms: dict[Monomial, Coefficient]) -> RowStride | None:
        """Rows of a tensor without stride arguments and without a predicate: ``b * H * S * 64 + tile * 4096 + ...``
        is made of rows of 64, the largest number that divides every step.
        """
        steps = [c for m, c in terms.items() if m and isinstance(c, int)]
        tiles = frozenset(m[0] for m in terms if len(m) == 1 and not of_parameters(m[0]))
        sized = any(any(of_parameters(a) for a in m) for m in terms)
        length = int(np.gcd.reduce(np.abs(steps))) if steps else 0
        numbers = np.asarray(terms.get((), 0))
        if not sized or not 8 <= length <= 512 or int(numbers.min()) < 0:
            return None
        return RowStride((), length, tiles)

    def _match_row(self, terms: dict[Monomial, Coefficient], row: Poly) -> RowStride | None:
        """The stride rho * k with ``offset - k * rho * row`` free of the row's symbols."""
        atoms = frozenset(a for m in row.terms for a in m if not of_parameters(a))
        for mr, cr in row.terms.items():
            for mo, co in terms.items():
                rho = without(mo, mr)
                if rho is None or (mr == () and rho == ()):
                    continue
                factor = ratio(co, cr)
                if factor is None:
                    continue
                stride = self.store.lower({rho: factor})
                rest = self.store.poly(self.store.add(self.store.lower(dict(terms)), self.store.mul(stride, row), -1))
                if all(isinstance(c, int) for m, c in rest.terms.items() if m) and not (atoms & rest.atoms()):
                    column = np.asarray(rest.terms.get((), 0))
                    if column.min() >= 0 and (rho or column.max() < factor):
                        return RowStride(rho, factor, atoms)
        return None

    def access(self, root: int, offset: Value, row: Value | None = None) -> GlobalAccess:
        """Split a global byte offset of a tensor whose stride is known; `row` is what the access compares with the
        number of rows, if it does. Raises MemoryError_.
        """
        stride = self.strides.get(root)
        if stride is None:
            raise MemoryError_("a tensor whose row stride could not be found")
        element = self.element_sizes.get(root, 2)
        if row is not None and (told := self._access_at(root, stride, offset, element, row)) is not None:
            return told
        rows: dict[Monomial, Coefficient] = {}
        rest: dict[Monomial, Coefficient] = {}
        for m, c in self.store.poly(offset).terms.items():
            c = c // element
            cofactor = without(m, stride.symbols)
            is_row = cofactor is not None and (cofactor == () or bool(set(cofactor) & stride.row_atoms))
            if is_row and cofactor is not None:
                if stride.symbols == () and cofactor == ():
                    numbers = np.asarray(c, dtype=np.int64)
                    rows[()] = numbers // stride.factor
                    rest[()] = numbers % stride.factor
                    continue
                if isinstance(c, int) and c % stride.factor:
                    raise MemoryError_("an address that is no multiple of the row stride")
                rows[cofactor] = c // stride.factor
            else:
                rest[m] = c
        numbers, row0 = split_uniform(self.store, self.store.lower(rows))
        column, base = split_uniform(self.store, self.store.lower(rest))
        return GlobalAccess(root, numbers, row0, column, base)

    def _access_at(self, root: int, stride: RowStride, offset: Value, size: int, row: Value) -> GlobalAccess | None:
        """The access when `row` is its row: what is left of the address must be a base and a column."""
        elements = self.store.lower({m: c // size for m, c in self.store.poly(offset).terms.items()})
        moved = self.store.mul(self.store.lower({stride.symbols: stride.factor}), row)
        try:
            column, base = split_uniform(self.store, self.store.add(elements, moved, -1))
            numbers, row0 = split_uniform(self.store, row)
        except MemoryError_:
            return None
        atoms = {a for m in self.store.poly(row0).terms for a in m}
        rest = self.store.poly(base)
        if int(column.min()) < 0 or (not stride.symbols and int(column.max()) >= stride.factor):
            return None
        if any(without(m, (*stride.symbols, a)) is not None for m in rest.terms for a in atoms):
            return None  # the row's symbols still move the address by rows: it is another row
        return GlobalAccess(root, numbers, row0, column, base)

    # ---- waves and buffers
    # ----------------------------------------------------------------------------------------------

    def _make_waves(self, copies: list[Any]) -> None:
        current: dict[tuple[Any, ...], Wave] = {}
        last_order = -1
        for event, shared, (root, offset), count, condition, predicates, size, factor in copies:
            try:
                address, slot = split_uniform(self.store, shared)
                row = row_of([condition, *predicates])
                access = self.access(root, offset, row[0] if row else None)
            except MemoryError_ as why:
                self.problems.append((event, str(why)))
                continue
            active = np.ones(self.threads, dtype=bool)
            for p in predicates:
                known = conditions.per_thread(self.store, p)
                if known is not None:
                    active &= known
            part = CopyPart(
                event,
                address,
                slot,
                size,
                count,
                access,
                row[1] if row else None,
                active,
                isinstance(event, AsyncCopy),
                factor,
            )
            key = (root, identity(slot), identity(access.row0), identity(access.base), type(event))
            wave = current.get(key)
            fresh = wave is None or event.order - last_order > 4000 or self._overlaps(wave, part)
            if fresh:
                wave = current[key] = Wave([])
                self.waves.append(wave)
            assert wave is not None
            wave.parts.append(part)
            last_order = event.order
        self.waves = [piece for wave in self.waves for piece in self._tiles_of(wave)]
        for wave in self.waves:
            first = min(int(p.access.row[p.active].min()) for p in wave.parts)
            for part in wave.parts:
                part.access.row = part.access.row - first
                part.access.row0 = self.store.add(part.access.row0, first)
            rows = np.concatenate([(p.access.row)[p.active] for p in wave.parts])
            columns = np.concatenate([p.access.column[p.active] + p.count - 1 for p in wave.parts])
            wave.rows, wave.columns = int(rows.max()) + 1, int(columns.max()) + 1

    def _tiles_of(self, wave: Wave) -> list[Wave]:
        """The tiles of a wave: copies into several pipeline slots ahead of the loop are one tile each."""
        rows = [w for w in self.waves if w.tensor == wave.tensor and not isinstance(w.parts[0].slot, int)]
        if not rows or not isinstance(wave.parts[0].slot, int):
            return [wave]
        spans = [(p.access.row[p.active], p) for w in rows[:1] for p in w.parts]
        height = max(int(r.max()) for r, _ in spans) - min(int(r.min()) for r, _ in spans) + 1
        first = min(int(p.access.row[p.active].min()) for p in wave.parts)
        pieces: dict[int, Wave] = {}
        for part in wave.parts:
            tiles = (part.access.row[part.active] - first) // height
            if int(tiles.min()) != int(tiles.max()):
                return [wave]
            pieces.setdefault(int(tiles[0]), Wave([])).parts.append(part)
        return list(pieces.values())

    def _overlaps(self, wave: Wave, part: CopyPart) -> bool:
        """True when `part` writes again what `wave` has written: the next tile's copy (or the same one in a loop)."""
        return any(p.event.place == part.event.place and (p.address == part.address).all() for p in wave.parts)

    def _make_buffers(self) -> None:
        by_tensor: dict[int, list[Wave]] = {}
        for wave in self.waves:
            by_tensor.setdefault(wave.tensor, []).append(wave)
        for tensor, waves in by_tensor.items():
            try:
                self.buffers.append(self._buffer(tensor, waves))
            except MemoryError_ as why:
                self.problems.append((waves[0].parts[0].event, str(why)))

    def _buffer(self, tensor: int, waves: list[Wave]) -> Buffer:
        moving = [w for w in waves if not isinstance(w.parts[0].slot, int)]
        model = max(moving or waves, key=lambda w: sum(int(p.active.sum()) * p.count for p in w.parts))
        base = min(int(p.address[p.active].min()) for p in model.parts)
        element = model.parts[0].shared_size
        end = max(int(p.address[p.active].max()) + p.count * element for p in model.parts)
        stride, slots = self._slots(model.parts[0].slot)
        if not moving and len(waves) > 1:
            starts = sorted({min(int(p.address[p.active].min()) for p in w.parts) for w in waves})
            if len(starts) > 1:
                base, stride = starts[0], starts[1] - starts[0]
                slots = (starts[-1] - base) // stride + 1
        size = (end - base + element - 1) // element
        row_at, column_at = np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
        start = min(int(p.address[p.active].min()) for p in model.parts)
        for part in model.parts:
            where = (part.address[part.active] - start) // element
            for k in range(part.count):
                row_at[where + k] = part.access.row[part.active]
                column_at[where + k] = part.access.column[part.active] + k
        buffer = Buffer(
            "", tensor, base, size * element, element, slots, stride, row_at, column_at, model.rows, model.columns
        )
        buffer.waves = waves
        return buffer

    def _slots(self, slot: Value) -> tuple[int, int]:
        """Bytes per slot and number of slots of a slot expression."""
        if isinstance(slot, int):
            return 0, 1
        terms = self.store.poly(slot).terms
        if len(terms) == 1:
            (m, c), *_ = terms.items()
            if len(m) == 1 and isinstance(c, int) and m[0].op in ("mod", "tmod") and isinstance(m[0].args[1], int):
                return c, m[0].args[1]
        raise MemoryError_("a shared address whose pipeline slot is not understood")

    def slot_of(self, buffer: Buffer, address: int, uniform: Value) -> Value:
        """The slot number of an address ``address + uniform``."""
        fixed = 0
        if buffer.stride:
            fixed = (address - buffer.base) // buffer.stride
            if isinstance(uniform, Poly | Node):
                terms = self.store.poly(uniform).terms
                if not all(isinstance(c, int) and c % buffer.stride == 0 for c in terms.values()):
                    raise MemoryError_("a shared address between pipeline slots")
                uniform = self.store.lower({m: c // buffer.stride for m, c in terms.items()})
        elif uniform != 0:
            raise MemoryError_("a shared address with a symbol in a buffer of one slot")
        return self.store.add(uniform, fixed)

    def find(self, address: Value) -> Found | None:
        """What tile element each thread finds at a shared byte address; None when no buffer of a tensor lies there."""
        numbers, uniform = split_uniform(self.store, address)
        low, high = int(numbers.min()), int(numbers.max())
        for buffer in self.buffers:
            span = buffer.size if buffer.slots == 1 else buffer.stride * buffer.slots
            if not buffer.base <= low <= high < buffer.base + max(span, buffer.size):
                continue
            slot = self.slot_of(buffer, low, uniform)
            inside = (
                numbers - buffer.base - (((low - buffer.base) // buffer.stride) * buffer.stride if buffer.stride else 0)
            )
            where = inside // buffer.element
            if int(where.max()) >= len(buffer.row_at):
                raise MemoryError_("a shared read that spans pipeline slots")
            row, column = buffer.row_at[where], buffer.column_at[where]
            if int(row.min()) < 0:
                raise MemoryError_("a shared read of bytes that no copy wrote")
            return Found(buffer, row, column, slot)
        return None

    def owner(self, address: Value, epoch: int) -> Owner | None:
        """What threads stored at a shared address before `epoch`; None when it was never written this way. Raises
        MemoryError_.
        """
        return self.values.owner(address, epoch)
