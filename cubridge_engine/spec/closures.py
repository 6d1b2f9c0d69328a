"""Scalar expressions as functions of torch tensors, to be called by FlexAttention or on whole index grids."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..ir.evaluate import evaluate
from ..ir.expr import Call, Const, Expr, Read, Var, free_vars, reads

PLACES = ("s", "b", "h", "i", "j")  # the arguments of a function
Mod = Callable[[Any, Any, Any, Any, Any], Any]

_INFIX = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "floordiv": "floordiv", "mod": "mod", "bitand": "and_",
    "bitor": "or_", "bitxor": "xor", "shl": "lshift", "shr": "rshift", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "eq": "eq", "ne": "ne", "and": "and_", "or": "or_", "neg": "neg", "abs": "abs",
}  # fmt: skip
_OF_TORCH = "exp exp2 log log2 log1p tanh sigmoid relu sqrt rsqrt sin cos erf floor ceil sign pow where"
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{op: getattr(operator, name) for op, name in _INFIX.items()},
    **{op: getattr(torch, op) for op in _OF_TORCH.split(" ")},
    "not": torch.logical_not,
    "min": lambda a, b: torch.where(a < b, a, b),
    "max": lambda a, b: torch.where(a > b, a, b),
    "float": lambda x: x.float(),
    "int": lambda x: x.long(),
    "fp16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(),
}


class NoClosure(ValueError):
    """The expression has something that these functions cannot know."""


def closure(expr: Expr, sizes: Mapping[str, int], tensors: Mapping[str, Any]) -> Mod:
    """``f(s, b, h, i, j)``: the expression with these sizes and tensors (of the spec, by name). Raises NoClosure."""
    if not reads(expr) and not free_vars(expr) & {*PLACES, "hk"}:
        return _constant(expr, sizes)
    if isinstance(expr, Var):
        return _variable(expr.name, sizes)
    if isinstance(expr, Read):
        return _read(expr, sizes, tensors)
    assert isinstance(expr, Call)
    if expr.op not in _OPERATORS:
        raise NoClosure(f"`{expr.op}` has no function of torch")
    return _call(_OPERATORS[expr.op], [closure(a, sizes, tensors) for a in expr.args])


def _constant(expr: Expr, sizes: Mapping[str, int]) -> Mod:
    missing = free_vars(expr) - set(sizes)
    if missing:
        raise NoClosure(f"`{min(missing)}` is not known before the launch")
    value = expr.value if isinstance(expr, Const) else evaluate(expr, dict(sizes)).item()
    return lambda s, b, h, i, j: value


def _variable(name: str, sizes: Mapping[str, int]) -> Mod:
    if name == "hk":
        group = sizes["H"] // sizes["Hkv"]
        return lambda s, b, h, i, j: h // group
    place = PLACES.index(name)
    return lambda *at: at[place]


def _read(expr: Read, sizes: Mapping[str, int], tensors: Mapping[str, Any]) -> Mod:
    if expr.tensor not in tensors:
        raise NoClosure(f"`{expr.tensor}` is not known before the launch")
    tensor = tensors[expr.tensor]
    index = [closure(e, sizes, tensors) for e in expr.index]
    return lambda s, b, h, i, j: tensor[tuple(f(s, b, h, i, j) for f in index)]


def _call(function: Callable[..., Any], args: Sequence[Mod]) -> Mod:
    if len(args) == 1:
        (x,) = args
        return lambda s, b, h, i, j: function(x(s, b, h, i, j))
    if len(args) == 2:
        x, y = args
        return lambda s, b, h, i, j: function(x(s, b, h, i, j), y(s, b, h, i, j))
    x, y, z = args
    return lambda s, b, h, i, j: function(x(s, b, h, i, j), y(s, b, h, i, j), z(s, b, h, i, j))
