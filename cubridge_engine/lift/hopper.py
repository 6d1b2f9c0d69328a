"""Hopper's instructions in terms of what the rest of lifting knows: TMA copies, mbarriers, wgmma.

A TMA copy started by one thread becomes the copies of 16 bytes that all threads of the block would make, with the
addresses that the tensor map stands for: strides and row count are unknowns named after the map. A wait for an mbarrier
waits for the copies that complete on it. A wgmma of a warpgroup is, for each of its four warps and each 8 columns, an
m16n8k16 product with the same accumulator layout; its operands are read from shared memory as ``ldmatrix`` would.
What a wgmma computes is there after the wait for its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from . import conditions, places, reinterpreted
from .addresses import Ints, MemoryError_, identity, split_uniform
from .machine import Machine
from .map_unknowns import unknown
from .trace import BoxCopy, BoxGroup, Sync
from .values import Cells, CType, Node, NotUnderstood, Ptr, Store, Value, same

if TYPE_CHECKING:
    from .asm_table import Instruction

ROW = 128  # bytes of a row of a box: the span of the swizzle
FRAME = 8 * ROW  # the swizzle repeats after eight rows
ADDRESSES = 1 << 18  # what a descriptor can name
_HALF = CType("half", 2, "half")


# ---- copies


def expect(i: Instruction) -> None:
    """mbarrier.arrive.expect_tx: copies of so many bytes follow on that barrier."""
    address, size = _shared(i.read(i.groups[1][0])), i.read(i.groups[2][0])
    if not isinstance(size, int):
        raise NotUnderstood("a number of expected bytes that is not constant")
    m = i.machine
    m.in_flight.number(m.store, address)
    m.in_flight.announced[identity(address)] = BoxGroup(size)


def arrive(i: Instruction) -> None:
    """mbarrier.init: the first names the numbering."""
    i.machine.in_flight.number(i.machine.store, _shared(i.read(i.groups[0][0])))


def wait(i: Instruction) -> None:
    """mbarrier.try_wait in its loop: what completes on the barrier has landed."""
    m = i.machine
    number = m.in_flight.number(m.store, _shared(i.read(i.groups[1][0])))
    i.local[i.groups[0][0]] = True
    if m.rotation is not None and not m.rotation.waits(number):
        return
    m.record(Sync(m.next_order(), m.place(), "wait", signal=number))


def jump(i: Instruction) -> None:
    """The way back of a loop of try_wait."""
    if i.predicate is not False:
        raise NotUnderstood("a jump inside asm")


def tma(i: Instruction) -> None:
    """cp.async.bulk.tensor.4d of a box of 64 columns at (column, row, head, batch)."""
    m = i.machine
    if "4d" not in i.parts or "global" not in i.parts[-4:]:
        raise NotUnderstood("a TMA copy other than of a 4-dimensional box from global to shared memory")
    shared = _shared(i.read(i.groups[0][0]))
    pointer, *coordinates = (i.read(word.strip("{} ")) for word in i.groups[1] if word.strip("{} "))
    bar = _shared(i.read(i.groups[2][0]))
    source = pointer.root.values[0] if isinstance(pointer, Ptr) and isinstance(pointer.root, Cells) else None
    if not isinstance(source, Node) or source.op != "param" or len(coordinates) != 4:
        raise NotUnderstood("a TMA copy whose tensor map is no parameter of the kernel")
    group = m.in_flight.announced.get(identity(bar))
    if group is None:
        raise NotUnderstood("a TMA copy on a barrier that expects no bytes")
    masks = [conditions.per_thread(m.store, p) for p in m.predicates]
    alone = np.logical_and.reduce([np.ones(m.store.threads, bool), *(x for x in masks if x is not None)])
    if len(set(m.ids[alone].tolist())) != 1:
        raise NotUnderstood("a TMA copy that is not started by exactly one thread")
    rest = tuple(p for p, known in zip(m.predicates, masks, strict=True) if known is None)
    position = int(source.data)
    column, row, head, batch = coordinates
    row = _with_rows(m, row)
    head = _as_remainder(m.store, head)
    offset: Value = column
    for index, axis in ((row, 0), (head, 1), (batch, 2)):
        offset = m.store.add(offset, m.store.mul(index, unknown(m.store, position, axis)))
    m.param_sizes[position] = 2
    m.epoch += 1
    first = Ptr("global", position, m.store.mul(offset, 2), _HALF)
    stride, rows, signal = (
        unknown(m.store, position, 0),
        unknown(m.store, position, 3),
        m.in_flight.number(m.store, bar),
    )
    event = BoxCopy(
        m.next_order(), m.place(), shared, first, 16, 16, rest, m.epoch, row, stride, rows, group, signal
    )  # fmt: skip
    if not m.rehearsal:
        group.copies += 1
    m.record(event)


def _with_rows(m: Machine, row: Value) -> Value:
    """``rows > 0 ? row : elsewhere``: of a tensor without rows every box is zeros, wherever it is read. `rows` must be
    the length of the tensor; `lifting.read_problem` asks for that.
    """
    if isinstance(row, Node) and row.op == "select" and isinstance(test := row.args[0], Node) and test.op == "gt":
        size, zero = test.args
        if zero == 0 and isinstance(size, Node) and size.op == "param" and isinstance(row.args[2], int):
            m.row_counts.add(size)
            return row.args[1]
    return row


def _as_remainder(store: Store, value: Value) -> Value:
    """``a - a / b * b`` as ``a % b``."""
    for node in store.poly(value).atoms():
        if node.op == "tdiv" and len(node.args) == 2:
            rest = store.add(value, store.mul(node, node.args[1]))
            if same(rest, node.args[0]):
                return store.remainder(node.args[0], node.args[1], floor=False)
    return value


def pieces(store: Store, threads: int, event: BoxCopy) -> Iterator[tuple[Value, Value, Value]]:
    """(shared address, global offset in bytes, condition) of the 16-byte copies that all threads would make."""
    height, left = divmod(event.group.size, max(event.group.copies, 1) * ROW)
    chunks = height * (ROW // 16)
    if left or chunks % threads:
        return
    for first in range(0, chunks, threads):
        chunk = first + np.arange(threads)
        row, column = chunk // 8, chunk % 8
        inside = row * ROW + ((column ^ (row % 8)) * 16)
        at = store.add(event.shared, store.array(inside))
        rows = store.array(row)
        offset = store.add(event.ptr.offset, store.mul(store.mul(rows, event.stride), 2))
        yield (
            at,
            store.add(offset, store.array(column * 16)),
            store.node("lt", (store.add(event.row, rows), event.rows), kind="bool"),
        )


def _shared(value: Value) -> Value:
    return value.offset if isinstance(value, Ptr) else value


# ---- products


def wgmma(i: Instruction) -> None:
    """wgmma.mma_async: c (+)= A B for 64 rows, k = 16; A from registers or shared memory, B from shared memory."""
    m = i.machine
    shape = next((p for p in i.parts if re.fullmatch(r"m64n\d+k16", p)), "")
    if not shape or "f32" not in i.parts or i.parts[-1] not in ("f16", "bf16"):
        raise NotUnderstood(f"the product {'.'.join(i.parts)}")
    columns = int(shape[4:-3])
    registers = len(i.groups[1]) > 1
    keep, flags = i.read(i.groups[3][0]), [i.read(g[0]) for g in i.groups[4:]]
    if flags[:2] != [1, 1] or (not registers and flags[2] != 0):
        raise NotUnderstood("a product with a negated or transposed operand A")
    if m.store.threads % 128:
        raise NotUnderstood("a product of less than a warpgroup")
    transposed = flags[-1] == 1
    a = tuple(i.read(x) for x in i.groups[1]) if registers else _fragment_a(m, i.read(i.groups[1][0]))
    if m.rotation is not None:
        inputs = [i.read(x) for x in i.groups[1]] if registers else []
        executed, keep = m.rotation.product(i.target(i.groups[0][0]), inputs, i.read(i.groups[2][0]), keep)
        if not executed:
            return
    operand = _Operand.of(m, i.read(i.groups[2][0]))
    results: list[Value] = []
    for block in range(columns // 8):
        b = _fragment_b(m, operand, block, transposed)
        for element in range(4):
            word = i.groups[0][4 * block + element]
            start = m.in_flight.running(i.target(word))
            start = i.read(word) if start is None else start
            start = reinterpreted.bits_as_float(start) if isinstance(start, int) else start
            start = 0.0 if keep in (0, False) else start
            if not isinstance(keep, bool | int):
                raise NotUnderstood("a product that starts anew on a condition that is not constant")
            results.append(m.store.node("mma", (start, *a, *b), (element, shape, i.parts[-2])))
    for word, value in zip(i.groups[0], results, strict=True):
        m.in_flight.start(i.target(word), value)


def commit_products(i: Instruction) -> None:
    """wgmma.commit_group."""
    i.machine.in_flight.commit()


def wait_products(i: Instruction) -> None:
    """wgmma.wait_group: here, and no earlier, the accumulators hold the products."""
    pending = i.read(i.groups[0][0])
    if not isinstance(pending, int):
        raise NotUnderstood("wgmma.wait_group with a count that is not constant")
    for target, value in i.machine.in_flight.finish(pending):
        if i.machine.raw is not None and isinstance(target.offset, int):
            i.machine.raw[(target.root.oid, target.offset)] = value
        places.assign(i.machine, target, None, value, i.syn)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A shared-memory operand: address per thread and symbolic part, bytes to the next 64 columns."""

    numbers: Ints
    uniform: Value
    next: int

    @staticmethod
    def of(m: Machine, descriptor: Value) -> _Operand:
        """From the 64 bits of a descriptor. Raises NotUnderstood for other layouts than the 128-byte swizzle."""
        store = m.store
        address, rest = _decoded(store, descriptor)
        swizzle, eight_rows = rest >> 62, (rest >> 32 & 0x3FFF) << 4
        if swizzle != 1 or eight_rows != FRAME:
            raise NotUnderstood("a shared-memory operand without the 128-byte swizzle")
        try:
            numbers, uniform = split_uniform(store, address)
        except MemoryError_ as why:
            raise NotUnderstood(str(why)) from None
        if numbers.max() < ADDRESSES:
            # A descriptor has 18 bits of the address; dynamic shared memory, where tiles are, begins beyond them here.
            declared = [p.offset for p in m.shared_declared.values() if isinstance(p.offset, int)]
            numbers = numbers + max((x for x in declared if x >= ADDRESSES), default=0)
        if any(not isinstance(c, int) or c % FRAME for c in store.poly(uniform).terms.values()):
            raise NotUnderstood("a shared-memory operand that does not begin at a multiple of 1024 bytes")
        return _Operand(numbers, uniform, (rest >> 16 & 0x3FFF) << 4)

    def address(self, store: Store, offset: Ints) -> Value:
        """The shared address of what lies `offset` bytes behind the start, after the swizzle."""
        plain = self.numbers + offset
        return store.add(store.array(plain ^ (plain >> 7 & 7) << 4), self.uniform)


def _decoded(store: Store, descriptor: Value) -> tuple[Value, int]:
    """(shared address in bytes, the other bits) of a descriptor built from ``address >> 4`` and constants."""
    terms = store.poly(descriptor).terms
    constant = terms.get((), 0)
    symbols = [(m, c) for m, c in terms.items() if m]
    if not symbols:
        bits = np.broadcast_to(np.asarray(constant, dtype=np.int64), (store.threads,))
        if len(set((bits >> 14).tolist())) != 1:
            raise NotUnderstood("shared-memory operands of different layouts in one product")
        return store.array((bits & 0x3FFF) << 4), int(bits[0]) & ~0x3FFF
    node = symbols[0][0][0] if len(symbols) == 1 and symbols[0][1] == 1 and len(symbols[0][0]) == 1 else None
    if not isinstance(constant, int):
        raise NotUnderstood("a shared-memory operand that is not understood")
    if node is not None and node.op in ("bitor", "floordiv", "mod", "tdiv", "tmod"):
        address, rest = _parts_of(store, node)
        return store.add(address, constant << 4), rest
    return store.mul(descriptor, 16), 0


def _parts_of(store: Store, node: Node) -> tuple[Value, int]:
    if node.op == "bitor":
        fixed = next((x for x in node.args if isinstance(x, int)), None)
        other = next((x for x in node.args if not isinstance(x, int)), None)
        if fixed is None or other is None:
            raise NotUnderstood("a shared-memory operand that is not understood")
        address, rest = _decoded(store, other)
        return store.add(address, (fixed & 0x3FFF) << 4), rest | fixed & ~0x3FFF
    if node.op in ("floordiv", "tdiv") and node.args[1] == 16:
        inner = node.args[0]
        while isinstance(inner, Node) and inner.op in ("mod", "tmod") and inner.args[1] == ADDRESSES:
            inner = inner.args[0]
        return inner, 0
    if node.op in ("mod", "tmod") and node.args[1] == 1 << 14:
        return store.mul(node.args[0], 16), 0
    raise NotUnderstood("a shared-memory operand that is not understood")


def _lanes(m: Machine) -> tuple[Ints, Ints, Ints]:
    """(warp of its warpgroup, 8x8 matrix, row of it) whose address a thread gives to ldmatrix."""
    thread = np.arange(m.store.threads)
    return thread // 32 % 4, thread % 32 // 8, thread % 8


def _fragment_a(m: Machine, descriptor: Value) -> tuple[Value, ...]:
    """The four registers of A, 16 rows per warp."""
    warp, matrix, row = _lanes(m)
    operand = _Operand.of(m, descriptor)
    address = operand.address(m.store, (16 * warp + matrix % 2 * 8 + row) * ROW + matrix // 2 * 16)
    return tuple(m.store.node("frag", (address,), (at, False, m.epoch), "reg") for at in range(4))


def _fragment_b(m: Machine, operand: _Operand, block: int, transposed: bool) -> tuple[Value, ...]:
    """The two registers of B for 8 columns of the result; `transposed`: the k index runs along the rows (V)."""
    _, matrix, row = _lanes(m)
    if transposed:
        offset = (matrix % 2 * 8 + row) * ROW + block % 8 * 16 + block // 8 * operand.next
    else:
        offset = (8 * block + row) * ROW + matrix % 2 * 16
    address = operand.address(m.store, offset)
    return tuple(m.store.node("frag", (address,), (at, transposed, m.epoch), "reg") for at in range(2))
