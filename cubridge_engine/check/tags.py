"""Inputs whose elements are all different, so that a number that a kernel holds says which element it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LOWEST, HIGHEST = -10, 2  # binary exponents of the numbers used: products stay far from overflow and underflow
_MANTISSA = {"float16": 10, "float32": 20}
NONE, ZERO = -2, -1  # no element of the tensor; a zero, such as a row behind the end


def capacity(dtype: str) -> int:
    """How many different numbers there are to use; 0 where they are too few for any problem."""
    bits = _MANTISSA.get(dtype)
    return 0 if bits is None else 2 * (HIGHEST - LOWEST) << bits


def tagged_inputs(sizes: Mapping[str, int], dtype: str, seed: int = 3) -> dict[str, Array]:
    """q [B, H, Sq, D], k [B, Hkv, Sk, D] and v as float64. The numbers of k and v are all different, those of q differ
    from each other and from k's. Raises ValueError where there are not enough numbers of the dtype.
    """
    shapes = {
        "k": (sizes["B"], sizes["Hkv"], sizes["Sk"], sizes["D"]),
        "v": (sizes["B"], sizes["Hkv"], sizes["Sk"], sizes["Dv"]),
        "q": (sizes["B"], sizes["H"], sizes["Sq"], sizes["D"]),
    }
    count = {role: int(np.prod(shape)) for role, shape in shapes.items()}
    if max(count["k"] + count["v"], count["k"] + count["q"]) > capacity(dtype):
        raise ValueError(f"{dtype} has not enough different numbers")
    rng = np.random.default_rng(seed)
    numbers = _numbers(dtype, count["k"] + max(count["v"], count["q"]), rng)
    own = numbers[: count["k"]]
    rest = numbers[count["k"] :]
    drawn = {"k": own, "v": rest[: count["v"]], "q": rng.permutation(rest)[: count["q"]]}
    return {role: drawn[role].reshape(shape) for role, shape in shapes.items()}


def _numbers(dtype: str, count: int, rng: np.random.Generator) -> Array:
    bits = _MANTISSA[dtype]
    half = capacity(dtype) // 2
    index = rng.choice(2 * half, size=count, replace=False)
    place = index % half
    mantissa = 1.0 + (place & ((1 << bits) - 1)) / (1 << bits)
    return np.where(index < half, 1.0, -1.0) * mantissa * 2.0 ** (LOWEST + (place >> bits))


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of one tensor, an array of each index; `known` where the number is one of it."""

    head: Array
    row: Array
    column: Array
    known: Array
    zero: Array


@dataclass(slots=True)
class Tags:
    """Looks numbers up. `forms` are the factors by which a kernel may have multiplied the tensor beforehand."""

    tensor: Array
    dtype: str
    forms: tuple[float, ...] = (1.0,)
    _tables: list[tuple[Array, Array]] = field(default_factory=list[tuple[Array, Array]])

    def __post_init__(self) -> None:
        kept = {"float16": np.float16}.get(self.dtype, np.float32)
        for factor in self.forms:
            for kind in dict.fromkeys((np.float32, kept)):
                numbers = (self.tensor.astype(np.float32) * np.float32(factor)).astype(kind).astype(np.float32).ravel()
                order = np.argsort(numbers, kind="stable")
                self._tables.append((numbers[order], order))

    def find(self, values: Array) -> Elements:
        """The elements that `values` (float32, any shape) are, by the form that knows most of them."""
        best = max((self._codes(values, *table) for table in self._tables), key=lambda codes: int((codes >= 0).sum()))
        zero = values == 0
        known = best >= 0
        _, heads, rows, width = self.tensor.shape
        code = np.where(known, best, 0)
        return Elements(code // (rows * width) % heads, code // width % rows, code % width, known, zero)

    def _codes(self, values: Array, numbers: Array, order: Array) -> Array:
        at = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        return np.where((numbers[at] == values) & (values != 0), order[at], NONE)
