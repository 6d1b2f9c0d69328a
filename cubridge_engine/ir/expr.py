"""Scalar expressions: the one small language shared by CuIR and the spec.

An expression says how one score element is computed from ``s`` (the raw dot product q·k), the indices ``b h hk i j``,
the sizes ``B H Hkv Sq Sk D``, kernel parameters, and element reads of extra tensors. Nodes have no behaviour:
evaluation, printing, intervals and simplification are tables keyed by node type or operator name, in their own modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


class Expr:
    """Base of the four node types. Expressions are immutable, hashable and compared by structure."""

    __slots__ = ()

    def __add__(self, other: ExprLike) -> Expr:
        return Call("add", (self, as_expr(other)))

    def __radd__(self, other: ExprLike) -> Expr:
        return Call("add", (as_expr(other), self))

    def __sub__(self, other: ExprLike) -> Expr:
        return Call("sub", (self, as_expr(other)))

    def __rsub__(self, other: ExprLike) -> Expr:
        return Call("sub", (as_expr(other), self))

    def __mul__(self, other: ExprLike) -> Expr:
        return Call("mul", (self, as_expr(other)))

    def __rmul__(self, other: ExprLike) -> Expr:
        return Call("mul", (as_expr(other), self))

    def __truediv__(self, other: ExprLike) -> Expr:
        return Call("div", (self, as_expr(other)))

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return Call("div", (as_expr(other), self))

    def __floordiv__(self, other: ExprLike) -> Expr:
        return Call("floordiv", (self, as_expr(other)))

    def __mod__(self, other: ExprLike) -> Expr:
        return Call("mod", (self, as_expr(other)))

    def __neg__(self) -> Expr:
        return Call("neg", (self,))


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. bool, int and float are kept apart: ``Const(1) != Const(1.0)`` in type, and prints differ.

    Infinities are ``Const(math.inf)`` and ``Const(-math.inf)``.
    """

    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or type(self.value) is not type(other.value):
            return False
        return self.value == other.value or (self.value != self.value and other.value != other.value)

    def __hash__(self) -> int:
        return hash((type(self.value).__name__, self.value))


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A named scalar: an index, a size, ``s``, a row state (``m``, ``l``) or a kernel parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class Read(Expr):
    """One element of an extra tensor, by its logical indices: ``slopes[h]``, ``bias[0, h, i, j]``."""

    tensor: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """An operator of ``OPS`` applied to arguments."""

    op: str
    args: tuple[Expr, ...]


ExprLike = Expr | float | int | bool


def as_expr(value: ExprLike) -> Expr:
    """Wrap a Python number as a Const; pass expressions through."""
    return value if isinstance(value, Expr) else Const(value)


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An operator: number of arguments, result type (``arg`` = the widest argument type), infix token of the text
    form.
    """

    arity: int
    result: str  # 'arg' | 'float' | 'int' | 'bool'
    infix: str = ""
    precedence: int = 100


# Precedences are C's, so that one table serves the text, torch and CUDA printers.
OPS: dict[str, OpInfo] = {
    # arithmetic
    "add": OpInfo(2, "arg", "+", 60),
    "sub": OpInfo(2, "arg", "-", 60),
    "mul": OpInfo(2, "arg", "*", 70),
    "div": OpInfo(2, "float", "/", 70),
    "floordiv": OpInfo(2, "int", "//", 70),  # rounds towards minus infinity
    "mod": OpInfo(2, "int", "%", 70),  # sign of the divisor
    "neg": OpInfo(1, "arg"),
    "min": OpInfo(2, "arg"),
    "max": OpInfo(2, "arg"),
    "abs": OpInfo(1, "arg"),
    "bitand": OpInfo(2, "int"),
    "bitor": OpInfo(2, "int"),
    "bitxor": OpInfo(2, "int"),
    "shl": OpInfo(2, "int"),
    "shr": OpInfo(2, "int"),
    # comparison
    "lt": OpInfo(2, "bool", "<", 50),
    "le": OpInfo(2, "bool", "<=", 50),
    "gt": OpInfo(2, "bool", ">", 50),
    "ge": OpInfo(2, "bool", ">=", 50),
    "eq": OpInfo(2, "bool", "==", 45),
    "ne": OpInfo(2, "bool", "!=", 45),
    # boolean
    "and": OpInfo(2, "bool", "&", 30),
    "or": OpInfo(2, "bool", "|", 20),
    "not": OpInfo(1, "bool"),
    "where": OpInfo(3, "arg"),
    # conversion
    "float": OpInfo(1, "float"),
    "int": OpInfo(1, "int"),  # truncates
    "fp16": OpInfo(1, "float"),  # rounds to half precision, value kept as float
    "bf16": OpInfo(1, "float"),
    # functions
    "exp": OpInfo(1, "float"),
    "exp2": OpInfo(1, "float"),
    "log": OpInfo(1, "float"),
    "log2": OpInfo(1, "float"),
    "log1p": OpInfo(1, "float"),
    "tanh": OpInfo(1, "float"),
    "sigmoid": OpInfo(1, "float"),
    "relu": OpInfo(1, "arg"),
    "sqrt": OpInfo(1, "float"),
    "rsqrt": OpInfo(1, "float"),
    "sin": OpInfo(1, "float"),
    "cos": OpInfo(1, "float"),
    "erf": OpInfo(1, "float"),
    "floor": OpInfo(1, "float"),
    "ceil": OpInfo(1, "float"),
    "pow": OpInfo(2, "float"),
    "sign": OpInfo(1, "arg"),
}

# Types of the variables everyone shares; a kernel parameter's type comes from its declaration.
VAR_TYPES: dict[str, str] = {
    **dict.fromkeys(("b", "h", "hk", "i", "j", "B", "H", "Hkv", "Sq", "Sk", "D", "Dv"), "int"),
    "s": "float",
}

S = Var("s")
I = Var("i")  # noqa: E741 - the field's name of a query row
J = Var("j")
B_INDEX = Var("b")
HEAD = Var("h")
KV_HEAD = Var("hk")
SQ = Var("Sq")
SK = Var("Sk")
TRUE = Const(True)
FALSE = Const(False)
NEG_INF = Const(-math.inf)

_RANK = {"bool": 0, "int": 1, "float": 2}


def call(op: str, *args: ExprLike) -> Expr:
    """Build a checked Call. Raises KeyError for an unknown operator, ValueError for a wrong number of arguments."""
    info = OPS[op]
    if len(args) != info.arity:
        raise ValueError(f"{op} takes {info.arity} arguments, not {len(args)}")
    return Call(op, tuple(as_expr(a) for a in args))


def type_of(expr: Expr, types: Mapping[str, str] | None = None) -> str:
    """The type of `expr`: 'bool', 'int' or 'float'. Unknown variables and tensor reads count as float unless `types`
    names them.
    """
    if isinstance(expr, Const):
        return type(expr.value).__name__
    if isinstance(expr, Var):
        return (types or {}).get(expr.name) or VAR_TYPES.get(expr.name, "float")
    if isinstance(expr, Read):
        return (types or {}).get(expr.tensor, "float")
    assert isinstance(expr, Call)
    info = OPS[expr.op]
    if info.result != "arg":
        return info.result
    args = expr.args[1:] if expr.op == "where" else expr.args
    widest = max((type_of(a, types) for a in args), key=_RANK.__getitem__)
    return "int" if widest == "bool" and expr.op not in ("where", "min", "max") else widest


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Read):
        return expr.index
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """All sub-expressions, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def rebuild(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `fn` applied to its direct sub-expressions."""
    if isinstance(expr, Call):
        return Call(expr.op, tuple(fn(a) for a in expr.args))
    if isinstance(expr, Read):
        return Read(expr.tensor, tuple(fn(a) for a in expr.index))
    return expr


def substitute(expr: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace every occurrence of a key of `mapping` (a Var, a Read, any expression) by its value, outermost first."""
    if expr in mapping:
        return mapping[expr]
    return rebuild(expr, lambda e: substitute(e, mapping))


def free_vars(expr: Expr) -> frozenset[str]:
    """Names of the variables that occur in `expr`."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Var))


def reads(expr: Expr) -> frozenset[str]:
    """Names of the tensors that `expr` reads."""
    return frozenset(e.tensor for e in walk(expr) if isinstance(e, Read))


def conjuncts(expr: Expr | None) -> tuple[Expr, ...]:
    """The parts of a boolean joined by 'and', left to right; none for None or True."""
    if expr is None or expr == TRUE:
        return ()
    if isinstance(expr, Call) and expr.op == "and":
        return conjuncts(expr.args[0]) + conjuncts(expr.args[1])
    return (expr,)


def conjoin(parts: tuple[Expr, ...] | list[Expr]) -> Expr:
    """The 'and' of `parts`; True when there are none."""
    result: Expr = TRUE
    for part in parts:
        result = part if result == TRUE else Call("and", (result, part))
    return result
