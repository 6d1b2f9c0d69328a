"""Integer instructions beside the common ones: carries, saturation, packed halves, SIMD within a register."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..model import Instruction, Operand, Pair

Handler = Callable[[Emitter, Instruction], str | None]

_VIDEO = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _carrying(ins: Instruction) -> tuple[Operand, Operand | None, bool]:
    """Destination, the flag that is written (None: it is not), and whether the flag is read (the last operand)."""
    dst = ins.args[0]
    reads = ins.op.split(".")[0].endswith("c")
    return (dst.first, dst.second, reads) if isinstance(dst, Pair) else (dst, None, reads)


def _finish(e: Emitter, ins: Instruction, call: str, width: int) -> None:
    dst, flag, _ = _carrying(ins)
    result = e.temp(call)
    # The flag comes second: a guard of the instruction reads no flag, and operands were read in the call.
    e.write(dst, f"{result}[0]", f"u{width}", ins)
    if flag is not None:
        e.write(flag, f"{result}[1]", "p1", ins)


def _sum(function: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        _, width = kind_width(types_of(ins)[-1])
        a, b = (e.read(x, "u", width) for x in ins.args[1:3])
        carry = e.read(ins.args[3], "p") if _carrying(ins)[2] else "A.FALSE"
        _finish(e, ins, f"E.{function}({a},{b},{carry})", width)

    return emit


def _mad(e: Emitter, ins: Instruction) -> None:
    kind, width = kind_width(types_of(ins)[-1])
    a, b = (e.read(x, kind, width) for x in ins.args[1:3])
    product = f"A.multiply_high({a},{b},{width})" if ins.has("hi") else f"{a}*{b}"
    c = e.read(ins.args[3], "u", width)
    carry = e.read(ins.args[4], "p") if _carrying(ins)[2] else "A.FALSE"
    _finish(e, ins, f"E.add_carry({product},{c},{carry})", width)


def packed16(e: Emitter, ins: Instruction, op: str) -> None:
    """add, min, max of .u16x2 and .s16x2."""
    a, b = (e.lanes(x, "u", 32) for x in ins.args[1:3])
    signed = types_of(ins)[-1][0] == "s"
    e.write(ins.args[0], f"E.packed16({op!r},{a},{b},{signed},{ins.has('relu')})", "u32", ins)


def _video(name: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        types = types_of(ins)
        op = name[:-1]
        if op == "vset":
            op = next((p for p in ins.parts if p in _COMPARE), "")
            types = ["u32", *types]
        if len(types) != 3 or not op or len(ins.args) != 4:
            raise Unsupported("this form of a video instruction")
        signs = tuple(t[0] == "s" for t in types)
        a, b, c = (e.lanes(x, "u", 32) for x in ins.args[1:4])
        call = f"E.video({op!r},{a},{b},{c},{name[-1]},{signs},{ins.has('sat')},{ins.has('add')})"
        e.write(ins.args[0], call, "u32", ins)

    return emit


def _dp2a(e: Emitter, ins: Instruction) -> None:
    first, second = (t[0] == "s" for t in types_of(ins))
    a, b = (e.lanes(x, "u", 32) for x in ins.args[1:3])
    c = e.read(ins.args[3], "s" if first or second else "u", 32)
    e.write(ins.args[0], f"E.dot2({a},{b},{c},{ins.has('hi')},{first},{second})", "u32", ins)


def _fns(e: Emitter, ins: Instruction) -> None:
    mask, base, offset = (e.read(x, kind, 32) for x, kind in zip(ins.args[1:4], "uus", strict=True))
    e.write(ins.args[0], f"E.nth_set({mask},{base},{offset})", "u32", ins)


def _bmsk(e: Emitter, ins: Instruction) -> None:
    a, b = (e.read(x, "u", 32) for x in ins.args[1:3])
    e.write(ins.args[0], f"E.bit_mask({a},{b},{ins.has('clamp')})", "u32", ins)


def _szext(e: Emitter, ins: Instruction) -> None:
    a, b = (e.read(x, "u", 32) for x in ins.args[1:3])
    signed = types_of(ins)[-1] == "s32"
    e.write(ins.args[0], f"E.extend({a},{b},{ins.has('clamp')},{signed})", "u32", ins)


ROWS: dict[str, Handler] = {
    "add_cc": _sum("add_carry"),
    "sub_cc": _sum("sub_borrow"),
    "mad_cc": _mad,
    "dp2a": _dp2a,
    "fns": _fns,
    "bmsk": _bmsk,
    "szext": _szext,
    **{name: _video(name) for name in (f"{op}{count}" for op in _VIDEO for count in (2, 4))},
}
