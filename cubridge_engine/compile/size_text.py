"""Size expressions of contracts: texts over B, H, Hkv, Sq, Sk, D, Dv and element_bytes, evaluated with integers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

SIZES = ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv", "element_bytes")


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
}
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"cdiv": cdiv, "min": min, "max": max}


def evaluate_size(text: str, values: Mapping[str, int]) -> int:
    """Evaluate a size expression.

    Raises ValueError when it is not one (syntax, operator, unknown name), KeyError when `values` lacks a known size.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression") from error
    return _evaluate(tree, values)


def evaluate_condition(text: str, values: Mapping[str, int]) -> bool:
    """``Sq % 32 == 0`` and its like. Raises ValueError and KeyError as `evaluate_size`."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a condition") from error
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](_evaluate(left, values), _evaluate(right, values))
        case _:
            raise ValueError(f"{text!r} is not a condition")


def is_condition(text: str) -> bool:
    """True for two size expressions with ``==``, ``<=`` or ``<`` between them."""
    try:
        evaluate_condition(text, dict.fromkeys(SIZES, 1))
    except (ValueError, ZeroDivisionError):
        return False
    return True


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in SIZES:
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and len(args) == 2:
            return _CALLS[name](*(_evaluate(arg, values) for arg in args))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed in a size expression")
