"""Tensor maps of mode im2col: what cuTensorMapEncodeIm2col describes, as a Python object.

The columns of a convolution's matrix: a copy takes `pixels` places that follow each other in a box of (N, D, H, W), and
`channels` of each. The box holds the first pixel of a filter; the instruction's offsets move it to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import Buffer
from .tensormap import Problem, TensorMap

Array = NDArray[Any]
MAX_PIXELS = 1024


class Im2colMap(TensorMap):
    """A view of a buffer (dimensions C, W, H, D, N, innermost first; 3 to 5 of them) for bulk copies of mode im2col.

    `lower` and `upper` are corners of the box in (W, H, D): places from ``lower`` to ``extent - 1 + upper``. One copy
    moves `pixels` places of `channels` elements. Other arguments as for ``TensorMap``. Raises ValueError for what the
    driver refuses. Strides between pixels are 1.
    """

    __slots__ = ("lower", "upper")

    def __init__(
        self, buffer: Buffer, dims: tuple[int, ...], strides: tuple[int, ...], lower: tuple[int, ...],
        upper: tuple[int, ...], channels: int, pixels: int, swizzle: int = 0, *, fill_nan: bool = False,
        offset: int = 0, kind: str = "",
    ) -> None:  # fmt: skip
        spatial = len(dims) - 2
        if not 1 <= spatial <= 3 or len(lower) != spatial or len(upper) != spatial:
            raise ValueError("an im2col map needs 3 to 5 dimensions, and a corner for each but channels and images")
        low, high = {1: (-(1 << 15), 1 << 15), 2: (-128, 128), 3: (-16, 16)}[spatial]
        if any(not low <= c < high for c in (*lower, *upper)):
            raise ValueError(f"an im2col map of {spatial} spatial dimensions needs corners from {low} to {high - 1}")
        if any(n + u - b < 1 for n, b, u in zip(dims[1:-1], lower, upper, strict=True)):
            raise ValueError("an im2col map needs a box that is not empty")
        if not 1 <= pixels <= MAX_PIXELS:
            raise ValueError(f"an im2col map needs 1 to {MAX_PIXELS} pixels")
        self.lower, self.upper = lower, upper
        box = (channels, pixels, *[1] * spatial)
        super().__init__(buffer, dims, strides, box, swizzle, fill_nan, offset, kind)

    def box_limits(self) -> tuple[int, ...]:
        """Channels up to 256, pixels up to 1024."""
        return (256, MAX_PIXELS, *[1] * (len(self.dims) - 2))

    @property
    def coordinates(self) -> int:
        """Operands of a copy: a coordinate per dimension, and an offset per spatial dimension."""
        return 2 * len(self.dims) - 2

    def problems(self, coords: Sequence[Array], store: bool) -> list[Problem]:
        """What stops a copy: channels that are not aligned, a first pixel outside the box."""
        found = super().problems(coords[: len(self.dims)], store)
        for axis, (low, high) in enumerate(zip(self.lower, self.upper, strict=True), 1):
            last = self.dims[axis] - 1 + high
            found.append(
                ((coords[axis] < low) | (coords[axis] > last), "the first pixel is outside the box of the map")
            )
        return found

    def offsets(self, coords: Sequence[Array], piece: int) -> tuple[Array, Array]:
        """Byte offsets of the pieces of columns from the start of the buffer, and which are inside (boxes, pieces).

        `coords`: C, W, H, D, N and then the offsets in W, H, D.
        """
        rank, item = len(self.dims), self.buffer.array.itemsize
        start = [c.astype(np.int64) for c in coords]
        extents = [n + u - b for n, b, u in zip(self.dims[1:-1], self.lower, self.upper, strict=True)]
        linear = start[rank - 1]
        for axis in reversed(range(len(extents))):
            linear = linear * extents[axis] + (start[1 + axis] - self.lower[axis])
        rest = linear[:, None] + np.arange(self.box[1])
        offset: Array = np.full(rest.shape, self.offset, np.int64)
        inside: Array = np.ones(rest.shape, bool)
        for axis, extent in enumerate(extents):
            moved = coords[rank + axis].astype(np.int64)[:, None]
            place = rest % extent + self.lower[axis] + moved
            rest = rest // extent
            inside &= (place >= 0) & (place < self.dims[1 + axis])
            offset += place * self.strides[axis]
        inside &= (rest >= 0) & (rest < self.dims[-1])
        offset += rest * self.strides[-1]
        channel = start[0][:, None] + np.arange(0, self.box[0], piece // item)
        own = (channel >= 0) & (channel < self.dims[0])
        flat = (len(linear), -1)
        return (
            (offset[:, :, None] + channel[:, None] * item).reshape(flat),
            (inside[:, :, None] & own[:, None]).reshape(flat),
        )
