"""Local arrays through pointers of another type: float4 over floats, half2 over packed registers, float over bits."""

from __future__ import annotations

import struct

from .machine import Machine, value_kind
from .values import Cells, CType, Node, NotUnderstood, Ptr, Value

_FLOATS = frozenset({"float", "half", "bf16"})


def width(ptr: Ptr) -> int:
    """How many elements of the array one access through `ptr` covers."""
    cells: Cells = ptr.root
    return 1 if ptr.ctype.pointer or not cells.ctype.size else max(1, ptr.ctype.size // cells.ctype.size)


def load(m: Machine, ptr: Ptr) -> Value:
    """The value that `ptr` (into a local array, with a constant offset) finds. Raises NotUnderstood."""
    cells: Cells = ptr.root
    assert isinstance(ptr.offset, int)
    count = width(ptr)
    if count == 1:
        return as_kind(m, cells.values[ptr.offset], ptr.ctype, cells.ctype)
    parts = tuple(cells.values[ptr.offset : ptr.offset + count])
    if len(parts) != count:
        raise NotUnderstood(f"an index of {cells.name} that lies outside")
    if cells.ctype.kind in ("half", "bf16") and count == 2:
        kind = "wide" if ptr.ctype.kind == "wide" else "reg"
        return m.store.node("pack", parts, "fp16" if cells.ctype.kind == "half" else "bf16", kind)
    return m.store.node("vec", parts, cells.ctype.name, "wide")


def store(m: Machine, ptr: Ptr, value: Value) -> None:
    """Write `value` where `ptr` points."""
    cells: Cells = ptr.root
    assert isinstance(ptr.offset, int)
    count = width(ptr)
    for at, part in enumerate([value] if count == 1 else pieces(m, value, count, cells.ctype)):
        m.write(cells, ptr.offset + at, part)


def as_kind(m: Machine, value: Value, wanted: CType, held: CType) -> Value:
    """A number's bits read as another type of the same size."""
    if wanted.pointer or held.pointer or wanted.kind == held.kind:
        return value
    if wanted.kind in _FLOATS and value_kind(value) == "int":
        return bits_as_float(value) if isinstance(value, int) else m.store.node("bits", (value,), None, "float")
    if wanted.kind == "int" and held.kind in _FLOATS and value_kind(value) == "float":
        return m.store.node("bits", (value,), None, "reg")
    if wanted.kind in _FLOATS and isinstance(value, Node) and value.op == "bits" and value.kind == "reg":
        return value.args[0]
    return value


def bits_as_float(value: Value) -> float:
    """The float with the bits of an integer constant. Raises NotUnderstood."""
    if not isinstance(value, int):
        raise NotUnderstood("bits of a variable read as a float")
    return float(struct.unpack("<f", struct.pack("<I", value & 0xFFFFFFFF))[0])


def pieces(m: Machine, value: Value, count: int, ctype: CType) -> list[Value]:
    """The `count` elements of type `ctype` in a wider value: of a vector, a packed register, or a wide load."""
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    if isinstance(value, Node) and value.op in ("vec", "pack"):
        if len(value.args) == count:
            return list(value.args)
        if count % len(value.args) == 0:
            return [x for part in value.args for x in pieces(m, part, count // len(value.args), ctype)]
    if isinstance(value, Node) and value.op == "select":
        a, b = (pieces(m, x, count, ctype) for x in value.args[1:])
        return [m.select(value.args[0], x, y) for x, y in zip(a, b, strict=True)]
    if isinstance(value, Node) and value.op in ("gload", "sload"):
        kind = "float" if ctype.kind in _FLOATS else "int"
        data = (value.data[0], ctype.size, ctype.name)
        offsets = [m.store.add(value.args[0], k * ctype.size) for k in range(count)]
        return [m.store.node(value.op, (offset,), data, kind) for offset in offsets]
    if isinstance(value, int) and value == 0:
        return [0.0 if ctype.kind in _FLOATS else 0] * count
    raise NotUnderstood("a wide value that is written to several elements")
