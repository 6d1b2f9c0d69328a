"""Integer, logic and bit-field instructions; those shared with floats (add, min, ...) choose by type."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..exact import PERMUTATIONS
from ..model import Imm, Instruction
from .exact import packed16
from .floating import FLOAT_ROWS, is_float

Handler = Callable[[Emitter, Instruction], str | None]

# opcode -> expression over the operands {0}, {1}, {2}
_FORMULAS = {
    "add": "{0}+{1}",
    "sub": "{0}-{1}",
    "min": "np.minimum({0},{1})",
    "max": "np.maximum({0},{1})",
    "div": "A.divide({0},{1})",
    "rem": "A.remainder({0},{1})",
    "neg": "-{0}",
    "abs": "np.abs({0})",
    "sad": "np.where({0}<{1},{1}-{0},{0}-{1})+{2}",
}
_LOGIC = {"and": "{0}&{1}", "or": "{0}|{1}", "xor": "{0}^{1}", "not": "~{0}"}
_REFUSED = ("cc", "sat", "relu", "xorsign")  # modifiers that would change the meaning of an integer instruction


def operand_type(ins: Instruction) -> tuple[str, int]:
    """Kind and width of the (last) type modifier."""
    return kind_width(types_of(ins)[-1])


def _refuse(ins: Instruction, *names: str) -> None:
    for name in names:
        if name in ins.parts:
            raise Unsupported(f"modifier .{name}")


def _simple(name: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        if is_float(ins):
            FLOAT_ROWS[name](e, ins)
            return
        if types_of(ins)[-1] in ("u16x2", "s16x2"):
            if name not in ("add", "min", "max"):
                raise Unsupported("packed 16-bit integers")
            packed16(e, ins, name)
            return
        kind, width = operand_type(ins)
        args = [e.read(a, kind, width) for a in ins.args[1:]]
        expression = _FORMULAS[name].format(*args)
        if ins.has("sat") and name in ("add", "sub") and (kind, width) == ("s", 32):
            expression = f"E.{name}_saturated({','.join(args)})"
        elif ins.has("relu") and name in ("min", "max"):
            expression = f"np.maximum({expression},{kind}{width}(0))"
        else:
            _refuse(ins, *_REFUSED)
        e.write(ins.args[0], expression, f"{kind}{width}", ins)

    return emit


def _logic(name: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        kind, width = operand_type(ins)
        args = [e.read(a, kind, width) for a in ins.args[1:]]
        e.write(ins.args[0], _LOGIC[name].format(*args), f"{kind}{width}", ins)

    return emit


def _product(e: Emitter, ins: Instruction) -> tuple[str, str]:
    """The product of mul and mad, and its type key."""
    kind, width = operand_type(ins)
    a, b = (e.read(x, kind, width) for x in ins.args[1:3])
    if ins.has("wide"):
        wide = f"{kind}{2 * width}"
        return f"{a}.astype({wide})*{b}.astype({wide})", wide
    if ins.has("hi"):
        return f"A.multiply_high({a},{b},{width})", f"{kind}{width}"
    return f"{a}*{b}", f"{kind}{width}"


def _mul(e: Emitter, ins: Instruction) -> None:
    if is_float(ins):
        FLOAT_ROWS["mul"](e, ins)
        return
    expression, key = _product(e, ins)
    e.write(ins.args[0], expression, key, ins)


def _mad(e: Emitter, ins: Instruction) -> None:
    if is_float(ins):
        FLOAT_ROWS["fma"](e, ins)
        return
    expression, key = _product(e, ins)
    addend = e.read(ins.args[3], key[0], int(key[1:]))
    if ins.has("sat") and ins.has("hi") and key == "s32":
        e.write(ins.args[0], f"E.add_saturated({expression},{addend})", key, ins)
        return
    _refuse(ins, *_REFUSED)
    e.write(ins.args[0], f"{expression}+{addend}", key, ins)


def _mul24(e: Emitter, ins: Instruction) -> None:
    kind, _ = operand_type(ins)
    if ins.has("hi"):
        raise Unsupported("the high half of a 24-bit product")
    a, b = (e.read(x, kind, 32) for x in ins.args[1:3])
    cut = f"<<{kind}32(8)>>{kind}32(8)"
    extra = f"+{e.read(ins.args[3], kind, 32)}" if ins.parts[0] == "mad24" else ""
    e.write(ins.args[0], f"({a}{cut})*({b}{cut}){extra}", f"{kind}32", ins)


def _shift(function: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        kind, width = operand_type(ins)
        a = e.read(ins.args[1], kind, width)
        amount = ins.args[2]
        if isinstance(amount, Imm) and 0 <= amount.bits < width:
            sign = "<<" if function == "shift_left" else ">>"
            expression = f"{a}{sign}{e.unit.constant(amount.bits, f'{kind}{width}')}"
        else:
            expression = f"A.{function}({a},{e.read(amount, 'u', 32)},{width})"
        e.write(ins.args[0], expression, f"{kind}{width}", ins)

    return emit


def _shf(e: Emitter, ins: Instruction) -> None:
    a, b, c = (e.read(x, "u", 32) for x in ins.args[1:4])
    e.write(ins.args[0], f"A.funnel({a},{b},{c},{ins.has('l')},{ins.has('wrap')})", "u32", ins)


def _bfe(e: Emitter, ins: Instruction) -> None:
    kind, width = operand_type(ins)
    a = e.read(ins.args[1], kind, width)
    position, length = (e.read(x, "u", 32) for x in ins.args[2:4])
    e.write(ins.args[0], f"A.extract({a},{position},{length},{width})", f"{kind}{width}", ins)


def _bfi(e: Emitter, ins: Instruction) -> None:
    _, width = operand_type(ins)
    a, b = (e.read(x, "u", width) for x in ins.args[1:3])
    position, length = (e.read(x, "u", 32) for x in ins.args[3:5])
    e.write(ins.args[0], f"A.insert({a},{b},{position},{length},{width})", f"u{width}", ins)


def _lop3(e: Emitter, ins: Instruction) -> None:
    if len(ins.args) != 5 or not isinstance(ins.args[4], Imm):
        raise Unsupported("lop3 with a predicate")
    a, b, c = (e.read(x, "u", 32) for x in ins.args[1:4])
    e.write(ins.args[0], f"A.lop3({a},{b},{c},{ins.args[4].bits})", "u32", ins)


def _prmt(e: Emitter, ins: Instruction) -> None:
    a, b, c = (e.read(x, "u", 32) for x in ins.args[1:4])
    if len(ins.parts) > 2:
        if ins.parts[2] not in PERMUTATIONS:
            raise Unsupported(f"mode .{ins.parts[2]}")
        e.write(ins.args[0], f"E.permute_by({ins.parts[2]!r},{a},{b},{c})", "u32", ins)
        return
    e.write(ins.args[0], f"A.permute({a},{b},{c})", "u32", ins)


def _count(function: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        kind, width = operand_type(ins)
        kind = kind if function == "find_high" else "u"
        extra = f",{ins.has('shiftamt')}" if function == "find_high" else ""
        result = f"u{width}" if function == "reverse_bits" else "u32"
        e.write(ins.args[0], f"A.{function}({e.read(ins.args[1], kind, width)}{extra})", result, ins)

    return emit


def _cnot(e: Emitter, ins: Instruction) -> None:
    _, width = operand_type(ins)
    e.write(ins.args[0], f"({e.read(ins.args[1], 'u', width)}==0).astype(u{width})", f"u{width}", ins)


def _dp4a(e: Emitter, ins: Instruction) -> None:
    first, second = (t[0] == "s" for t in types_of(ins))
    a, b = (e.read(x, "u", 32) for x in ins.args[1:3])
    c = e.read(ins.args[3], "s" if first or second else "u", 32)
    e.write(ins.args[0], f"A.dot4({a},{b},{c},{first},{second})", "u32", ins)


ROWS: dict[str, Handler] = {
    **{name: _simple(name) for name in _FORMULAS},
    **{name: _logic(name) for name in _LOGIC},
    "mul": _mul,
    "mad": _mad,
    "mul24": _mul24,
    "mad24": _mul24,
    "shl": _shift("shift_left"),
    "shr": _shift("shift_right"),
    "shf": _shf,
    "bfe": _bfe,
    "bfi": _bfi,
    "lop3": _lop3,
    "prmt": _prmt,
    "popc": _count("popcount"),
    "clz": _count("leading_zeros"),
    "brev": _count("reverse_bits"),
    "bfind": _count("find_high"),
    "cnot": _cnot,
    "dp4a": _dp4a,
}
