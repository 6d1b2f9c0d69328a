"""How a kernel must be called to compute a spec: values of its parameters, and which of them are tensors of the spec.

Taken from the user, then from the ``// cubridge:`` header of the file, then worked out: a scale from the slope of the
score at zero, a flag from which of 0 and 1 makes the masks agree, a tensor by its name or as the only one left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..diagnostics import Diagnostic, make
from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import TRUE, Const, Expr, Read, Var, free_vars, walk
from ..ir.nodes import Kernel, Param
from ..spec.attention import Attention
from ..transfer.sampling import bind_unknown, flatten_reads, points, value_at
from ..transfer.semantics import NotAttention, Semantics, bound_semantics, semantics_of
from .derive import natural_scale, without_reads
from .explain import Binding, rename_reads

Number = float | int
SIZE_ROLES = frozenset({"q", "k", "v", "o", "lse", "Sq", "Sk", "H", "Hkv", "B", "group", "unused", "D"})
MAX_FLAGS = 4


@dataclass(frozen=True, slots=True)
class Given:
    """What is known beforehand: parameter values and tensors by parameter name."""

    values: Mapping[str, Number] = field(default_factory=dict[str, Number])
    operands: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Bound:
    """The binding, and what could not be bound."""

    binding: Binding
    diagnostics: tuple[Diagnostic, ...]


def bind_kernel(kernel: Kernel, attention: Attention, given: Given) -> Bound:
    """Bind every parameter of `kernel` for `attention`. CB713, CB714 and CB717 name what is missing."""
    problems: list[Diagnostic] = []
    operands = _operands(kernel, attention, given, problems)
    binding = _with_layouts(kernel, attention, Binding(dict(given.values), operands))
    owned = {name for axes in binding.stride_params.values() for name in axes}
    values: dict[str, Number] = dict(given.values)
    open_params = [p for p in kernel.params if _needs_value(p) and p.name not in values and p.name not in owned]
    try:
        sem = bound_semantics(semantics_of(kernel), values)
    except NotAttention:
        sem = None
    if sem is not None:
        values |= _scales(kernel, sem, attention, [p for p in open_params if p.role.startswith("scale")])
        values |= _flags(
            kernel, bound_semantics(sem, values), attention, binding, [p for p in open_params if p.role == "flag"]
        )
    used = _names_used(kernel)
    for param in open_params:
        if param.name not in values and param.name in used:
            problems.append(make("CB713", param.origin.span, name=param.name))
    problems.extend(
        make("CB717", attention.spans.get(item.name) or item.span, name=item.name)
        for item in attention.operands
        if item.name not in operands.values()
    )
    return Bound(replace(binding, values=values), tuple(problems))


def _needs_value(param: Param) -> bool:
    return param.role not in SIZE_ROLES and not param.role.startswith(("operand:", "stride:"))


def _names_used(kernel: Kernel) -> frozenset[str]:
    """Names of variables in any expression of the program."""
    parts = [kernel.exp_unit, kernel.grid.q_tile, kernel.grid.b, kernel.grid.h, kernel.grid.hk, *_expressions(kernel)]
    return frozenset().union(*(free_vars(expr) for expr in parts))


# ---- tensors
# ----------------------------------------------------------------------------------------------------------


def _operands(kernel: Kernel, attention: Attention, given: Given, problems: list[Diagnostic]) -> dict[str, str]:
    """Parameter -> tensor of the spec: as given, then by equal name, then the only tensor left for the only parameter
    left.
    """
    names = {item.name for item in attention.operands}
    params = [p for p in kernel.params if p.role.startswith("operand:")]
    result = {p.name: given.operands[p.name] for p in params if given.operands.get(p.name) in names}
    for p in params:
        if p.name not in result and p.name in names:
            result[p.name] = p.name
    rest = [p for p in params if p.name not in result]
    free = [item.name for item in attention.operands if item.name not in result.values()]
    if len(rest) == 1 and len(free) == 1:
        result[rest[0].name] = free[0]
        rest = []
    problems.extend(make("CB714", p.origin.span, name=p.name) for p in rest)
    return result


def _with_layouts(kernel: Kernel, attention: Attention, binding: Binding) -> Binding:
    """`binding` with axes and strides of its extra tensors, as the kernel addresses them."""
    kept: dict[str, tuple[int, ...]] = {}
    stride_params: dict[str, dict[str, int]] = {}
    strides: dict[str, tuple[Expr, ...]] = {}
    spec_strides: dict[str, tuple[Expr, ...]] = {}
    for param, name in binding.operands.items():
        axes = attention.input(name).axes
        steps = kernel.tensors.get(param) or kernel.tensors.get(f"operand:{param}") or ()
        long = tuple(n for n, extent in enumerate(axes) if extent != "1")
        used = long if len(steps) == len(long) else tuple(range(len(axes))) if len(steps) == len(axes) else None
        if used is None:
            continue
        kept[param] = used
        strides[param] = steps
        stride_params[param] = {
            step.name: axis for axis, step in zip(used, steps, strict=True) if isinstance(step, Var)
        }
        full: list[Expr] = [Const(0)] * len(axes)
        for axis, step in zip(used, steps, strict=True):
            full[axis] = step
        spec_strides[name] = tuple(full)
    return replace(binding, kept=kept, stride_params=stride_params, strides=strides, spec_strides=spec_strides)


# ---- scales and flags
# ---------------------------------------------------------------------------------------------------


def _slope(score: Expr, kernel: Kernel, values: Mapping[str, Number]) -> float:
    """Slope at s = 0 of a score whose operand reads count 0.5."""
    env: dict[str, Any] = {"i": 3, "j": 2, "b": 0, "h": 1, "hk": 0, "B": 1, "H": 2, "Hkv": 2, "Sq": 8, "Sk": 8}
    env |= {"q0": 0, "kv0": 0, "qt": 0, "D": kernel.D, **values, "s": np.array([-1e-3, 1e-3])}
    env = bind_unknown(env, free_vars(score))
    low, high = np.broadcast_to(np.asarray(evaluate(without_reads(score), env), dtype=float), (2,))
    return float(high - low) / 2e-3


def _scales(kernel: Kernel, sem: Semantics, attention: Attention, params: list[Param]) -> dict[str, Number]:
    """The value of the one scale parameter that gives the score the spec's slope at zero."""
    if len(params) != 1:
        return {}
    name = params[0].name
    try:
        unit = _slope(sem.score, kernel, {name: 1.0})
    except (UnboundName, ValueError, TypeError):
        return {}
    wanted = natural_scale(attention, kernel.D)
    return {name: wanted / unit} if unit and math.isfinite(unit) else {}


def _flags(
    kernel: Kernel, sem: Semantics, attention: Attention, binding: Binding, params: list[Param]
) -> dict[str, Number]:
    """The setting of the flags under which the kernel's mask agrees with the spec's at most points."""
    if not params or len(params) > MAX_FLAGS:
        return {}
    want = attention.mask if attention.mask is not None else TRUE
    env = points([want, sem.keep], tile=(kernel.Br, kernel.Bc))
    types = {t.name: "bool" if t.dtype == "bool" else "float" for t in attention.operands}
    best: tuple[int, dict[str, Number]] | None = None
    for setting in itertools.product((0, 1), repeat=len(params)):
        values: dict[str, Number] = dict(zip((p.name for p in params), setting, strict=True))
        mine = rename_reads(flatten_reads(sem.keep, binding.strides), binding.operands)
        spec = flatten_reads(want, binding.spec_strides)
        full = bind_unknown({**env, "D": kernel.D, **values}, free_vars(mine) | free_vars(spec))
        try:
            wrong = np.asarray(value_at(mine, full, types), dtype=bool) != np.asarray(
                value_at(spec, full, types), dtype=bool
            )
        except (UnboundName, ValueError, TypeError):
            return {}
        count = int(np.broadcast_to(wrong, env["i"].shape).sum())
        if best is None or count < best[0]:
            best = (count, values)
    return best[1] if best is not None else {}


def indexed_operands(kernel: Kernel, binding: Binding, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Extra tensors (by parameter) with the axes that the program indexes: without those of one element, or flat."""
    reads = [e for expr in _expressions(kernel) for e in walk(expr) if isinstance(e, Read)]
    counts = {read.tensor: len(read.index) for read in reads}
    result: dict[str, Any] = {}
    for name, array in tensors.items():
        used = binding.kept.get(name, tuple(range(array.ndim)))
        if counts.get(name) == len(used):
            result[name] = array.reshape([array.shape[axis] for axis in used])
        else:
            result[name] = array.reshape(-1) if counts.get(name) == 1 else array
    return result


def _expressions(kernel: Kernel) -> list[Expr]:
    found: list[Expr] = []

    def visit(value: object) -> None:
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                visit(item)
        elif hasattr(value, "__dataclass_fields__"):
            for name in type(value).__dataclass_fields__:  # type: ignore[attr-defined]
                if name != "origin":
                    visit(getattr(value, name))

    visit(kernel.body)
    return found
