"""Keys and values in pages, as a caller of a kernel that looks them up has them.

The pages of a problem lie in no order, with unused ones among them that hold NaN, as do the rows behind the last key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.nodes import Copy, Kernel
from ..transfer.structure import walk_ops

Array = NDArray[Any]
UNUSED = 3  # pages of the cache that no table names
_BF16_NAN = 0x7FC0


def pages_of(kernel: Kernel) -> dict[str, int]:
    """The parameters that are tables of pages, and the rows of a page."""
    return {op.table: op.page for op in walk_ops(kernel.body) if isinstance(op, Copy) and op.table}


def table_for(sizes: Mapping[str, int], size: int) -> Array:
    """The table of a problem: int32 [B, ceil(Sk / size)], one page for each sequence at least. Always the same one."""
    count = max(-(-sizes["Sk"] // size), 1)
    rng = np.random.default_rng(7 * sizes["Sk"] + sizes["B"])
    return rng.permutation(sizes["B"] * count + UNUSED)[: sizes["B"] * count].reshape(-1, count).astype(np.int32)


def in_pages(array: Array, table: Array, size: int) -> Array:
    """Keys or values ``[B, Hkv, Sk, D]`` as the cache ``[pages, Hkv, size, D]`` that the table finds them in."""
    batch, heads, keys, width = array.shape
    hole = _BF16_NAN if array.dtype == np.uint16 else np.nan
    rows = np.full((batch, heads, table.shape[1] * size, width), hole, array.dtype)
    rows[:, :, :keys] = array
    cache = np.full((table.size + UNUSED, heads, size, width), hole, array.dtype)
    cache[table] = rows.reshape(batch, heads, -1, size, width).transpose(0, 2, 1, 3, 4)
    return cache


def gathered(cache: Array, table: Array) -> Array:
    """The inverse: ``[B, Hkv, pages * size, D]`` of a cache."""
    batch, count = table.shape
    _, heads, size, width = cache.shape
    return cache[table].transpose(0, 2, 1, 3, 4).reshape(batch, heads, count * size, width)


def tables(pages: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, Array]:
    """The tables of a call by parameter."""
    return {parameter: table_for(sizes, size) for parameter, size in pages.items()}
