"""A traced graph read by pulling: the value of one element of a tensor, as an expression of its indices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..ir.expr import Call, Const, Expr, Read, Var
from .constants import constant_element
from .nodes import ZERO, Algebra
from .trace import Graph

Index = list[Expr]
Rule = Callable[["Elements", Any, dict[str, Any], Index], Expr]
RULES: dict[str, Rule] = {}


class Refused(Exception):
    """Why the spec cannot be read: a diagnostic code, its fields and the user's line."""

    def __init__(self, code: str, line: tuple[int, ...] | None = None, **fields: object) -> None:
        super().__init__(code)
        self.code = code
        self.line = line
        self.fields = fields


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the element rule of ATen operators, by schema name."""

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        return fn

    return register


# Operators that can never be one fused score kernel, with the code that says so.
NEVER: dict[str, str] = {
    **dict.fromkeys(("native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like", "dropout"), "CB220"),
    **dict.fromkeys(("topk", "sort", "argsort", "kthvalue", "argmax", "argmin"), "CB222"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "logcumsumexp"), "CB226"),
}


# Views whose elements overlap: what a sliding window needs in torch, and no kernel does.
_OVERLAPPING = frozenset(("as_strided", "unfold", "im2col"))


class Elements:
    """Reads elements of the nodes of one `Graph`; index variables and their ranges live in `algebra`."""

    def __init__(self, graph: Graph, rules: Mapping[str, Rule]) -> None:
        self.graph = graph
        self._rules = rules
        self.algebra = Algebra(types=dict(graph.types))
        self._memo: dict[tuple[Any, tuple[Expr, ...]], Expr] = {}
        self.visited: dict[Any, None] = {}  # nodes in the order they were pulled
        self.fills: dict[Any, None] = {}  # nodes that choose between a score and a constant

    def shape(self, node: Any) -> list[int]:
        """Sizes of the tensor a node produces."""
        return [int(n) for n in node.meta["val"].shape]

    def dtype(self, node: Any) -> str:
        """'bool', 'int' or 'float'."""
        return self.graph.kind_of(node)

    def at(self, node: Any, index: Sequence[Expr]) -> Expr:
        """The element of `node` (a graph node or a Python number) at `index`. Raises Refused."""
        if not self.graph.is_node(node):
            return Const(node)
        key = (node, tuple(index))
        if key not in self._memo:
            self._memo[key] = self._compute(node, list(index))
        return self._memo[key]

    def pulled(self) -> Iterable[tuple[tuple[Any, tuple[Expr, ...]], Expr]]:
        """Every element read so far: (node, index) and its expression, in the order they were finished."""
        return self._memo.items()

    def broadcast(self, node: Any, index: Sequence[Expr]) -> Expr:
        """The element of an operand at the index of a result it is broadcast to."""
        if not self.graph.is_node(node):
            return Const(node)
        shape = self.shape(node)
        own = list(index)[len(index) - len(shape) :] if shape else []
        return self.at(node, [ZERO if n == 1 else e for n, e in zip(shape, own, strict=True)])

    def fresh(self, node: Any, extent: int, suffix: str = "") -> Var:
        """The bound variable of a reduction, named after its node so that equal reductions are equal."""
        name = f"t_{node.name}{suffix}"
        self.algebra.extent[name] = extent
        return Var(name)

    def _compute(self, node: Any, index: Index) -> Expr:
        name = self.graph.input_name(node)
        if name is not None:
            return self._leaf(name, index)
        op = self.graph.op_name(node)
        if op not in self._rules:
            raise self.refusal(node, op)
        self.visited[node] = None
        return self._rules[op](self, node, self.graph.arguments(node), index)

    def _leaf(self, name: str, index: Index) -> Expr:
        constant = self.graph.constants.get(name)
        if constant is None:
            return Read(name, tuple(index))
        if name in self.graph.weights:
            raise Refused("CB232", self.graph.use_line(name), bytes=constant.nbytes, op="a trained weight")
        numbers = [e.value for e in index if isinstance(e, Const)]
        if len(numbers) == len(index):
            return Const(constant[tuple(int(n) for n in numbers)].item())
        known = constant_element(self.algebra, constant, index)
        if known is None:
            raise Refused("CB232", self.graph.use_line(name), bytes=constant.nbytes, op="a constant tensor")
        return known

    def refusal(self, node: Any, op: str) -> Refused:
        """Why an operator without a rule cannot stand here: random, a whole row, a table, or simply unknown."""
        line = self.graph.line(node)
        if op in NEVER:
            return Refused(NEVER[op], line, op=op)
        sources = self.graph.depends(node) & self.graph.qkv_like
        if not sources:
            value = node.meta.get("val")
            return Refused("CB232", line, bytes=getattr(value, "nbytes", 0), op=op)
        if op in _OVERLAPPING:
            return Refused("CB262", line, name=" or ".join(sorted(sources)), op=op)
        if len(sources) == 1:
            return Refused("CB231", line, name=next(iter(sources)), reason=op)
        return Refused("CB229", line, op=op)


def number(value: Any, like_float: bool) -> Any:
    """A Python number as a constant of the result's type (bool kept)."""
    return float(value) if like_float and type(value) is int else value


def typed(expr: Expr, like_float: bool) -> Expr:
    """`expr`, its literal made a float where the tensor is one."""
    if isinstance(expr, Const) and like_float and type(expr.value) is int:
        return Const(float(expr.value))
    return expr


def deep_recursion(limit: int = 20_000) -> None:
    """Loops unrolled by tracing nest deeply; raise Python's limit in this (worker) process."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), limit))


def simple(op: str, *args: Expr) -> Expr:
    """A Call of the common language."""
    return Call(op, args)
