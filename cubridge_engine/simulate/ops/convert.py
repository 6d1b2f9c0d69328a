"""cvt: between integers, f16, bf16, f32, f64, tf32, 8-bit floats and their packed forms."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..model import Instruction
from .floating import HALVES, read_float

Handler = Callable[[Emitter, Instruction], str | None]
_TO_INTEGER = {"rni": "rni", "rzi": "rzi", "rmi": "rmi", "rpi": "rpi"}


def _packed(e: Emitter, ins: Instruction, dst: str, src: str) -> str:
    """Two inputs to one packed result (the first is the high half), or packed to packed."""
    mode = "rz" if ins.has("rz") else "rn"
    kind = dst[:-2]
    if len(ins.args) == 3:
        high, low = (e.read(a, "f", 32) for a in ins.args[1:3])
        if ins.has("relu"):
            high, low = f"A.fmax({high},f32(0))", f"A.fmax({low},f32(0))"
        if kind in ("f16", "bf16"):
            return f"A.pack(A.{kind}_bits({low},{mode!r}),A.{kind}_bits({high},{mode!r}))"
        pair = [f"A.narrow_bits({x},{kind!r}).astype(u16)" for x in (low, high)]
        return f"{pair[0]}|({pair[1]}<<u16(8))"
    if kind in ("e4m3", "e5m2") and src == "f16x2":
        halves = e.temp(f"A.up({e.read(ins.args[1], 'u', 32)},'f16x2')")
        pair = [f"A.narrow_bits({halves}[{i}],{kind!r}).astype(u16)" for i in (0, 1)]
        return f"{pair[0]}|({pair[1]}<<u16(8))"
    if kind == "f16" and src in ("e4m3x2", "e5m2x2"):
        codes = e.read(ins.args[1], "u", 16)
        pair = [f"A.f16_bits(A.narrow_value({x},{src[:-2]!r}))" for x in (codes, f"({codes}>>u16(8))")]
        return f"A.pack({pair[0]},{pair[1]})"
    raise Unsupported(f"conversion from {src} to {dst}")


def _float_source(e: Emitter, ins: Instruction, src: str) -> str:
    return read_float(e, ins.args[1], src)


def _to_float(e: Emitter, ins: Instruction, dst: str, src: str) -> tuple[str, str]:
    """Expression and key for a float destination."""
    integer = kind_width(src)[0] != "f" and src not in HALVES
    x = e.read(ins.args[1], *kind_width(src)) if integer else _float_source(e, ins, src)
    mode = next((m for m in ("rz", "rm", "rp") if m in ins.parts), "")
    rounding = next((m for m in _TO_INTEGER if m in ins.parts), "")
    if rounding:
        x = f"A.ROUND[{rounding!r}]({x})"
    if ins.has("sat"):
        x = f"A.saturate({x})"
    if ins.has("relu"):
        x = f"A.fmax({x},{x}.dtype.type(0))"
    if dst == "f64":
        return f"{x}.astype(f64)", "f64"
    if dst == "f32":
        if mode and (integer or src == "f64"):
            return f"A.directed({f'E.odd64({x})' if integer else x},{mode!r})", "f32"
        result = f"{x}.astype(f32)"
        return (f"A.ftz({result})" if ins.has("ftz") else result), "f32"
    if dst not in ("f16", "bf16"):
        raise Unsupported(f"conversion from {src} to {dst}")
    if mode in ("rm", "rp"):
        exactly = f"E.odd64({x})" if integer else x
        return f"E.half_directed({exactly},{dst!r},{mode!r})", "u16"
    if integer or src == "f64":
        x = f"E.odd64({x})" if integer else x
        x = f"A.odd32({x})" if dst == "bf16" else x
    return f"A.{dst}_bits({x},{mode or 'rn'!r})", "u16"


def _to_integer(e: Emitter, ins: Instruction, dst: str, src: str) -> tuple[str, str]:
    kind, width = kind_width(dst)
    key = f"{kind}{width}"
    if src in HALVES or kind_width(src)[0] == "f":
        mode = next((m for m in _TO_INTEGER if m in ins.parts), "")
        if not mode:
            raise Unsupported("a conversion to integer without rounding")
        return f"A.to_integer({_float_source(e, ins, src)},{mode!r},{key})", key
    x = e.read(ins.args[1], *kind_width(src))
    return (f"A.clamp({x},{key})" if ins.has("sat") else f"{x}.astype({key})"), key


def _pack(e: Emitter, ins: Instruction, types: list[str]) -> None:
    """cvt.pack.sat: two integers to bytes or halves of the result."""
    kind, width = kind_width(types[0])
    if types[1] != "s32" or width not in (8, 16) or len(ins.args) != (4 if width == 8 else 3):
        raise Unsupported("this form of cvt.pack")
    a, b = (e.read(x, "s", 32) for x in ins.args[1:3])
    c = e.read(ins.args[3], "u", 32) if width == 8 else "None"
    e.write(ins.args[0], f"E.pack_saturated({a},{b},{c},{kind}{width})", "u32", ins)


def _cvt(e: Emitter, ins: Instruction) -> None:
    types = types_of(ins)
    if ins.has("pack"):
        _pack(e, ins, types)
        return
    if len(types) != 2 or ins.has("scaled", "rs"):
        raise Unsupported("this form of cvt")
    dst, src = types
    if dst == "tf32":
        mode = "rna" if ins.has("rna") else "rz" if ins.has("rz") else "rn"
        e.write(ins.args[0], f"A.tf32_bits({e.read(ins.args[1], 'f', 32)},{mode!r})", "u32", ins)
        return
    if dst.endswith("x2"):
        key = "u16" if dst.startswith("e") else "u32"
        e.write(ins.args[0], _packed(e, ins, dst, src), key, ins)
        return
    to_float = dst in ("f16", "bf16", "f32", "f64")
    expression, key = (_to_float if to_float else _to_integer)(e, ins, dst, src)
    e.write(ins.args[0], expression, key, ins, signed=key[0] == "s")


ROWS: dict[str, Handler] = {"cvt": _cvt}
