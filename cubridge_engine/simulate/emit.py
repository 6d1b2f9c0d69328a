"""Generates the Python source of one basic block: NumPy over all lanes, one line or call per instruction.

A block becomes ``def block(R, m, X)``: R are the registers that live across blocks, m is the mask of active lanes
(None in the full variant), X (``Lanes``) does memory and warp operations. It returns the next block, or ``(predicate,
taken, other)``. A value that is the same for all lanes may be a NumPy scalar in place of an array.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from . import arith, exact
from .flow import Block, Flow
from .model import Imm, Instruction, Mem, Not, Operand, Param, Reg, Special, Sym
from .observe import is_observed, owner

# Windows of the generic address space.
GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BASE = 0x7D00_0000_0000
LOCAL_BASE = 0x7C00_0000_0000
PARAM_BASE = 0x7B00_0000_0000
SHARED_START = 1024  # the first byte of a CTA in the shared window, so that a null pointer is out of bounds

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}
KINDS: dict[str, dict[int, Any]] = {"u": UNSIGNED, "s": SIGNED, "f": FLOAT}
_TYPE = re.compile(r"(b|u|s|f|bf)(8|16|32|64|128)(x2)?$|tf32$|pred$|e4m3(x2)?$|e5m2(x2)?$")


class Unsupported(Exception):
    """This form of an instruction has no semantics here; the text says which part."""


@dataclass(slots=True)
class Symbols:
    """Where the names of a kernel are: offsets in the parameter block, in shared and in local memory.

    Global symbols.
    """

    params: dict[str, Param]
    shared: dict[str, int]
    local: dict[str, int]
    globals: set[str]


@dataclass(slots=True)
class Unit:
    """What the blocks of one kernel share while they are generated: constants, register slots, symbols."""

    flow: Flow
    symbols: Symbols
    slots: dict[str, int]
    spins: frozenset[int] = frozenset()  # closing branches of loops that may wait for memory, and reads in them
    namespace: dict[str, Any] = field(default_factory=dict)
    constants: dict[tuple[int, str], str] = field(default_factory=dict)

    def constant(self, bits: int, key: str) -> str:
        """The name of a NumPy scalar with these bits, typed by `key` (``u32``, ``f16``)."""
        name = self.constants.get((bits, key))
        if name is None:
            name = f"K{len(self.constants)}"
            self.constants[bits, key] = name
            width = int(key[1:])
            value = np.array([bits & ((1 << width) - 1)], UNSIGNED[width])
            self.namespace[name] = value.view(KINDS[key[0]][width])[0]
        return name


def _narrowed(bits: int, literal: int, width: int) -> int:
    """The bits of a 64-bit float literal as a float of `width` bits. Raises Unsupported where it would be rounded."""
    if (literal, width) == (64, 32):
        value = np.array([bits], np.uint64).view(np.float64)
        narrow = value.astype(np.float32)
        if narrow == value:
            return int(narrow.view(np.uint32)[0])
    raise Unsupported(f"a {literal}-bit float literal as {width} bits")


def namespace() -> dict[str, Any]:
    """The globals of generated code."""
    types = {f"{k}{w}": t for k, table in KINDS.items() for w, t in table.items()}
    return {"np": np, "A": arith, "E": exact, **types}


def types_of(ins: Instruction) -> list[str]:
    """The type modifiers of an instruction, in order."""
    return [p for p in ins.parts[1:] if _TYPE.match(p)]


def kind_width(name: str) -> tuple[str, int]:
    """Numeric kind (``u``, ``s`` or ``f``) and bits of a type name; packed and 8-bit floats are bits."""
    if name == "pred":
        return "p", 1
    m = re.match(r"([a-z]+)(\d+)(x2)?", name)
    if name.startswith(("e4m3", "e5m2")):
        return "u", 16 if name.endswith("x2") else 8
    if name == "tf32":
        return "f", 32
    if m is None:
        raise Unsupported(f"type {name}")
    if m[3]:
        return "u", 32
    if m[1] == "bf":
        return "u", 16
    return {"b": "u", "u": "u", "s": "s", "f": "f"}[m[1]], int(m[2])


class Deferred(Protocol):
    """Instructions whose code is written together, later."""

    def waits(self, ins: Instruction) -> bool:
        """True when the code may be written behind `ins`."""
        ...

    def write(self) -> None:
        """Write the code now."""
        ...


class Emitter:
    """Writes the source of one block; the handlers of ``ops`` call it."""

    def __init__(self, unit: Unit, block: Block, masked: bool, observed: bool = False) -> None:
        self.unit = unit
        self.block = block
        self.masked = masked
        self.observed = observed
        self.lines: list[str] = []
        self.have: dict[str, dict[str, str]] = {}
        self.version: dict[str, int] = {}
        self.memo: dict[Any, str] = {}
        self.written: set[str] = set()
        self.count = 0
        self.site = block.start
        self.deferred: Deferred | None = None
        self.flushing = False

    # -- text
    def line(self, text: str) -> None:
        """Append a statement."""
        self.lines.append("  " + text)

    def temp(self, expression: str) -> str:
        """Bind the expression to a fresh variable; returns its name."""
        self.count += 1
        name = f"t{self.count}"
        self.lines.append(f"  {name}={expression}")
        return name

    # -- operands
    def width_of(self, name: str) -> int:
        """Bits of a register."""
        return kind_width(self.unit.flow.registers[name])[1]

    def read(self, operand: Operand, kind: str, width: int = 1) -> str:
        """An expression for the operand as `kind` (u, s, f, p) of `width` bits; may be a scalar."""
        match operand:
            case Reg(name):
                return self._register(name, kind, width)
            case Not(inner):
                return f"(~{self.read(inner, 'p')})"
            case Imm(bits, float_width):
                if kind == "p":
                    return "A.TRUE" if bits else "A.FALSE"
                if float_width and kind == "f" and float_width != width:
                    bits = _narrowed(bits, float_width, width)
                return self.unit.constant(bits, f"{kind}{width}")
            case Special(name):
                value = self.temp(f"X.special({name!r})")
                return value if (kind, width) == ("u", 32) else f"A.cast({value},{kind}{width})"
            case Sym(name, offset):
                return self._symbol(name, offset, kind, width)
            case _:
                raise Unsupported(f"operand {operand}")

    def _symbol(self, name: str, offset: int, kind: str, width: int) -> str:
        symbols = self.unit.symbols
        key = f"{kind}{width}"
        if name in symbols.shared:
            return self.unit.constant(symbols.shared[name] + offset, key)
        if name in symbols.local:
            return self.unit.constant(symbols.local[name] + offset, key)
        if name in symbols.params:
            return self.unit.constant(PARAM_BASE + symbols.params[name].offset + offset, key)
        if name in symbols.globals:
            return f"A.cast(X.symbol({name!r},{offset}),{key})"
        raise Unsupported(f"the address of {name}")

    def _register(self, name: str, kind: str, width: int) -> str:
        if name not in self.unit.flow.registers:
            raise Unsupported(f"register {name} is not declared")
        views = self.have.setdefault(name, {})
        if kind == "p":
            if "p1" not in views:
                views["p1"] = self.temp(f"R[{self._slot(name)}]")
            return views["p1"]
        key = f"{kind}{width}"
        if key in views:
            return views[key]
        own = self.width_of(name)
        if not views:
            views[f"u{own}"] = self.temp(f"R[{self._slot(name)}]")
            if key in views:
                return views[key]
        base = views.get(f"u{own}")
        if base is None:
            other = next(v for k, v in views.items() if k[1:] == str(own))
            base = views[f"u{own}"] = self.temp(f"{other}.view(u{own})")
            if key in views:
                return views[key]
        if own == width:
            views[key] = self.temp(f"{base}.view({key})")
        else:
            cut = f"{base}.astype(u{width})"
            views[key] = self.temp(cut if kind == "u" else f"{cut}.view({key})")
        return views[key]

    def _slot(self, name: str) -> int:
        slot = self.unit.slots.get(name)
        if slot is None:  # read before any write in the kernel: PTX leaves the value undefined
            slot = self.unit.slots[name] = len(self.unit.slots)
        return slot

    def lanes(self, operand: Operand, kind: str, width: int = 1) -> str:
        """Like ``read``, but always an array with one value per lane."""
        return f"X.full({self.read(operand, kind, width)})"

    def guard(self, ins: Instruction) -> str:
        """The guard predicate of the instruction as an expression."""
        assert ins.guard is not None
        value = self.read(ins.guard, "p")
        return f"(~{value})" if ins.negated else value

    def mask(self, ins: Instruction) -> str:
        """The lanes on which a side effect happens: an expression, ``None`` for all."""
        if ins.guard:
            return f"X.full({self.guard(ins)}&m)" if self.masked else f"X.full({self.guard(ins)})"
        return "m" if self.masked else "None"

    def address(self, mem: Mem) -> tuple[str, int]:
        """The address of every lane and its bits."""
        base, offset = mem.base, mem.offset
        if isinstance(base, Reg):
            width = self.width_of(base.name)
            value = self.read(base, "u", width)
            if offset:
                value = f"({value}+{self.unit.constant(offset, f'u{width}')})"
            return f"X.full({value})", width
        if isinstance(base, Sym):
            width = 32 if base.name in self.unit.symbols.shared else 64
            return f"X.full({self._symbol(base.name, base.offset + offset, 'u', width)})", width
        if isinstance(base, Imm):
            return f"X.full({self.unit.constant(base.bits + offset, 'u64')})", 64
        raise Unsupported(f"address {mem}")

    # -- results
    def write(self, dst: Operand, expression: str, key: str, ins: Instruction, signed: bool = False) -> None:
        """Store the expression, typed by `key`, into a register; widened (by sign when `signed`) when it is wider."""
        if not isinstance(dst, Reg):
            raise Unsupported(f"destination {dst}")
        name = dst.name
        if name == "_":
            self.line(expression)
            return
        if name not in self.unit.flow.registers:
            raise Unsupported(f"register {name} is not declared")
        if key == "p1":
            value = self.temp(
                f"np.where({self.guard(ins)},{expression},{self.read(dst, 'p')})" if ins.guard else expression
            )
        else:
            width, own = int(key[1:]), self.width_of(name)
            value = self.temp(expression)
            if own != width:
                view = (
                    f"{value}.view(s{width}).astype(s{own}).view(u{own})"
                    if signed
                    else f"{value}.view(u{width}).astype(u{own})"
                )
                value = self.temp(view)
                key = f"u{own}"
            if ins.guard:
                value = self.temp(f"np.where({self.guard(ins)},{value},{self.read(dst, key[0], int(key[1:]))})")
        self.have[name] = {key: value}
        self.touch(name)
        if self.observed and is_observed(ins, key):
            self._observe(name, value, ins)

    def _observe(self, register: str, value: str, ins: Instruction) -> None:
        # What is written late belongs to an instruction before the one that made it due.
        found = owner(self, register, self.site + (not self.flushing))
        if found is not None:
            guarded = ins.guard is not None and ins.parts[0] != "mov"
            mask = self.mask(ins) if guarded else "m" if self.masked else "None"
            self.line(f"X.observe({found[0]},{found[1]},{value},{mask})")

    def touch(self, name: str) -> None:
        """Note that a register has a new value."""
        self.version[name] = self.version.get(name, 0) + 1
        self.written.add(name)

    def copy(self, dst: Reg, src: Reg) -> None:
        """Make `dst` another name of the value of `src`, without code."""
        self.have[dst.name] = dict(self.have[src.name])
        self.touch(dst.name)

    def stamp(self, operand: Operand) -> tuple[Any, ...]:
        """Identity of a value: registers with their version. Equal stamps in one block mean equal values."""
        from .model import registers_of

        return (operand, tuple(self.version.get(n, 0) for n in registers_of(operand)))

    def flush(self) -> None:
        """Write what was put off."""
        if self.deferred is not None:
            deferred, self.deferred = self.deferred, None
            self.flushing = True
            deferred.write()
            self.flushing = False

    # -- the block
    def generate(self, handler: Callable[[Instruction], Callable[[Emitter, Instruction], str | None]]) -> str:
        """The source of the block. Raises Unsupported with the instruction as second argument."""
        code = self.unit.flow.code
        end = f"return {self.block.index + 1}"
        for index in range(self.block.start, self.block.stop):
            ins = code[index]
            self.site = index
            try:
                if self.deferred is not None and not self.deferred.waits(ins):
                    self.flush()
                result = handler(ins)(self, ins)
            except Unsupported as error:
                raise Unsupported(str(error), ins) from None
            except (ValueError, IndexError, KeyError, StopIteration) as error:
                raise Unsupported(f"this form of it ({type(error).__name__}: {error})", ins) from None
            if result:
                end = result
        self.site = self.block.stop
        self.flush()
        for name in sorted(self.written & self.block.live_out):
            self._store(name)
        self.line(end)
        return "def block(R,m,X):\n" + "\n".join(self.lines) + "\n"

    def _store(self, name: str) -> None:
        views = self.have[name]
        slot = self._slot(name)
        if "p1" in views:
            value = views["p1"]
        else:
            own = self.width_of(name)
            value = views.get(f"u{own}") or f"{next(iter(views.values()))}.view(u{own})"
        self.line(f"R[{slot}]=np.where(m,{value},R[{slot}])" if self.masked else f"R[{slot}]={value}")
