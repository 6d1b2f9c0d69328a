"""Kinds of values: elements of tensors, elements of computed tiles, row values, contractions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .addresses import Ints
from .memory import Buffer, Found
from .values import Node, Value


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One element of a tensor tile per thread: `row` within the tile, `column` along the head dimension."""

    tensor: int
    row: Ints
    column: Ints
    buffer: Buffer | None
    slot: Value
    direct: Any = None  # the GlobalAccess, when it was read from global memory
    limit: Value | None = None
    scale: Value | None = None  # a uniform factor applied when it was loaded


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An element of a computed tile per thread: query row `i`, and `c` = key column (axis j) or output column (axis
    d).
    """

    axis: str  # j | d
    i: Ints
    c: Ints
    others: tuple[Ints, Ints] | None = None  # the same, where threads that hold no element go on as the others do

    @property
    def everywhere(self) -> tuple[Ints, Ints]:
        """Row and column as a formula of the thread gives them, also where there is no element."""
        return self.others if self.others is not None else (self.i, self.c)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A value of one query row per thread. `partial`: it covers only the columns this thread holds."""

    i: Ints
    partial: bool


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """``base + sum over k of a * b``, complete for one element of the result. `columns` is the extent of k."""

    role: str  # qk | pv
    base: Value
    tile: Tile
    left: Element | Node  # Q element, or a P node
    right: Element
    columns: frozenset[int]
    atom: str
    rounds: str  # '', fp16 or bf16: the type the left operand is rounded to on the way


Info = Element | Tile | Row | Contraction | None


def look(value: Value) -> Value:
    """`value` with variable versions and exact casts looked through."""
    while isinstance(value, Node) and value.op in ("ver", "float") and value.args:
        value = value.args[0]
    return value


def flatten(op: str, value: Value) -> list[Value]:
    """The operands of nested `op`, looked for through variable versions that hold such an operation themselves."""
    leaves: list[Value] = []
    stack: list[Value] = [value]
    while stack:
        v = stack.pop()
        inner = v
        while (
            isinstance(inner, Node)
            and inner.op == "ver"
            and isinstance(inner.args[0], Node)
            and inner.args[0].op in (op, "ver")
        ):
            inner = inner.args[0]
        if isinstance(inner, Node) and inner.op == op and not is_lane_step(inner):
            stack.extend(reversed(inner.args))
        else:
            leaves.append(v)
    return leaves


def is_lane_step(node: Node) -> bool:
    """``op(x, shfl(x))``."""
    return len(node.args) == 2 and any(
        isinstance(y, Node) and y.op == "shfl" and look(y.args[0]) is look(x) for x, y in (node.args, node.args[::-1])
    )


def same_variable(version: Node, value: Value) -> bool:
    """True when `value` is an earlier version of the variable that `version` belongs to."""
    while isinstance(value, Node) and value.op in ("mul", "neg") and value.args:
        value = next((a for a in value.args if isinstance(a, Node) and a.op in ("ver", "phi", "join")), None)
    return (
        isinstance(value, Node)
        and value.op in ("ver", "phi", "join")
        and value.data is not None
        and tuple(value.data[-2:]) == tuple(version.data[-2:])
    )


def element_of(found: Found) -> Element:
    scale = found.buffer.waves[0].parts[0].scale
    return Element(found.buffer.tensor, found.row, found.column, found.buffer, found.slot, scale=scale)


def same_tile(a: Tile, b: Tile) -> bool:
    return a is b or (a.axis == b.axis and bool((a.i == b.i).all()) and bool((a.c == b.c).all()))


def behind(value: Value) -> Value:
    """The value that `value` stands for: behind plain assignments, exchanges within a row, and what is not understood.

    A loop, since a name without a declaration makes chains of hundreds of them.
    """
    while isinstance(value, Node) and value.args:
        passes = value.op == "unknown" or (value.op == "shfl" and value.data[0] != "lane")
        first = value.args[0]
        plain = value.op == "ver" and not (isinstance(first, Node) and first.op in ("add", "max"))
        if not (passes or plain):
            break
        value = first
    return value


def unrounded(value: Value) -> Value:
    """A value without its rounding to half precision."""
    while isinstance(value, Node) and value.op in ("fp16", "bf16"):
        value = value.args[0]
    return value


def rounding_of(register: Value) -> str:
    node = look(register)
    if isinstance(node, Node) and node.op == "pack":
        return str(node.data)
    return ""


def atom_of(shape: str) -> str:
    """The atom of a product of that PTX shape: those of 64 rows are of a warpgroup."""
    if shape.startswith("wmma"):
        return "wmma"
    return "wgmma" if shape.startswith("m64") else f"mma.{shape}"
