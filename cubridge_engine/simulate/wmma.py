"""wmma.load and wmma.store: fragments of a warp to and from memory, in the mapping of ``fragments.wmma_element``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import fragments
from .access import MemoryOps
from .emit import UNSIGNED

Array = NDArray[Any]


class WmmaOps(MemoryOps):
    """The methods generated code calls for wmma."""

    def wmma_load(
        self, space: str, address: Array, stride: Array | None, which: str, kind: str, shape: tuple[int, int, int],
        row_major: bool, count: int, m: Array | None, site: int,
    ) -> list[Array]:  # fmt: skip
        """A fragment from memory; `stride` is in elements."""
        self.whole(m, site)
        size = fragments.wmma_bytes(kind)
        values: list[Array] = []
        for position in range(count * 4 // size):
            at = self._wmma_address(address, stride, which, shape, row_major, size, position)
            values.append(self.load(space, at, size, 1, m, site)[0])
        per = 4 // size
        words = np.ascontiguousarray(np.stack(values, axis=-1)).view(np.uint32)  # (lanes, count)
        assert words.shape[-1] * per == len(values)
        return list(np.ascontiguousarray(words.T))

    def wmma_store(
        self, space: str, address: Array, stride: Array | None, which: str, kind: str, shape: tuple[int, int, int],
        row_major: bool, values: list[Array], m: Array | None, site: int,
    ) -> None:  # fmt: skip
        """A fragment to memory."""
        self.whole(m, site)
        size = fragments.wmma_bytes(kind)
        for position in range(len(values) * 4 // size):
            at = self._wmma_address(address, stride, which, shape, row_major, size, position)
            word = values[position * size // 4]
            part = (word >> np.uint32(8 * size * (position % (4 // size)))).astype(UNSIGNED[8 * size])
            self.store(space, at, [part], size, m, site)

    def _wmma_address(
        self, address: Array, stride: Array | None, which: str, shape: tuple[int, int, int], row_major: bool, size: int,
        position: int,
    ) -> Array:  # fmt: skip
        row, column = fragments.wmma_element(shape, which, self.lane, position)
        rows, columns = fragments.wmma_extent(shape, which)
        pitch = stride.astype(np.int64) if stride is not None else (columns if row_major else rows)
        element = row * pitch + column if row_major else column * pitch + row
        return address + (element * size).astype(address.dtype)
