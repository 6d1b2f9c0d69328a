"""Tensor-core instructions of a warp: mma.sync, wmma, movmatrix."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..emit import Emitter, Unsupported, types_of
from ..fragments import WMMA_TYPES, wmma_registers
from ..model import Instruction, Operand, Vec

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
    if ins.has("sp", "sp::ordered_metadata", "block_scale") or len(types) != 4:
        types = [p for p in ins.parts if p in ("f16", "bf16", "f32", "tf32", "s8", "u8", "s32", "e4m3", "e5m2")]
    if (m, n) != (16, 8) or len(types) != 4 or ins.has("sp") or "row" not in ins.parts or "col" not in ins.parts:
        raise Unsupported("this shape of mma")
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
    left, right = fragment(e, a, "A", a_kind), fragment(e, b, "B", b_kind)
    accumulate(e, ins, f"X.mma({left},{right},{{}},{result!r},{c_kind!r},{e.mask(ins)},{e.site})", d, c, result, c_kind)


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
        types = [p for p in ins.parts if p in ("f16", "bf16", "tf32", "f32")]
        layouts = [p for p in ins.parts if p in ("row", "col")]
        # f16 forms name D and C only; the others name D, A, B, C.
        d_kind, a_kind, c_kind = (types[0], "f16", types[1]) if len(types) == 2 else (types[0], types[1], types[3])
        if (shape, a_kind) not in WMMA_TYPES or len(layouts) != 2:
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
