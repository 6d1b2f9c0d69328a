"""What evaluating host code rests on: values, the functions and operators that it knows, walks over the syntax."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from ..source import Function
from .samples import Memory, Pointer

MOST_STEPS = 4000
Value = Any  # int, float, bool, tuple (dim3 or a list of sizes), Tensor, Pointer
INTEGER = re.compile(r"(-?0[xX][0-9a-fA-F']+|-?[0-9][0-9']*)[uUlLzZ]*$")
FLOAT = re.compile(r"(-?[0-9.']+(?:[eE][-+]?\d+)?|-?\d+)[fFlL]?$")
SIZEOF = ((r"half|bf|16|short", 2), (r"double|int64|long|size_t|\*", 8), (r"char|bool|int8", 1))
INTEGRAL = re.compile(r"\b(int|unsigned|size_t|u?int\d+_t|long|short|uint)\b")


class Unknown(Exception):
    """An expression, or a part of it, whose value the file does not tell."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the host code: sizes and strides for the problem at hand."""

    memory: Memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _cdiv(a: float, b: float) -> int:
    return -(-int(a) // int(b))


CALLS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "sqrt": math.sqrt, "sqrtf": math.sqrt, "rsqrt": lambda x: x**-0.5,
    "rsqrtf": lambda x: x**-0.5, "ceil": math.ceil, "ceilf": math.ceil, "floor": math.floor, "floorf": math.floor,
    "pow": pow, "powf": pow, "log2": math.log2, "log2f": math.log2, "exp2": lambda x: 2.0**x, "abs": abs,
    "cdiv": _cdiv, "ceil_div": _cdiv, "div_up": _cdiv, "div_ceil": _cdiv, "ceildiv": _cdiv, "divup": _cdiv,
    "dim3": lambda *xyz: tuple(xyz), "int": int, "float": float, "unsigned": int, "double": float, "size_t": int,
    "size": len, "__float2half": float, "__float2half_rn": float,
}  # fmt: skip
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "<": lambda a, b: a < b, ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "&&": lambda a, b: bool(a) and bool(b), "||": lambda a, b: bool(a) or bool(b),
}  # fmt: skip
CONSTANTS: dict[str, Any] = {
    "true": True, "false": False, "nullptr": Pointer(None), "NULL": Pointer(None), "INFINITY": math.inf,
    "M_LOG2E": math.log2(math.e), "M_SQRT2": math.sqrt(2),
}  # fmt: skip
MAKERS = ("zeros", "empty", "full", "ones", "zeros_like", "empty_like", "full_like")


def nodes_before(root: Node, before: int) -> Iterator[Node]:
    """Nodes below `root` that start before an offset, in order."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.start_byte >= before:
            continue
        yield node
        stack.extend(reversed(node.named_children))


def named_values(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment" and not child.is_error]


def single_return(function: Function) -> Node | None:
    """The expression of a function that does nothing but return one."""
    body = named_values(function.body)
    if len(body) == 1 and body[0].type == "return_statement":
        return next(iter(named_values(body[0])), None)
    return None
