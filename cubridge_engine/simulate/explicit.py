"""Hidden and wide operands made plain, before blocks are formed: the carry flag, and registers of 128 bits.

``add.cc`` and its kin read and write a flag that their text does not name; here it is a predicate register, so that
data flow sees it. A ``.b128`` register becomes two of 64 bits: loads and stores become vectors, a move two moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .model import Instruction, Operand, Pair, Reg, Vec

CARRY = "%carry"
_CARRYING = {"add": "add_cc", "addc": "add_cc", "sub": "sub_cc", "subc": "sub_cc", "mad": "mad_cc", "madc": "mad_cc"}


def plain(ins: Instruction, registers: dict[str, str]) -> tuple[Instruction, ...]:
    """The instruction, or those that take its place; registers they need are added to `registers`."""
    name = ins.parts[0]
    if name in ("addc", "subc", "madc") or (name in _CARRYING and "cc" in ins.parts):
        return (_with_carry(ins, registers),)
    if "b128" in ins.parts:
        return _wide(ins, registers)
    return (ins,)


def _with_carry(ins: Instruction, registers: dict[str, str]) -> Instruction:
    """The flag as second result of what writes it, and as last operand of what reads it."""
    registers[CARRY] = "pred"
    args = list(ins.args)
    if "cc" in ins.parts:
        args[0] = Pair(args[0], Reg(CARRY))
    if ins.parts[0].endswith("c"):
        args.append(Reg(CARRY))
    return replace(ins, parts=(_CARRYING[ins.parts[0]], *ins.parts[1:]), args=tuple(args))


def _wide(ins: Instruction, registers: dict[str, str]) -> tuple[Instruction, ...]:
    """An instruction on 128-bit registers in terms of their halves; other forms are left, and have no semantics."""
    name = ins.parts[0]
    parts = tuple("b64" if part == "b128" else part for part in ins.parts)
    if name == "mov":
        low, high = (
            replace(ins, parts=parts, args=pieces)
            for pieces in zip(*(_halves(a, registers) for a in ins.args), strict=True)
        )
        moves = tuple(move for move in (low, high) if move.args[0] != Reg("_"))
        return moves if moves else (low,)
    if name in ("ld", "st", "atom"):
        return (replace(ins, parts=parts, args=tuple(_vector(a, registers) for a in ins.args)),)
    return (ins,)


def _halves(operand: Operand, registers: dict[str, str]) -> tuple[Operand, Operand]:
    """Low and high 64 bits of an operand of ``mov.b128``."""
    match operand:
        case Reg("_"):
            return operand, operand
        case Reg(name) if registers.get(name) == "b128":
            low, high = f"{name}.low", f"{name}.high"
            registers[low] = registers[high] = "b64"
            return Reg(low), Reg(high)
        case Vec(items) if len(items) in (2, 4):
            middle = len(items) // 2
            low_items, high_items = items[:middle], items[middle:]
            return (low_items[0], high_items[0]) if middle == 1 else (Vec(low_items), Vec(high_items))
        case _:
            raise ValueError(f"operand {operand} of 128 bits")


def _vector(operand: Operand, registers: dict[str, str]) -> Operand:
    """Registers of 128 bits in an operand as vectors of their halves."""
    match operand:
        case Reg(name) if registers.get(name) == "b128":
            return Vec(_halves(operand, registers))
        case Vec(items):
            return Vec(tuple(_flat(items, registers)))
        case _:
            return operand


def _flat(items: Iterable[Operand], registers: dict[str, str]) -> Iterator[Operand]:
    for item in items:
        inner = _vector(item, registers)
        yield from inner.items if isinstance(inner, Vec) else (inner,)
