"""How q, k, v and o may lie in memory for a kernel: any way along the axes whose stride it is told, and one behind the
other along those whose stride it works out from the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..diagnostics import Diagnostic, make
from ..ir.evaluate import evaluate
from ..ir.expr import free_vars
from ..ir.nodes import Kernel
from ..ir.text_expr import print_expr
from ..spec.attention import Attention

_AXES: tuple[str, ...] = ("b", "h", "row")
# The axes of a layout from the slowest, before the features.
_ORDERS: dict[str, tuple[str, ...]] = {"bhsd": ("b", "h", "row"), "bshd": ("b", "row", "h")}
_SAMPLE = {"B": 2, "H": 6, "Hkv": 3, "Sq": 5, "Sk": 7}  # sizes at which no two layouts have the same strides
_SIZES = frozenset({*_SAMPLE, "D", "Dv"})
_ROWS = {"q": ("H", "Sq"), "o": ("H", "Sq"), "k": ("Hkv", "Sk"), "v": ("Hkv", "Sk")}


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout (bhsd, bshd, padded) and how many leading axes of it may have allocations of their own."""

    layout: str
    isolate: int


def placement(kernel: Kernel, role: str, wanted: str, shape: Sequence[int], sizes: Mapping[str, int]) -> Placement:
    """Where a ``[B, H, S, D]`` tensor of that shape is put: as `wanted` by the case where the kernel is told all its
    strides, else as the kernel addresses it. Raises LookupError where no layout has the strides that it works out.
    """
    free = _told_axes(kernel, role)
    if len(free) == len(_AXES):
        return Placement(wanted, 1 if wanted == "bshd" else 2)
    found = _fitting(kernel, role, shape, sizes)
    if not found:
        raise LookupError(role)
    layout = wanted if wanted in found else found[0]
    order = _ORDERS[layout]
    isolate = next((n for n, axis in enumerate(order) if axis not in free), len(order))
    return Placement(layout, min(isolate, 1 if layout == "bshd" else 2))


def layout_problems(kernel: Kernel, attention: Attention) -> list[Diagnostic]:
    """CB727 for the first tensor that no layout of a test has, or CB728 for one that the spec has in another order."""
    span = kernel.origin.span
    sample = dict(_SAMPLE)
    for a, b in attention.equal_sizes:  # strides that are the same wherever the two sizes are
        if a in sample and b in sample:
            sample[b] = sample[a]
    for item in (*(attention.input(role) for role in "qkv"), *attention.outputs):
        if item.role not in _ROWS or len(_told_axes(kernel, item.role)) == len(_AXES):
            continue
        width = kernel.Dv if item.role in "vo" else kernel.D
        heads, rows = (sample[size] for size in _ROWS[item.role])
        found = _fitting(kernel, item.role, (sample["B"], heads, rows, width), sample)
        letters = {"b": "b", "h": "h", "hk": "h", "i": "row", "j": "row"}
        own = tuple(letters[a] for a in item.axes if a in letters)
        strides = ", ".join(print_expr(s) for s in kernel.tensors[item.role])
        if not found:
            return [make("CB727", span, role=item.role, strides=strides)]
        if all(tuple(a for a in _ORDERS[layout] if a in own) != own for layout in found):
            axes = ", ".join(item.axes)
            return [make("CB728", span, role=item.role, axes=axes, strides=strides, kernel=kernel.name)]
    return []


def _told_axes(kernel: Kernel, role: str) -> frozenset[str]:
    """The axes whose stride the launch gives, in a parameter or a tensor map, not the sizes alone."""
    strides = kernel.tensors.get(role, ())
    if len(strides) != len(_AXES):
        return frozenset(_AXES)
    known = _SIZES | {p.name for p in kernel.params if p.role in _SIZES}
    return frozenset(axis for axis, s in zip(_AXES, strides, strict=True) if free_vars(s) - known)


def _fitting(kernel: Kernel, role: str, shape: Sequence[int], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The layouts without gaps that have the strides which the kernel works out; an axis of one index has any."""
    free = _told_axes(kernel, role)
    env = {**sizes, "D": kernel.D, "Dv": kernel.Dv}
    env |= {p.name: env[p.role] for p in kernel.params if p.role in env}
    extents = dict(zip(_AXES, shape, strict=False))
    wanted = {a: int(evaluate(s, env)) for a, s in zip(_AXES, kernel.tensors[role], strict=True) if a not in free}
    fits: list[str] = []
    for layout, order in _ORDERS.items():
        step, strides = shape[-1], dict[str, int]()
        for axis in reversed(order):
            strides[axis] = step
            step *= extents[axis]
        if all(extents[axis] <= 1 or strides[axis] == n for axis, n in wanted.items()):
            fits.append(layout)
    return tuple(fits)
