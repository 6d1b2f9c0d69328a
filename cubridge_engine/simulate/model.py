"""PTX as data: operands, instructions, functions, variables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the source (1-based line and column), and where the function it is in was inlined."""

    path: str
    line: int
    column: int
    function: str = ""
    inlined_at: Location | None = None

    def chain(self) -> tuple[Location, ...]:
        """Innermost place first."""
        found: list[Location] = []
        here: Location | None = self
        while here is not None and len(found) < 32:
            found.append(here)
            here = here.inlined_at
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Reg:
    """A register; ``_`` is the sink."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal: its bits, and the width when it was written as a float (``0f...``: 32, ``0d...``: 64)."""

    bits: int
    float_width: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, a parameter, a label or a function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, ...}`` or ``(a, b, ...)``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``; `coords` are the tensor coordinates of ``[map, {x, y}]``."""

    base: Operand
    offset: int = 0
    coords: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``."""

    operand: Operand


Operand = Reg | Imm | Special | Sym | Vec | Mem | Pair | Not


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `parts` is the opcode split at the dots; `line` is 1-based in the PTX text."""

    op: str
    parts: tuple[str, ...]
    args: tuple[Operand, ...]
    guard: Reg | None
    negated: bool
    line: int
    loc: Location | None

    def has(self, *names: str) -> bool:
        """True when one of the modifiers is there."""
        return any(name in self.parts for name in names)

    @property
    def space(self) -> str:
        """The state space of the first modifier that names one; '' is generic."""
        for part in self.parts[1:]:
            name = part.split("::")[0]
            if name in ("global", "shared", "local", "const", "param"):
                return name
        return ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space; `extern_array` is dynamic shared memory. `init` are its bytes, when it has any."""

    name: str
    space: str
    align: int
    size: int
    extern_array: bool = False
    init: bytes | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: its type (``u64``, ``b8``), byte offset, size and alignment in the parameter block."""

    name: str
    type: str
    offset: int
    size: int
    align: int


@dataclass(slots=True)
class Function:
    """An ``.entry`` or ``.func`` as the parser leaves it. `labels` map to indices into `code`."""

    name: str
    entry: bool
    params: tuple[Param, ...] = ()
    returns: tuple[Param, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    block: tuple[int, int, int] | None = None  # .reqntid
    max_threads: int | None = None  # .maxntid
    cluster: tuple[int, int, int] = (1, 1, 1)  # .reqnctapercluster
    line: int = 0


@dataclass(slots=True)
class Program:
    """A PTX module as read."""

    version: str = ""
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(name for name, f in self.functions.items() if f.entry)


def rename(operand: Operand, names: dict[str, str]) -> Operand:
    """The operand with registers, symbols and labels renamed."""
    match operand:
        case Reg(name):
            return Reg(names.get(name, name))
        case Sym(name, offset):
            new = names.get(name, name)
            return Sym(new, offset)
        case Vec(items):
            return Vec(tuple(rename(i, names) for i in items))
        case Mem(base, offset, coords):
            return Mem(rename(base, names), offset, tuple(rename(c, names) for c in coords))
        case Pair(first, second):
            return Pair(rename(first, names), rename(second, names))
        case Not(inner):
            return Not(rename(inner, names))
        case _:
            return operand


def renamed(ins: Instruction, names: dict[str, str]) -> Instruction:
    """The instruction with every name of `names` replaced."""
    guard = Reg(names.get(ins.guard.name, ins.guard.name)) if ins.guard else None
    return replace(ins, args=tuple(rename(a, names) for a in ins.args), guard=guard)


def registers_of(operand: Operand) -> tuple[str, ...]:
    """Names of all registers in the operand, the sink excepted."""
    match operand:
        case Reg(name):
            return () if name == "_" else (name,)
        case Vec(items):
            return tuple(n for i in items for n in registers_of(i))
        case Mem(base, _, coords):
            return tuple(n for i in (base, *coords) for n in registers_of(i))
        case Pair(first, second):
            return registers_of(first) + registers_of(second)
        case Not(inner):
            return registers_of(inner)
        case _:
            return ()
