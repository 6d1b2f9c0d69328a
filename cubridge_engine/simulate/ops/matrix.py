"""Tensor-core instructions of a warp: mma.sync, wmma, movmatrix."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..emit import Emitter, Unsupported, types_of
from ..flow import reads_writes
from ..fragments import WMMA_TYPES, wmma_registers
from ..model import Imm, Instruction, Operand, Vec, registers_of

Handler = Callable[[Emitter, Instruction], str | None]

# (element type, K) -> registers of A and of B for m16n8
_SHAPES = {
    ("f16", 8): (2, 1), ("f16", 16): (4, 2), ("bf16", 8): (2, 1), ("bf16", 16): (4, 2),
    ("tf32", 4): (2, 1), ("tf32", 8): (4, 2),
    ("s8", 16): (2, 1), ("s8", 32): (4, 2), ("u8", 16): (2, 1), ("u8", 32): (4, 2),
    ("e4m3", 32): (4, 2), ("e5m2", 32): (4, 2), ("e4m3", 16): (2, 1), ("e5m2", 16): (2, 1),
}  # fmt: skip


def items(operand: Operand) -> tuple[Operand, ...]:
    """The registers of a fragment."""
    return operand.items if isinstance(operand, Vec) else (operand,)


def shape_of(ins: Instruction) -> tuple[int, int, int]:
    """M, N, K of the instruction."""
    m = re.search(r"\.m(\d+)n(\d+)k(\d+)", ins.op)
    if m is None:
        raise Unsupported("a matrix instruction without a shape")
    return int(m[1]), int(m[2]), int(m[3])


def fragment(e: Emitter, operand: Operand, which: str, kind: str) -> str:
    """The operand as a matrix per warp; converted once while its registers keep their values."""
    key = (which, kind, e.stamp(operand))
    if key not in e.memo:
        registers = ",".join(e.lanes(r, "u", 32) for r in items(operand))
        e.memo[key] = e.temp(f"X.fragment({which!r},[{registers}],{kind!r})")
    return e.memo[key]


def _mma(e: Emitter, ins: Instruction) -> None:
    m, n, k = shape_of(ins)
    types = types_of(ins)
    sparse = ins.has("sp", "sp::ordered_metadata")
    if sparse or ins.has("block_scale") or len(types) != 4:
        types = [p for p in ins.parts if p in ("f16", "bf16", "f32", "tf32", "s8", "u8", "s32", "e4m3", "e5m2")]
    if (m, n) != (16, 8) or len(types) != 4 or "row" not in ins.parts or "col" not in ins.parts:
        raise Unsupported("this shape of mma")
    if sparse:
        _sparse_mma(e, ins, types, k)
        return
    result, a_kind, b_kind, c_kind = types
    counts = _SHAPES.get((a_kind, k))
    if counts is None or (a_kind, b_kind) not in {
        (a_kind, a_kind),
        ("s8", "u8"),
        ("u8", "s8"),
        ("e4m3", "e5m2"),
        ("e5m2", "e4m3"),
    }:
        raise Unsupported(f"mma of {a_kind} and {b_kind} with k = {k}")
    d, a, b, c = ins.args[:4]
    if (len(items(a)), len(items(b))) != counts:
        raise Unsupported("the number of registers of a fragment")
    if c == d and a_kind == b_kind and result == c_kind == "f32" and ins.guard is None:
        _put_off(e, d, a, b, a_kind)
        return
    left, right = fragment(e, a, "A", a_kind), fragment(e, b, "B", b_kind)
    saturate = ins.has("satfinite")
    call = f"X.mma({left},{right},{{}},{result!r},{c_kind!r},{e.mask(ins)},{e.site},{saturate})"
    accumulate(e, ins, call, d, c, result, c_kind)


def _put_off(e: Emitter, d: Operand, a: Operand, b: Operand, kind: str) -> None:
    """Add the product to those that wait to be computed together, or start with it."""
    left, right = (tuple(e.lanes(r, "u", 32) for r in items(x)) for x in (a, b))
    batch = e.deferred
    if not isinstance(batch, _Products) or batch.kind != kind:
        e.flush()
        batch = e.deferred = _Products(e, kind)
    batch.sums.setdefault(d, []).append((left, right, e.site))


@dataclass(slots=True)
class _Products:
    """mma.sync instructions whose results nobody has read yet: one product for all that have the same operands A.

    They touch registers only, so that anything may be executed before them that leaves theirs alone.
    """

    e: Emitter
    kind: str
    sums: dict[Operand, list[tuple[tuple[str, ...], tuple[str, ...], int]]] = field(
        default_factory=dict[Operand, list[tuple[tuple[str, ...], tuple[str, ...], int]]]
    )

    def waits(self, ins: Instruction) -> bool:
        """True when `ins` leaves the accumulators alone, or adds one more product to one of them."""
        own = {name for d in self.sums for name in registers_of(d)}
        reads, writes = reads_writes(ins)
        if ins.parts[0] == "mma" and ins.args[0] in self.sums and ins.args[0] == ins.args[3] and not ins.guard:
            reads, writes = {n for x in ins.args[1:3] for n in registers_of(x)}, set()
        return not (reads | writes) & own

    def write(self) -> None:
        """One call for each sequence of operands A."""
        alike: dict[tuple[tuple[str, ...], ...], list[Operand]] = {}
        for d, products in self.sums.items():
            alike.setdefault(tuple(left for left, _, _ in products), []).append(d)
        for lefts, ds in alike.items():
            self._write(lefts, ds)

    def _write(self, lefts: tuple[tuple[str, ...], ...], ds: list[Operand]) -> None:
        e = self.e
        a = ",".join(r for left in lefts for r in left)
        b = ",".join(r for d in ds for _, right, _ in self.sums[d] for r in right)
        sites = tuple(site for d in ds for _, _, site in self.sums[d])
        registers = [r for d in ds for r in items(d)]
        old = ",".join(e.read(r, "f", 32) for r in registers)
        mask = "m" if e.masked else "None"
        value = e.temp(f"X.products([{a}],[{b}],[{old}],{self.kind!r},{mask},{sites})")
        ins = e.unit.flow.code[sites[0]]
        for i, reg in enumerate(registers):
            e.write(reg, f"{value}[{i}]", "f32", ins)


def _sparse_mma(e: Emitter, ins: Instruction, types: list[str], k: int) -> None:
    """A holds two of every four elements of a row; metadata in some of the lanes says which."""
    result, a_kind, b_kind, c_kind = types
    d, a, b, c, metadata, selector = ins.args
    counts = {16: (2, 2), 32: (4, 4)}.get(k)
    if a_kind not in ("f16", "bf16") or a_kind != b_kind or not isinstance(selector, Imm):
        raise Unsupported(f"sparse mma of {a_kind} and {b_kind}")
    if counts is None or selector.bits >= (4 if k == 16 else 2):
        raise Unsupported(f"sparse mma with k = {k} and selector {selector.bits}")
    if (len(items(a)), len(items(b))) != counts:
        raise Unsupported("the number of registers of a fragment")
    registers = ",".join(e.lanes(r, "u", 32) for r in items(a))
    words, mask = e.lanes(metadata, "u", 32), e.mask(ins)
    left = e.temp(f"X.sparse_fragment([{registers}],{a_kind!r},{words},{selector.bits},{k},{mask},{e.site})")
    right = fragment(e, b, "B", b_kind)
    accumulate(e, ins, f"X.mma({left},{right},{{}},{result!r},{c_kind!r},{mask},{e.site})", d, c, result, c_kind)


def accumulate(e: Emitter, ins: Instruction, call: str, d: Operand, c: Operand, result: str, c_kind: str) -> None:
    """Write the call that takes C's registers for ``{}`` and gives D's."""
    kind = {"f32": "f", "s32": "s", "f16": "u"}[c_kind]
    addend = "[" + ",".join(e.read(r, kind, 32) for r in items(c)) + "]"
    value = e.temp(call.format(addend))
    key = {"f32": "f32", "s32": "s32", "f16": "u32"}[result]
    for i, reg in enumerate(items(d)):
        e.write(reg, f"{value}[{i}]", key, ins)


def _wmma(e: Emitter, ins: Instruction) -> None:
    shape = shape_of(ins)
    action = ins.parts[1]
    if action == "mma":
        types = [p for p in ins.parts if p in ("f16", "bf16", "tf32", "f32", "s8", "u8", "s32")]
        layouts = [p for p in ins.parts if p in ("row", "col")]
        # f16 forms name D and C only; the others name D, A, B, C.
        d_kind, a_kind, c_kind = (types[0], "f16", types[1]) if len(types) == 2 else (types[0], types[1], types[3])
        if (shape, a_kind) not in WMMA_TYPES or len(layouts) != 2 or ins.has("satfinite"):
            raise Unsupported("this shape of wmma")
        d, a, b, c = ins.args[:4]
        lists = [f"[{','.join(e.lanes(r, 'u', 32) for r in items(x))}]" for x in (a, b, c)]
        value = e.temp(
            f"X.wmma({lists[0]},{lists[1]},{lists[2]},{shape},{a_kind!r},{d_kind!r},{c_kind!r},{e.mask(ins)},{e.site})"
        )
        for i, reg in enumerate(items(d)):
            e.write(reg, f"{value}[{i}]", "u32", ins)
        return
    which, kind = ins.parts[2], ins.parts[-1]
    registers_position, address_position = (1, 0) if action == "store" else (0, 1)
    registers = items(ins.args[registers_position])
    if len(registers) != wmma_registers(shape, which, kind):
        raise Unsupported("this shape of wmma")
    from ..model import Mem

    mem = ins.args[address_position]
    if not isinstance(mem, Mem):
        raise Unsupported("wmma without an address")
    address, _ = e.address(mem)
    space = {"shared": "shared", "global": "global"}.get(ins.space, "generic")
    stride = e.lanes(ins.args[2], "u", 32) if len(ins.args) > 2 else "None"
    head = f"{space!r},{address},{stride},{which!r},{kind!r},{shape},{ins.has('row')}"
    if action == "store":
        values = ",".join(e.lanes(r, "u", 32) for r in registers)
        e.line(f"X.wmma_store({head},[{values}],{e.mask(ins)},{e.site})")
        return
    value = e.temp(f"X.wmma_load({head},{len(registers)},{e.mask(ins)},{e.site})")
    for i, reg in enumerate(registers):
        e.write(reg, f"{value}[{i}]", "u32", ins)


def _movmatrix(e: Emitter, ins: Instruction) -> None:
    e.write(ins.args[0], f"X.movmatrix({e.lanes(ins.args[1], 'u', 32)},{e.mask(ins)},{e.site})", "u32", ins)


ROWS: dict[str, Handler] = {"mma": _mma, "wmma": _wmma, "movmatrix": _movmatrix}
