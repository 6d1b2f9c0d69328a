"""Tensor maps among a kernel's arguments: what the host must describe to the driver before a TMA kernel is launched.

A parameter of type ``tensor_map`` is a ``CUtensorMap`` passed by value (``__grid_constant__``). Its role names the
tensor it describes, as [B, heads, length, columns] with the tensor's own strides; ``box = [columns, rows]`` (size
expressions) is what one copy moves, of one head and one batch index, and ``swizzle`` the bytes of the shared-memory
swizzle. Coordinates in the kernel are (column, row, head, batch); what lies outside the tensor is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TENSOR_MAP = "tensor_map"  # the contract's word for the type
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class BoxShape:
    """The copies of a tensor map: columns and rows as size expressions, and the swizzle in bytes (0: none)."""

    columns: str
    rows: str
    swizzle: int


@dataclass(frozen=True, slots=True)
class MapShape:
    """A tensor map in the driver's order, innermost dimension first: extents in elements, strides of dimensions 1 and
    up in bytes, the box in elements, the swizzle in bytes.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    dtype: str  # float16 | bfloat16 | float32


def map_shape(
    shape: Sequence[int], strides: Sequence[int], element_bytes: int, box: tuple[int, int], swizzle: int, dtype: str
) -> MapShape:
    """The map of a ``[B, heads, length, columns]`` tensor with `strides` in elements.

    A dimension of one index (or of none, which the driver refuses: it gets one) is never moved along; its stride is
    that of a tensor without gaps.
    """
    extents = tuple(max(int(n), 1) for n in reversed(shape))
    steps: list[int] = []
    dense = extents[0] * element_bytes
    for extent, step in zip(extents[1:], tuple(reversed(strides))[1:], strict=True):
        steps.append(int(step) * element_bytes if extent > 1 else dense)
        dense = steps[-1] * extent
    return MapShape(extents, tuple(steps), (*box, *(1 for _ in extents[2:])), swizzle, dtype)
