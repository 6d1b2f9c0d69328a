"""Tensors of the simulator's device memory: every head (or batch) in an allocation of its own with a red zone behind
it, and described as the binding of arguments wants to see a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile.contract import Contract
from ..compile.parameters import POINTER_DTYPES, STRUCT
from ..device.binding import Argument
from .buffers import Buffer
from .run import Struct
from .tensormap import TensorMap

Array = NDArray[Any]

# How NumPy holds the elements; bfloat16 as its bits.
ELEMENTS: dict[str, Any] = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}


@dataclass(frozen=True, slots=True)
class SimulatedTensor:
    """A tensor in simulated memory, with as much of torch's interface as ``device.bind_arguments`` uses.

    `shape` and `strides` (elements) are in the order that the contract's roles name; `dtype` is torch's word for it.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def data_ptr(self) -> int:
        """The alignment of the address: allocations start at multiples of 256."""
        return self.buffer.offset

    def element_size(self) -> int:
        """Bytes of an element."""
        return int(self.buffer.array.itemsize)

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def stride(self, axis: int | None = None) -> Any:
        """Element strides, or that of one axis."""
        return self.strides if axis is None else self.strides[axis]

    def is_contiguous(self) -> bool:
        """True when no element lies between two others."""
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent > 1 and stride != step:
                return False
            step *= extent
        return True


def place(
    array: Array, layout: str, name: str, dtype: str, unit: int, role: str = "in", isolate: int = 2
) -> SimulatedTensor:
    """A ``[B, H, S, D]`` array in one of the layouts of a case; `unit` is the alignment in bytes that the contract asks
    for: a padded tensor is aligned to no more than that, at its start and in each of its rows. At most `isolate`
    leading axes get slabs of their own: those whose stride the kernel is told.
    """
    if layout == "bshd":
        buffer = Buffer(array.transpose(0, 2, 1, 3), role, name, isolate=min(isolate, 1))
        b, row, h, col = buffer.strides
        return SimulatedTensor(buffer, array.shape, (b, h, row, col), dtype)
    padded = layout == "padded"
    pad = max(unit // array.itemsize, 1) if padded else 0
    buffer = Buffer(array, role, name, isolate=isolate, row_pad=pad, offset=unit if padded else 0)
    return SimulatedTensor(buffer, array.shape, buffer.strides, dtype)


def floats(array: Array, dtype: str) -> Array:
    """An output as float64."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def workspaces_of(contract: Contract, sizes: Mapping[str, int] | None = None) -> dict[str, SimulatedTensor]:
    """Scratch memory by parameter name: zeros where the contract promises them. `sizes`: of the launch, where it
    matters.
    """
    found: dict[str, SimulatedTensor] = {}
    for parameter, count in contract.scratch(sizes or {}).items():
        dtype = POINTER_DTYPES[parameter.type] or "float32"
        empty = np.zeros(count, ELEMENTS.get(dtype, dtype))
        if parameter.fill is not None:
            empty[...] = bits_of(np.full(count, parameter.fill), dtype) if dtype in ELEMENTS else parameter.fill
        elif parameter.role == "scratch":
            empty.view(np.uint8)[...] = 0xFF  # NaN: what a launch reads of it, it has written itself
        buffer = Buffer(empty, "inout", parameter.name)
        found[parameter.name] = SimulatedTensor(buffer, (count,), buffer.strides, dtype)
    return found


_SCALARS: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64, "int32": np.int32, "int64": np.int64, "bool": np.bool_
}  # fmt: skip


def simulated_argument(argument: Argument) -> object:
    """An argument as ``Module.launch`` takes it."""
    if argument.parts or argument.type == STRUCT:
        return Struct({offset: _part(part) for offset, part in argument.parts})
    if not isinstance(argument.owner, SimulatedTensor):
        return np.float32(argument.value) if argument.type == "float32" else int(argument.value)
    buffer, shape = argument.owner.buffer, argument.map
    if shape is None:
        return buffer
    return TensorMap(buffer, shape.extents, shape.strides, shape.box, shape.swizzle)


def _part(argument: Argument) -> object:
    """A field of a struct: a number has the size of its type."""
    if isinstance(argument.owner, SimulatedTensor):
        return simulated_argument(argument)
    return _SCALARS.get(argument.type, np.int64)(argument.value)


def bits_of(array: Array, dtype: str) -> Array:
    """Numbers as NumPy holds that dtype: bfloat16 rounded to nearest even, as its bits."""
    if dtype != "bfloat16":
        return array.astype(ELEMENTS[dtype])
    raw = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)
