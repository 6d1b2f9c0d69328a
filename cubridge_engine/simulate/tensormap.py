"""Tensor maps: what cuTensorMapEncodeTiled describes.

As a Python object that is passed where the kernel takes a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import Buffer

Array = NDArray[Any]

# swizzle span in bytes -> bits of the address that are changed by those three above
SWIZZLE_BITS = {0: 0, 32: 1, 64: 3, 128: 7}
# swizzle span -> alignment of the shared address
SWIZZLE_ALIGN = {0: 128, 32: 256, 64: 512, 128: 1024}
MAX_BOX = 256
Problem = tuple[Array, str]  # which copies, and what is wrong with them


def swizzle(address: Array, span: int) -> Array:
    """Shared byte addresses after the swizzle: 16-byte chunks are exchanged by the row they are in."""
    return address ^ (((address >> 7) & SWIZZLE_BITS[span]) << 4)


@dataclass(slots=True, eq=False)
class TensorMap:
    """A view of a buffer for bulk tensor copies. Dimension 0 is the innermost.

    `dims`: extents in elements. `strides`: bytes from one index to the next for dimensions 1 and up (multiples of
    16). `box`: extents of one copy. `swizzle`: 0, 32, 64 or 128. `fill_nan`: elements outside are NaN, not 0.
    `offset`: bytes from the start of the buffer. `kind`: how reductions add (``f16``, ``bf16``, or '' for the
    buffer's own dtype). Raises ValueError for what the driver refuses.
    """

    buffer: Buffer
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    fill_nan: bool = False
    offset: int = 0
    kind: str = ""

    def __post_init__(self) -> None:
        rank, item = len(self.dims), self.buffer.array.itemsize
        inner = self.box[0] * item if self.box else 0
        limits = self.box_limits()
        checks = (
            (1 <= rank <= 5, "1 to 5 dimensions"),
            (len(self.box) == rank and len(self.strides) == rank - 1, "one box extent per dimension, one stride fewer"),
            (all(1 <= b <= most for b, most in zip(self.box, limits, strict=False)), f"box extents from 1 to {limits}"),
            (all(s % 16 == 0 for s in self.strides), "strides that are multiples of 16 bytes"),
            (inner % 16 == 0, "an inner box of a multiple of 16 bytes"),
            (self.swizzle in SWIZZLE_BITS, "a swizzle of 0, 32, 64 or 128 bytes"),
            (not self.swizzle or inner <= self.swizzle, "an inner box no longer than the swizzle"),
            (self.offset % 16 == 0 and self.buffer.offset % 16 == 0, "a global address aligned to 16 bytes"),
        )
        for ok, text in checks:
            if not ok:
                raise ValueError(f"a tensor map needs {text}")

    def box_limits(self) -> tuple[int, ...]:
        """The largest extents of a box."""
        return (MAX_BOX,) * len(self.dims)

    @property
    def coordinates(self) -> int:
        """How many numbers place a copy."""
        return len(self.dims)

    def problems(self, coords: Sequence[Array], store: bool) -> list[Problem]:
        """What the hardware refuses with an illegal instruction (seen on an H200)."""
        negative = [(np.min(coords, axis=0) < 0, "a store at a negative coordinate")] if store else []
        return [self._unaligned(coords[0]), *negative]

    def _unaligned(self, first: Array) -> Problem:
        return first * self.buffer.array.itemsize % 16 != 0, "the first coordinate is no multiple of 16 bytes"

    @property
    def nbytes(self) -> int:
        """Bytes of one box."""
        return int(np.prod(self.box)) * self.buffer.array.itemsize

    @property
    def piece(self) -> int:
        """Bytes that are inside or outside together: 16 where rows of the map and of the buffer end at such borders."""
        item = self.buffer.array.itemsize
        extents = (self.dims[0], self.buffer.array.shape[-1] if self.buffer.array.ndim else 1, self.buffer.row_pad)
        return 16 if all(extent * item % 16 == 0 for extent in extents) else item

    def offsets(self, coords: Sequence[Array], piece: int) -> tuple[Array, Array]:
        """Byte offsets of the pieces of boxes from the start of the buffer, innermost fastest, and which are inside.

        `coords` are (boxes,) per dimension; the results are (boxes, pieces).
        """
        item = self.buffer.array.itemsize
        rank, count = len(self.box), len(coords[0])
        offset: Array = np.full((count, *[1] * rank), self.offset, np.int64)
        inside: Array = np.ones((count, *[1] * rank), bool)
        for axis, extent in enumerate(self.box):
            shape = [1] * rank
            shape[rank - 1 - axis] = -1
            steps = np.arange(0, extent, piece // item if axis == 0 else 1)
            index = coords[axis].astype(np.int64).reshape(-1, *[1] * rank) + steps.reshape(shape)
            inside = inside & ((index >= 0) & (index < self.dims[axis]))
            offset = offset + index * (self.strides[axis - 1] if axis else item)
        return offset.reshape(count, -1), inside.reshape(count, -1)
