"""mov, selp, slct, setp, set: moving and choosing values, comparing."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..model import Imm, Instruction, Not, Operand, Pair, Reg, Sym, Vec
from .floating import HALVES, is_float, read_float

Handler = Callable[[Emitter, Instruction], str | None]

_COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_COMBINE = {"and": "&", "or": "|", "xor": "^"}


def comparison(op: str, a: str, b: str, floats: bool) -> str:
    """The comparison as an expression. Ordered float comparisons are false on NaN, unordered ones (``ltu``) true."""
    if op == "num":
        return f"(({a}=={a})&({b}=={b}))"
    if op == "nan":
        return f"(({a}!={a})|({b}!={b}))"
    if floats and op == "ne":
        return f"(({a}!={b})&({a}=={a})&({b}=={b}))"
    if op in _COMPARE:
        return f"({a}{_COMPARE[op]}{b})"
    if floats and op == "neu":
        return f"({a}!={b})"
    if floats and op.endswith("u") and op[:-1] in _COMPARE:
        return f"(({a}{_COMPARE[op[:-1]]}{b})|({a}!={a})|({b}!={b}))"
    raise Unsupported(f"comparison .{op}")


def _compare(e: Emitter, ins: Instruction) -> str:
    """The comparison of setp and set, combined with a predicate where one is given."""
    floats = is_float(ins)
    kind = types_of(ins)[-1]
    if floats:
        a, b = (read_float(e, x, kind) for x in ins.args[1:3])
    else:
        a, b = (e.read(x, *kind_width(kind)) for x in ins.args[1:3])
    value = comparison(ins.parts[1], a, b, floats)
    if len(ins.args) > 3:
        op = next((p for p in ins.parts if p in _COMBINE), None)
        if op is None:
            raise Unsupported("a comparison with a third operand")
        value = f"({value}{_COMBINE[op]}{e.read(ins.args[3], 'p')})"
    return value


def _setp(e: Emitter, ins: Instruction) -> None:
    value = e.temp(_compare(e, ins))
    dst = ins.args[0]
    packed = types_of(ins)[-1].endswith("x2")
    if isinstance(dst, Pair):
        second = f"{value}[1]" if packed else f"~{value}"
        if not packed and len(ins.args) > 3:
            raise Unsupported("two results of a combined comparison")
        e.write(dst.first, f"{value}[0]" if packed else value, "p1", ins)
        e.write(dst.second, second, "p1", ins)
    elif packed:
        raise Unsupported("a packed comparison with one result")
    else:
        e.write(dst, value, "p1", ins)


def _set(e: Emitter, ins: Instruction) -> None:
    types = types_of(ins)
    dst = types[0]
    if types[-1].endswith("x2"):
        value = e.temp(_compare(e, ins))
        if dst in ("u32", "s32"):
            e.write(
                ins.args[0],
                f"np.where({value}[0],u32(0xFFFF),u32(0))|np.where({value}[1],u32(0xFFFF0000),u32(0))",
                "u32",
                ins,
            )
            return
        if dst != types[-1]:
            raise Unsupported(f"set to {dst}")
        e.write(ins.args[0], f"A.down({value}.astype(f32),{dst!r})", "u32", ins)
    elif dst in ("u32", "s32"):
        e.write(ins.args[0], f"np.where({_compare(e, ins)},u32(0xFFFFFFFF),u32(0))", "u32", ins)
    elif dst in ("u16", "s16") and types[-1] in HALVES:
        e.write(ins.args[0], f"np.where({_compare(e, ins)},u16(0xFFFF),u16(0))", "u16", ins)
    elif dst == "f32":
        e.write(ins.args[0], f"np.where({_compare(e, ins)},f32(1),f32(0))", "f32", ins)
    elif dst in HALVES:
        e.write(ins.args[0], f"A.down(np.where({_compare(e, ins)},f32(1),f32(0)),{dst!r})", "u16", ins)
    else:
        raise Unsupported(f"set to {dst}")


def _selp(e: Emitter, ins: Instruction) -> None:
    kind, width = kind_width(types_of(ins)[-1])
    a, b = (e.read(x, kind, width) for x in ins.args[1:3])
    e.write(ins.args[0], f"np.where({e.read(ins.args[3], 'p')},{a},{b})", f"{kind}{width}", ins)


def _slct(e: Emitter, ins: Instruction) -> None:
    types = types_of(ins)
    kind, width = kind_width(types[0])
    a, b = (e.read(x, kind, width) for x in ins.args[1:3])
    c = e.read(ins.args[3], *kind_width(types[1]))
    e.write(ins.args[0], f"np.where({c}>=0,{a},{b})", f"{kind}{width}", ins)


def _items_width(e: Emitter, items: tuple[Operand, ...], width: int) -> int:
    return width // len(items)


def _mov(e: Emitter, ins: Instruction) -> None:
    dst, src = ins.args
    types = types_of(ins)
    if types[-1] == "pred":
        e.write(dst, e.read(src, "p"), "p1", ins)
        return
    kind, width = kind_width(types[-1])
    if isinstance(src, Vec):
        part = _items_width(e, src.items, width)
        pieces = [f"{e.read(x, 'u', part)}.astype(u{width})" for x in src.items]
        shifted = "|".join(f"({p}<<u{width}({i * part}))" if i else p for i, p in enumerate(pieces))
        e.write(dst, shifted, f"u{width}", ins)
    elif isinstance(dst, Vec):
        part = _items_width(e, dst.items, width)
        value = e.read(src, "u", width)
        for i, item in enumerate(dst.items):
            if item != Reg("_"):
                moved = f"({value}>>u{width}({i * part}))" if i else value
                e.write(item, f"{moved}.astype(u{part})", f"u{part}", ins)
    elif (
        isinstance(src, Reg)
        and isinstance(dst, Reg)
        and ins.guard is None
        and e.width_of(src.name) == e.width_of(dst.name)
    ):
        e.read(src, kind, width)
        e.copy(dst, src)
    elif isinstance(src, Imm | Sym | Reg) or not isinstance(src, Not):
        e.write(dst, e.read(src, kind, width), f"{kind}{width}", ins)
    else:
        raise Unsupported("this form of mov")


ROWS: dict[str, Handler] = {"mov": _mov, "setp": _setp, "set": _set, "selp": _selp, "slct": _slct}
