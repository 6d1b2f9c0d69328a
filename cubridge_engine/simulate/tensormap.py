"""Tensor maps: what cuTensorMapEncodeTiled describes.

As a Python object that is passed where the kernel takes a map.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    grid: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        rank, item = len(self.dims), self.buffer.array.itemsize
        inner = self.box[0] * item if self.box else 0
        checks = (
            (1 <= rank <= 5, "1 to 5 dimensions"),
            (len(self.box) == rank and len(self.strides) == rank - 1, "one box extent per dimension, one stride fewer"),
            (all(1 <= b <= MAX_BOX for b in self.box), f"box extents from 1 to {MAX_BOX}"),
            (all(s % 16 == 0 for s in self.strides), "strides that are multiples of 16 bytes"),
            (inner % 16 == 0, "an inner box of a multiple of 16 bytes"),
            (self.swizzle in SWIZZLE_BITS, "a swizzle of 0, 32, 64 or 128 bytes"),
            (not self.swizzle or inner <= self.swizzle, "an inner box no longer than the swizzle"),
            (self.offset % 16 == 0 and self.buffer.offset % 16 == 0, "a global address aligned to 16 bytes"),
        )
        for ok, text in checks:
            if not ok:
                raise ValueError(f"a tensor map needs {text}")
        self.grid = []
        for axis, extent in enumerate(self.box):
            shape = [1] * rank
            shape[rank - 1 - axis] = extent
            self.grid.append(np.arange(extent).reshape(shape))

    @property
    def nbytes(self) -> int:
        """Bytes of one box."""
        return int(np.prod(self.box)) * self.buffer.array.itemsize

    def offsets(self, coords: list[int]) -> tuple[Array, Array]:
        """Byte offsets of the elements of a box from the start of the buffer.

        Innermost fastest, and which are inside.
        """
        steps = (self.buffer.array.itemsize, *self.strides)
        offset: Array = np.array(self.offset, np.int64)
        inside: Array = np.array(True)
        for axis, grid in enumerate(self.grid):
            index = grid + coords[axis]
            inside = inside & (index >= 0) & (index < self.dims[axis])
            offset = offset + index * steps[axis]
        return offset.ravel(), inside.ravel()
