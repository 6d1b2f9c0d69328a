"""Layouts of tensor-core fragments: registers of 32 lanes <-> matrices of a warp.

With g = lane / 4 and t = lane % 4, a register of E elements (E = 1 for 32-bit, 2 for 16-bit, 4 for 8-bit types) of
operand A holds row g (+ 8 for odd registers) and columns ``chunk * 4E + t * E + e``, chunk = register / 2; of operand
B column g and rows ``chunk * 4E + t * E + e``, chunk = register. Accumulators hold row g (+ 8) and columns 2t, 2t +
1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arith

Array = NDArray[Any]


def elements(registers: Array, kind: str) -> Array:
    """(registers, lanes) uint32 -> (registers, lanes, E) float32."""
    if kind == "tf32":
        # The tensor core ignores the low 13 bits of the mantissa.
        return (registers & np.uint32(0xFFFFE000)).view(np.float32)[..., None]
    if kind in ("s8", "u8", "e4m3", "e5m2"):
        codes = np.ascontiguousarray(registers).view(np.uint8).reshape(*registers.shape, 4)
        if kind in ("e4m3", "e5m2"):
            return arith.narrow_value(codes, kind)
        return (codes.view(np.int8) if kind == "s8" else codes).astype(np.float32)
    halves = np.ascontiguousarray(registers).view(np.uint16).reshape(*registers.shape, 2)
    return arith.up(halves, kind)


def operand_a(registers: list[Array], kind: str) -> Array:
    """-> (warps, 16, K) float32."""
    x = elements(np.stack(registers), kind)
    chunks, e = len(registers) // 2, x.shape[-1]
    x = x.reshape(chunks, 2, -1, 8, 4, e).transpose(2, 1, 3, 0, 4, 5)
    return np.ascontiguousarray(x).reshape(-1, 16, chunks * 4 * e)


def sparse_a(registers: list[Array], kind: str, metadata: Array, selector: int, k: int) -> tuple[Array, Array]:
    """2:4 sparse operand A -> (warps, 16, K) float32, and which rows of 4 indices are not two rising ones.

    The registers hold the kept elements like a dense operand of K / 2 columns. The metadata of 16 columns and of rows g
    and g + 8 are the halves of one word: two 2-bit indices for every four columns, low bits first. With K = 16 it is
    the word of thread `selector` of each four, with K = 32 the words of threads ``2 selector`` and the next one.
    """
    packed = operand_a(registers, kind)
    words = metadata.reshape(-1, 8, 4)
    words = words[..., selector : selector + 1] if k == 16 else words[..., 2 * selector : 2 * selector + 2]
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1).reshape(-1, 16, k // 16, 1)
    pairs = (halves >> np.arange(0, 16, 4, dtype=np.uint32) & np.uint32(15)).reshape(-1, 16, k // 4)
    index = np.stack([pairs & np.uint32(3), pairs >> np.uint32(2)], axis=-1).astype(np.int64)
    dense = np.zeros((*pairs.shape, 4), np.float32)
    np.put_along_axis(dense, index, packed.reshape(*pairs.shape, 2), axis=-1)
    return dense.reshape(-1, 16, k), index[..., 0] >= index[..., 1]


def operand_b(registers: list[Array], kind: str) -> Array:
    """-> (warps, K, 8) float32, as the transpose of a contiguous (warps, 8, K)."""
    x = elements(np.stack(registers), kind)
    chunks, e = len(registers), x.shape[-1]
    x = np.ascontiguousarray(x.reshape(chunks, -1, 8, 4, e).transpose(1, 2, 0, 3, 4))
    return x.reshape(-1, 8, chunks * 4 * e).transpose(0, 2, 1)


def operands_b(registers: list[Array], kind: str, count: int) -> Array:
    """`count` operands behind each other -> (warps, K, 8 count) float32, like ``operand_b`` of each."""
    x = elements(np.stack(registers), kind)
    chunks, e = len(registers) // count, x.shape[-1]
    x = np.ascontiguousarray(x.reshape(count, chunks, -1, 8, 4, e).transpose(2, 0, 3, 1, 4, 5))
    return x.reshape(-1, count * 8, chunks * 4 * e).transpose(0, 2, 1)


def accumulators(matrix: Array) -> Array:
    """(warps, 16, 8 n) -> (4 n, lanes): registers c0..c3 of each of the n accumulators."""
    count = matrix.shape[2] // 8
    x = matrix.reshape(-1, 2, 8, count, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    return np.ascontiguousarray(x).reshape(4 * count, -1)


def accumulator(matrix: Array) -> Array:
    """(warps, 16, 8) -> (4, lanes): registers c0..c3."""
    x = matrix.reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)
    return np.ascontiguousarray(x).reshape(4, -1)


# (shape, element type of A and B)
WMMA_TYPES = {
    *(((m, n, k), t) for m, n, k in ((16, 16, 16), (32, 8, 16), (8, 32, 16)) for t in ("f16", "bf16", "s8", "u8")),
    ((16, 16, 8), "tf32"),
}


def wmma_bytes(kind: str) -> int:
    """Bytes of an element of a fragment."""
    return {"f16": 2, "bf16": 2, "s8": 1, "u8": 1}.get(kind, 4)


def wmma_extent(shape: tuple[int, int, int], which: str) -> tuple[int, int]:
    """Rows and columns of operand a, b, c or d."""
    m, n, k = shape
    return {"a": (m, k), "b": (k, n)}.get(which, (m, n))


def wmma_registers(shape: tuple[int, int, int], which: str, kind: str) -> int:
    """32-bit registers per lane. f16 operands always have 8: elements repeat where the matrix is small."""
    if which in ("a", "b") and kind == "f16":
        return 8
    rows, columns = wmma_extent(shape, which)
    return rows * columns // 32 * wmma_bytes(kind) // 4


def wmma_element(shape: tuple[int, int, int], which: str, lane: Array, position: int) -> tuple[Array, Array]:
    """Row and column of element `position` of each lane. PTX leaves this mapping open; here a lane holds neighbours."""
    rows, columns = wmma_extent(shape, which)
    each = rows * columns // 32
    flat = lane.astype(np.int64) * each + position % each
    return flat // columns, flat % columns
