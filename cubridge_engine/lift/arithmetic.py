"""Operators on values, decided by numbers where numbers decide them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .machine import Machine, value_kind
from .values import UNDEFINED, Node, NotUnderstood, Poly, Ptr, Value, non_negative, same

_INT_OPS = {"&": "bitand", "|": "bitor", "^": "bitxor", "<<": "shl", ">>": "shr"}


_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


_FLOAT_OPS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}


_NUMPY_COMPARE: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def arithmetic(m: Machine, op: str, a: Value, b: Value) -> Value:
    """A binary operator on two values, by their kinds."""
    if isinstance(a, Ptr) or isinstance(b, Ptr):
        return _pointer_arithmetic(m, op, a, b)
    if UNDEFINED in (a, b) or a is None or b is None:
        raise NotUnderstood("a value that is not known here")
    if op in _COMPARE:
        return compare(m, _COMPARE[op], a, b)
    if op in ("&&", "||"):
        return logical(m, "and" if op == "&&" else "or", boolean(m, a), boolean(m, b))
    floats = "float" in (value_kind(a), value_kind(b))
    if floats and op in _FLOAT_OPS:
        return float_op(m, _FLOAT_OPS[op], a, b)
    if isinstance(a, bool):
        a = int(a)
    if isinstance(b, bool):
        b = int(b)
    if "bool" in (value_kind(a), value_kind(b)) and op in ("&", "|"):
        return logical(m, "and" if op == "&" else "or", boolean(m, a), boolean(m, b))
    if op in ("+", "-"):
        return m.store.add(as_int(m, a), as_int(m, b), 1 if op == "+" else -1)
    if op == "*":
        return m.store.mul(as_int(m, a), as_int(m, b))
    if op == "/":
        return _divided(m, "floordiv", as_int(m, a), as_int(m, b))
    if op == "%":
        return _divided(m, "mod", as_int(m, a), as_int(m, b))
    if op in _INT_OPS:
        return _bits(m, op, as_int(m, a), as_int(m, b))
    raise NotUnderstood(f"operator {op}")


def _divided(m: Machine, op: str, a: Value, b: Value) -> Value:
    """Quotient or remainder as C has it: one of a position in the tile stays as written."""
    divided = m.store.divide if op == "floordiv" else m.store.remainder
    return m.store.kept(op, a, b, divided(a, b, floor=False))


def _bits(m: Machine, op: str, a: Value, b: Value) -> Value:
    value = m.store.bits(_INT_OPS[op], a, b)
    if op == "&":
        a, b = (b, a) if isinstance(a, int) else (a, b)
        if isinstance(b, int) and b & (b + 1) == 0:
            return m.store.kept("mod", a, b + 1, value)
    return value


def as_int(m: Machine, value: Value) -> Value:
    """A bool as 0 or 1."""
    if isinstance(value, Node) and value.kind == "bool":
        return m.store.node("select", (value, 1, 0), kind="int")
    return value


def float_op(m: Machine, op: str, *args: Value) -> Value:
    """A float operation, folded on constants."""
    clean = tuple(float(a) if isinstance(a, bool | int) else a for a in args)
    if all(isinstance(a, float) for a in clean):
        try:
            return _FOLD[op](*clean)
        except (ValueError, OverflowError, ZeroDivisionError, KeyError):
            pass
    if op == "neg" and isinstance(clean[0], Node) and clean[0].op == "neg":
        return clean[0].args[0]
    if op == "add" and clean[0] == 0.0 and isinstance(clean[0], float):
        return clean[1]
    if op == "mul":
        for x, factor in (clean, clean[::-1]):
            if isinstance(x, Node) and x.op == "max" and _is_scale(factor):
                # The maximum of scaled scores, whichever is written; a softmax scale is positive.
                return m.store.node("max", tuple(float_op(m, "mul", y, factor) for y in x.args))
    return m.store.node(op, clean)


def _is_scale(value: Value) -> bool:
    return (isinstance(value, float) and value > 0) or (isinstance(value, Node) and value.op == "param")


def _fold_div(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b


_FOLD: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _fold_div,
    "neg": lambda a: -a,
    "exp": math.exp,
    "exp2": lambda a: 2.0**a,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "tanh": math.tanh,
    "max": max,
    "min": min,
    "abs": abs,
}


def compare(m: Machine, op: str, a: Value, b: Value) -> Value:
    """A comparison, decided where numbers decide it."""
    if isinstance(a, bool | int | float) and isinstance(b, bool | int | float):
        return bool(_NUMPY_COMPARE[op](a, b))
    if value_kind(a) == "int" and value_kind(b) == "int":
        difference = m.store.add(a, b, -1)
        if isinstance(difference, int):
            return bool(_NUMPY_COMPARE[op](difference, 0))
        if op in ("lt", "ge") and b == 0 and _is_coordinate(a):
            return op == "ge"
        numbers = difference.numeric() if isinstance(difference, Poly) else None
        if numbers is not None:
            decided = _NUMPY_COMPARE[op](numbers, 0)
            if decided.all() or not decided.any():
                return bool(decided.all())
    if value_kind(a) == "bool" and isinstance(b, bool | int) and op in ("eq", "ne"):
        return a if bool(b) == (op == "eq") else negate(m, a)
    return m.store.node(op, (a, b), kind="bool")


def _is_coordinate(value: Value) -> bool:
    """A tile or head of a persistent CTA's item, times a size: not negative."""
    items = value.atoms() if isinstance(value, Poly) else {value}
    return non_negative(value) and all(isinstance(n, Node) and n.op == "block" and "_item" in n.data for n in items)


def negate(m: Machine, value: Value) -> Value:
    """``!value`` of a boolean."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Node) and value.op == "not":
        return value.args[0]
    return m.store.node("not", (value,), kind="bool")


def logical(m: Machine, op: str, a: Value, b: Value) -> Value:
    """and / or of booleans."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, bool):
            return (y if x else False) if op == "and" else (True if x else y)
    return a if same(a, b) else m.store.node(op, (a, b), kind="bool")


def boolean(m: Machine, value: Value) -> Value:
    """A value in boolean context."""
    if isinstance(value, bool | int | float):
        return bool(value)
    if isinstance(value, Ptr):
        return (
            m.store.node("ne", (m.store.node("pointer", (), value.root, "int"), 0), kind="bool")
            if value.space == "global"
            else True
        )
    if isinstance(value, Node) and value.kind == "bool":
        return value
    if isinstance(value, Node) and value.op == "select" and value.args[1:] == (1, 0):
        return value.args[0]
    if isinstance(value, Node) and value.op in ("select",) and value.kind == "int":
        a, b = (boolean(m, x) for x in value.args[1:])
        if isinstance(a, bool) and isinstance(b, bool):
            return a if a == b else value.args[0] if a else negate(m, value.args[0])
    return compare(m, "ne", value, 0.0 if value_kind(value) == "float" else 0)


def _pointer_arithmetic(m: Machine, op: str, a: Value, b: Value) -> Value:
    if isinstance(b, Ptr) and not isinstance(a, Ptr) and op == "+":
        a, b = b, a
    if isinstance(a, Ptr) and isinstance(b, Ptr):
        if op == "-" and a.root is b.root:
            return m.store.divide(m.store.add(a.offset, b.offset, -1), scale_of(a), floor=True)
        if op in ("==", "!="):
            return (a == b) == (op == "==")
        raise NotUnderstood("pointer comparison")
    if not isinstance(a, Ptr):
        raise NotUnderstood("pointer arithmetic")
    if op in ("==", "!="):
        known = boolean(m, a)
        return known if op == "!=" else negate(m, known)
    if op not in ("+", "-"):
        raise NotUnderstood("pointer arithmetic")
    step = m.store.mul(m.store.fold(as_int(m, b)), scale_of(a))
    dims = a.dims if len(a.dims) > 1 else ()
    return Ptr(a.space, a.root, m.store.add(a.offset, step, 1 if op == "+" else -1), a.ctype, dims)


def scale_of(ptr: Ptr) -> int:
    """How much the offset moves per element of what `ptr` points at."""
    size = ptr.ctype.size if not ptr.ctype.pointer else 8
    if ptr.space == "local":
        size = max(1, size // max(1, ptr.root.ctype.size)) if not ptr.ctype.pointer else 1
    for d in ptr.dims[1:]:
        size *= d
    return size
