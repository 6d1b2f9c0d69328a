"""Evaluate scalar expressions on NumPy arrays (broadcasting), in float64 unless told otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expr import Call, Const, Expr, Read, Var

Array = NDArray[Any]


def _bf16(x: Array) -> Array:
    """Round to bfloat16 (nearest even), result as float64."""
    f = np.asarray(x, dtype=np.float32)
    bits = f.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)).astype(np.uint32)
    out = rounded.view(np.float32).astype(np.float64)
    return np.where(np.isfinite(f), out, f.astype(np.float64))


def _sigmoid(x: Array) -> Array:
    # Two branches so that neither overflows.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[float])(x)


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "neg": np.negative,
    "min": np.minimum,
    "max": np.fmax,  # CUDA's fmaxf: the other operand wins over NaN
    "abs": np.abs,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "where": np.where,
    "float": lambda x: np.asarray(x, dtype=np.float64),
    "int": lambda x: np.trunc(x).astype(np.int64),
    "fp16": lambda x: np.asarray(x, dtype=np.float16).astype(np.float64),
    "bf16": _bf16,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "pow": np.power,
    "sign": np.sign,
}


class UnboundName(KeyError):
    """An expression names a variable or tensor the environment does not hold."""


def evaluate(expr: Expr, env: Mapping[str, Any], tensors: Mapping[str, Array] | None = None) -> Any:
    """The value of `expr`, broadcast over the arrays in `env`.

    `env` maps variable names to scalars or arrays; `tensors` maps tensor names to arrays. Reads are clamped into
    range, since CUDA predicates a read where torch evaluates both sides of a `where`: the value of a clamped read must
    be masked by the expression (0 for a tensor without elements). Raises UnboundName.
    """
    with np.errstate(all="ignore"):
        return _eval(expr, env, tensors or {})


def _eval(expr: Expr, env: Mapping[str, Any], tensors: Mapping[str, Array]) -> Any:
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        if expr.name not in env:
            raise UnboundName(expr.name)
        return env[expr.name]
    if isinstance(expr, Read):
        if expr.tensor not in tensors:
            raise UnboundName(expr.tensor)
        data = tensors[expr.tensor]
        if not expr.index:
            return data
        if len(expr.index) != data.ndim:
            raise UnboundName(f"{expr.tensor} by {len(expr.index)} of its {data.ndim} indices")
        index = tuple(
            np.clip(np.asarray(_eval(e, env, tensors)).astype(np.int64), 0, max(n - 1, 0))
            for e, n in zip(expr.index, data.shape, strict=True)
        )
        if data.size == 0:  # there is nothing to be clamped to
            return np.zeros(np.broadcast_shapes(*(i.shape for i in index)), data.dtype)
        return data[index]
    assert isinstance(expr, Call)
    return IMPLEMENTATIONS[expr.op](*(_eval(a, env, tensors) for a in expr.args))
