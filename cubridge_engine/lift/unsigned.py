"""Unsigned arithmetic where it differs from signed: comparisons and quotients of what may be negative.

Values are mathematical integers. ``(unsigned)(x - lo) < w`` therefore needs its wrap-around spelled out: it is
``0 <= x - lo && x - lo < w``. The type of an operand is read off its syntax, by C's rules.
"""

from __future__ import annotations

from . import places
from .arithmetic import arithmetic, logical
from .machine import Machine, Scope, value_kind
from .syntax import Syn
from .values import Cells, CType, NotUnderstood, Ptr, Value, non_negative

_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_WRAPPING = frozenset({"/", "%", ">>"})
_MIXED = frozenset({"+", "-", "*", "&", "|", "^", "/", "%"})
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_INDICES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim"})


def binary(m: Machine, syn: Syn, a: Value, b: Value, scope: Scope) -> Value:
    """A binary operator on two values, unsigned where C's rules make it so. Raises NotUnderstood."""
    left, right = places.child(syn, "left"), places.child(syn, "right")
    if syn.op in _COMPARISONS or syn.op in _WRAPPING:
        if not (_signed_only(a) and _signed_only(b)) and is_unsigned(m, syn, scope, operands=True):
            return _unsigned(m, syn.op, a, b)
    elif "float" in (value_kind(a), value_kind(b)):
        for side, value in ((left, a), (right, b)):
            refuse_wrapped(m, side, value, scope)
    return arithmetic(m, syn.op, a, b)


def refuse_wrapped(m: Machine, syn: Syn, value: Value, scope: Scope) -> None:
    """An unsigned number that may have wrapped is no float. Raises NotUnderstood."""
    if value_kind(value) == "int" and not _signed_only(value) and is_unsigned(m, syn, scope):
        raise NotUnderstood("an unsigned number that may be negative, as a float")


def _signed_only(value: Value) -> bool:
    """True when the sign of the type makes no difference: never negative, or no integer at all."""
    return value_kind(value) != "int" or isinstance(value, Ptr) or non_negative(value)


def _unsigned(m: Machine, op: str, a: Value, b: Value) -> Value:
    if op in _WRAPPING or not (non_negative(a) or non_negative(b)):
        raise NotUnderstood("unsigned arithmetic on a number that may be negative")
    if non_negative(a):
        a, b, op = b, a, _MIRRORED[op]
    plain = arithmetic(m, op, a, b)
    if op in ("==", "!="):
        return plain  # b is not negative, so that a negative a is no equal of it either way
    if op in ("<", "<="):
        return logical(m, "and", arithmetic(m, ">=", a, 0), plain)
    return logical(m, "or", arithmetic(m, "<", a, 0), plain)


def is_unsigned(m: Machine, syn: Syn, scope: Scope, *, operands: bool = False) -> bool:
    """True when the expression's type is an unsigned integer of at least 32 bits. With `operands`, the type that a
    comparison converts its operands to.
    """
    kind = syn.type
    if kind in ("parenthesized_expression", "condition_clause") and syn.kids:
        return is_unsigned(m, syn.kids[-1], scope)
    if kind == "number_literal":
        return "u" in syn.text.lower() and not syn.text.lower().startswith("0b")
    if kind == "sizeof_expression":
        return True
    if kind == "field_expression":
        argument = syn.get("argument")
        return argument is not None and argument.text in _INDICES
    if kind in ("identifier", "subscript_expression"):
        while syn.type == "subscript_expression" and (inner := syn.get("argument")) is not None:
            syn = inner
        found = scope.find(syn.text)
        return isinstance(found, Cells | Ptr) and _of_type(found.ctype)
    if kind == "binary_expression":
        sides = [s for s in (syn.get("left"), syn.get("right")) if s is not None]
        if syn.op in ("<<", ">>") and sides:
            return is_unsigned(m, sides[0], scope)
        if syn.op in _MIXED or operands:
            return any(is_unsigned(m, s, scope) for s in sides)
        return False
    if kind == "unary_expression" and syn.op in ("-", "~", "+"):
        return is_unsigned(m, places.child(syn, "argument"), scope)
    if kind == "conditional_expression":
        return any(is_unsigned(m, s, scope) for s in (syn.get("consequence"), syn.get("alternative")) if s is not None)
    if kind == "cast_expression" and (target := syn.get("type")) is not None:
        return _of_type(places.read_type(m, target, scope))
    return kind == "call_expression" and _call(m, syn, scope)


def _call(m: Machine, syn: Syn, scope: Scope) -> bool:
    callee, arguments = syn.get("function"), syn.get("arguments")
    if callee is None or arguments is None:
        return False
    if callee.type == "template_function" and callee.text.startswith(("static_cast", "reinterpret_cast")):
        listed = callee.get("arguments")
        return listed is not None and bool(listed.kids) and _of_type(places.read_type(m, listed.kids[0], scope))
    if callee.text.rpartition("::")[2] in ("min", "max", "umin", "umax"):
        return any(is_unsigned(m, k, scope) for k in arguments.kids)
    named = places.type_named(m, callee.text, scope)
    return named is not None and _of_type(named)


def _of_type(ctype: CType) -> bool:
    return ctype.kind == "int" and not ctype.signed and ctype.size >= 4 and not ctype.pointer


def extremes(m: Machine, syn: Syn, values: list[Value], scope: Scope) -> None:
    """``max(0, u - v)`` of unsigned numbers is no maximum of integers. Raises NotUnderstood."""
    if not all(_signed_only(v) for v in values) and _call(m, syn, scope):
        raise NotUnderstood("the maximum or minimum of unsigned numbers that may be negative")
