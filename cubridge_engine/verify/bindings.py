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
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, make
from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import TRUE, Const, Expr, Read, Var, free_vars, reads, walk
from ..ir.nodes import Kernel, Param
from ..spec.attention import Attention
from ..transfer.rules.paged import PAGES
from ..transfer.sampling import bind_unknown, flatten_reads, points, value_at
from ..transfer.semantics import NotAttention, Semantics, bound_semantics, semantics_of
from ..transfer.structure import tile_walk
from ..transfer.tile_lists import ENTRIES, Q_TILES, TileList, build_tile_list
from .derive import natural_scale, score_at, without_reads
from .explain import Binding, rename_reads
from .paged import pages_of, tables
from .placement import layout_problems

Array = NDArray[Any]
Number = float | int
SIZE_ROLES = frozenset({"q", "k", "v", "o", "lse", "Sq", "Sk", "H", "Hkv", "B", "group", "unused", "D"})
MAX_FLAGS = 4
POWER_SLACK = 1e-3  # slopes are differences over a step
LOG2E = math.log2(math.e)
RAW = np.array([-40.0, -9.0, -2.5, -0.7, 0.3, 1.9, 11.0, 35.0])  # raw products to compare scores at


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
    """Bind every parameter of `kernel` for `attention`. CB713, CB714 and CB717 name what is missing, CB726 to CB728
    pages and layouts that are not the kernel's.
    """
    problems: list[Diagnostic] = []
    tiles = tile_lists_of(kernel, attention)
    pages = pages_of(kernel)
    problems += _page_problems(kernel, attention, pages)
    problems += layout_problems(kernel, attention)
    operands = _operands(kernel, attention, given, frozenset((*tiles, *pages)), problems)
    binding = _with_layouts(kernel, attention, Binding(dict(given.values), operands, tiles=tiles, pages=pages))
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
    parts = (attention.score, attention.mask, attention.sink, attention.divisor)
    read = frozenset[str]().union(*(reads(part) for part in parts if part is not None))
    problems.extend(
        make("CB717", attention.spans.get(item.name) or item.span, name=item.name)
        for item in attention.operands
        if item.name in read and item.name not in operands.values()
    )
    return Bound(replace(binding, values=values), tuple(problems))


def _page_problems(kernel: Kernel, attention: Attention, pages: Mapping[str, int]) -> list[Diagnostic]:
    """CB726 where kernel and spec have pages of different sizes: the size is a number in the kernel."""
    paging = attention.paging
    wrong = [size for size in pages.values() if paging is not None and size != paging.size]
    if not wrong or paging is None:
        return []
    return [make("CB726", kernel.origin.span, have=wrong[0], want=paging.size, table=paging.table)]


def _needs_value(param: Param) -> bool:
    return param.role not in SIZE_ROLES and not param.role.startswith(("operand:", "stride:"))


def _names_used(kernel: Kernel) -> frozenset[str]:
    """Names of variables in any expression of the program."""
    parts = [kernel.exp_unit, kernel.grid.q_tile, kernel.grid.b, kernel.grid.h, kernel.grid.hk, *_expressions(kernel)]
    return frozenset().union(*(free_vars(expr) for expr in parts))


# ---- tensors
# ----------------------------------------------------------------------------------------------------------


def tile_lists_of(kernel: Kernel, attention: Attention) -> dict[str, TileList]:
    """The parameter that the KV loop takes its tiles from, if it does: a tensor of no spec, made from the mask. Which
    axes it has is how the kernel indexes it.
    """
    try:
        walk = tile_walk(kernel)
    except NotAttention:
        return {}
    if walk is None or walk.tensor not in {p.name for p in kernel.params}:
        return {}
    extents = {"b": "B", "h": "H", "qt": Q_TILES}
    axes = [extents.get(e.name) if isinstance(e, Var) else None for e in walk.tile.index[:-1]]
    if None in axes or Q_TILES not in axes:
        return {}
    mask = attention.mask if attention.mask is not None else TRUE
    named = tuple(axis for axis in axes if axis is not None)
    return {walk.tensor: TileList(mask, kernel.Br, kernel.Bc, (*named, ENTRIES))}


def extra_tensors(binding: Binding, roles: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """All extra tensors of a call by parameter: those of the spec, the lists of tiles made from them, and tables of
    pages.
    """
    tensors = {parameter: roles[name] for parameter, name in binding.operands.items()}
    return tensors | tile_arrays(binding, roles, sizes) | tables(binding.pages, sizes)


def tile_arrays(binding: Binding, roles: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """The lists of tiles of a call, by parameter, as the caller makes them; `roles` are the spec's tensors by name."""
    return {p: build_tile_list(tiles, sizes, roles) for p, tiles in binding.tiles.items()}


def _operands(
    kernel: Kernel, attention: Attention, given: Given, made: frozenset[str], problems: list[Diagnostic]
) -> dict[str, str]:
    """Parameter -> tensor of the spec: as given, then by equal name, then the only tensor left for the only parameter
    left. Parameters in `made` are no tensors of the spec.
    """
    names = {item.name for item in attention.operands}
    params = [p for p in kernel.params if p.role.startswith("operand:") and p.name not in made]
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


@dataclass(frozen=True, slots=True)
class Layouts:
    """How a kernel addresses its extra tensors, by parameter: `kept` axes in the order of its indices, the axis of each
    stride parameter, and the `strides`.
    """

    kept: dict[str, tuple[int, ...]]
    stride_params: dict[str, dict[str, int]]
    strides: dict[str, tuple[Expr, ...]]


def layouts_of(kernel: Kernel, tensors: Mapping[str, tuple[str, tuple[str, ...]]]) -> Layouts:
    """The layouts of extra tensors: parameter -> (its name in the spec, its axes). One that the kernel indexes
    otherwise is left out.
    """
    found = Layouts({}, {}, {})
    for param, (_, axes) in tensors.items():
        steps = kernel.tensors.get(param) or kernel.tensors.get(f"operand:{param}") or ()
        long = tuple(n for n, extent in enumerate(axes) if extent != "1")
        used = long if len(steps) == len(long) else tuple(range(len(axes))) if len(steps) == len(axes) else None
        if used is None:
            continue
        used = _declared_order(kernel, steps, used)
        found.kept[param] = used
        found.strides[param] = steps
        found.stride_params[param] = {
            step.name: axis for axis, step in zip(used, steps, strict=True) if isinstance(step, Var)
        }
    return found


def _with_layouts(kernel: Kernel, attention: Attention, binding: Binding) -> Binding:
    """`binding` with axes and strides of its extra tensors, as the kernel addresses them."""
    tensors = {param: (name, attention.input(name).axes) for param, name in binding.operands.items()}
    tensors |= {param: ("", tiles.axes) for param, tiles in binding.tiles.items()}
    tensors |= dict.fromkeys(binding.pages, ("", ("B", PAGES)))
    found = layouts_of(kernel, tensors)
    spec_strides: dict[str, tuple[Expr, ...]] = {}
    for param, used in found.kept.items():
        name, axes = tensors[param]
        if not name:
            continue
        full: list[Expr] = [Const(0)] * len(axes)
        for axis, step in zip(used, found.strides[param], strict=True):
            full[axis] = step
        spec_strides[name] = tuple(full)
    return replace(
        binding,
        kept=found.kept,
        stride_params=found.stride_params,
        strides=found.strides,
        spec_strides=spec_strides,
    )


def _declared_order(kernel: Kernel, steps: tuple[Expr, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`axes` of the spec's tensor in the order of the kernel's indices.

    An address is a sum, so a lifted read has its indices in an order of its own. What a caller passes is fixed by the
    signature: stride parameters come in the order of the axes, the contiguous axis last. Never by what an index moves
    with: a kernel that swaps rows and keys would then be given a transposed tensor, and pass.
    """
    positions = {p.name: p.position for p in kernel.params}
    named = all(step == Const(1) or (isinstance(step, Var) and step.name in positions) for step in steps)
    if len(steps) != len(axes) or not named:
        return axes

    def place(n: int) -> int:
        step = steps[n]
        return positions[step.name] if isinstance(step, Var) else len(kernel.params)

    order = list(axes)
    for axis, n in zip(axes, sorted(range(len(steps)), key=place), strict=True):
        order[n] = axis
    return tuple(order)


# ---- scales and flags
# ---------------------------------------------------------------------------------------------------


def _scores(score: Expr, kernel: Kernel, values: Mapping[str, Number], raw: Array) -> Array:
    """A score at raw products; operand reads count 0.5."""
    env: dict[str, Any] = {"i": 3, "j": 2, "b": 0, "h": 1, "hk": 0, "B": 1, "H": 2, "Hkv": 2, "Sq": 8, "Sk": 8}
    env |= {"q0": 0, "kv0": 0, "qt": 0, "D": kernel.D, **values, "s": raw}
    env = bind_unknown(env, free_vars(score))
    return np.broadcast_to(np.asarray(evaluate(without_reads(score), env), dtype=float), raw.shape)


def _scales(kernel: Kernel, sem: Semantics, attention: Attention, params: list[Param]) -> dict[str, Number]:
    """The value of the one scale parameter that gives the score the spec's slope at zero.

    Where that does not give the spec's scores (cosines have no slope there), a usual scale that does.
    """
    if len(params) != 1:
        return {}
    name = params[0].name
    want = score_at(attention, RAW, kernel.D)
    close = 1e-4 * float(np.abs(want).max())
    try:
        found = _by_slope(kernel, sem, attention, name)
        powers = _by_power(kernel, sem, want, name)
        for value in (found, powers, *(kernel.D**-0.5 * factor for factor in (1.0, LOG2E)), 1.0, LOG2E):
            if value is not None and np.allclose(_scores(sem.score, kernel, {name: value}, RAW), want, 0.0, close):
                return {name: value}
    except (UnboundName, ValueError, TypeError):
        return {}
    return {} if found is None else {name: found}


def _by_slope(kernel: Kernel, sem: Semantics, attention: Attention, name: str) -> float | None:
    """The scale that gives the spec's slope at zero, which grows with the scale, or its root under a square root."""
    step = np.array([-1e-3, 1e-3])
    unit, doubled = (float(np.diff(_scores(sem.score, kernel, {name: value}, step))[0]) / 2e-3 for value in (1.0, 2.0))
    if not unit or not math.isfinite(doubled / unit):
        return None
    ratio, power = natural_scale(attention, kernel.D) / unit, math.log2(doubled / unit) if doubled else 0.0
    return ratio**2 if abs(power - 0.5) < POWER_SLACK and ratio > 0 else ratio


def _by_power(kernel: Kernel, sem: Semantics, want: Array, name: str) -> float | None:
    """The scale of scores that are a power of it, such as the square of a scaled product: no slope at zero."""
    unit, doubled = (_scores(sem.score, kernel, {name: value}, RAW) for value in (1.0, 2.0))
    with np.errstate(all="ignore"):
        power, ratio = float(np.median(np.log2(doubled / unit))), float(np.median(want / unit))
    return ratio ** (1 / power) if math.isfinite(power) and power > POWER_SLACK and 0 < ratio < math.inf else None


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
    """Extra tensors (by parameter) with the axes that the program indexes, in its order: without those of one element,
    or flat.
    """
    reads = [e for expr in _expressions(kernel) for e in walk(expr) if isinstance(e, Read)]
    counts = {read.tensor: len(read.index) for read in reads}
    result: dict[str, Any] = {}
    for name, array in tensors.items():
        used = binding.kept.get(name, tuple(range(array.ndim)))
        if counts.get(name) == len(used):
            ones = [axis for axis in range(array.ndim) if axis not in used]
            result[name] = np.transpose(array, [*used, *ones]).reshape([array.shape[axis] for axis in used])
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
