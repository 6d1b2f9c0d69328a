"""Tensors of the simulator's device memory: laid out as a case asks for, every head (or batch) in an allocation of
its own with a red zone behind it, and described as the binding of arguments wants to see a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract
from ..compile.parameters import POINTER_DTYPES
from ..device.binding import Argument
from ..simulate import Buffer, TensorMap
from .bindings import tile_arrays
from .grid import LAYOUTS, Case
from .inputs import canonical_view, widened
from .instances import AtHeadDim
from .paged import in_pages, table_for, tables
from .placement import placement
from .prepare import Prepared

Array = NDArray[Any]

# How NumPy holds the elements; bfloat16 as its bits.
ELEMENTS: dict[str, Any] = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}
OPERAND_PAD = 8  # unusable elements behind each row of an extra tensor whose row stride the kernel is told


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


def elements(tensor: Any, dtype: str) -> Array:
    """A torch tensor as NumPy holds that dtype."""
    import torch

    wanted = tensor.to(getattr(torch, dtype)).contiguous()
    if dtype == "bfloat16":
        return wanted.view(torch.int16).numpy().view(np.uint16)
    return wanted.view(torch.uint8).numpy() if dtype == "bool" else wanted.numpy()


def floats(array: Array, dtype: str) -> Array:
    """An output as float64."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def tensors_of(problem: AtHeadDim, prepared: Prepared, unit: int) -> dict[str, SimulatedTensor]:
    """q, k, v, o and lse of a case by role; outputs hold poison (NaN) until they are written."""
    case, dtype = prepared.case, prepared.dtype
    layouts = LAYOUTS[case.layout]
    result: dict[str, SimulatedTensor] = {}

    def placed(role: str, array: Array, access: str = "in") -> SimulatedTensor:
        at = placement(problem.kernel, role, layouts[role], array.shape, case.sizes)
        return place(array, at.layout, role.upper(), dtype, unit, access, at.isolate)

    for item, tensor in zip(problem.attention.inputs, prepared.tensors, strict=True):
        if item.role != "operand":
            view = elements(canonical_view(tensor, item.axes, item.role), dtype)
            view = widened(view, problem.kernel.Dv if item.role == "v" else problem.kernel.D)
            if item.role != "q" and prepared.tables is None:
                for size in problem.binding.pages.values():
                    view = in_pages(view, table_for(case.sizes, size), size)
            result[item.role] = placed(item.role, view)
    o = np.zeros((case.B, case.H, case.Sq, problem.kernel.Dv), ELEMENTS[dtype])
    result["o"] = placed("o", o, "out")
    # A kernel whose weights are no softmax is handed the buffer and leaves it alone.
    written = any(p.role == "lse" for p in problem.kernel.params)
    lse = Buffer(np.zeros((case.B, case.H, case.Sq), np.float32), "out" if written else "in", "LSE")
    result["lse"] = SimulatedTensor(lse, (case.B, case.H, case.Sq), lse.strides, "float32")
    return result


def output_layout(problem: AtHeadDim, case: Case) -> str:
    """The layout that O of a case has."""
    shape = case.B, case.H, case.Sq, problem.kernel.Dv
    return placement(problem.kernel, "o", LAYOUTS[case.layout]["o"], shape, case.sizes).layout


def workspaces_of(contract: Contract, sizes: Mapping[str, int] | None = None) -> dict[str, SimulatedTensor]:
    """Scratch memory by parameter name: zeros where the contract promises them. `sizes`: of the launch, where it
    matters.
    """
    found: dict[str, SimulatedTensor] = {}
    for parameter, count in contract.scratch(sizes or {}).items():
        dtype = POINTER_DTYPES[parameter.type] or "float32"
        empty = np.zeros(count, dtype)
        if parameter.role == "scratch":
            empty.view(np.uint8)[...] = 0xFF  # NaN: what a launch reads of it, it has written itself
        buffer = Buffer(empty, "inout", parameter.name)
        found[parameter.name] = SimulatedTensor(buffer, (count,), buffer.strides, dtype)
    return found


def simulated_argument(argument: Argument) -> object:
    """An argument as ``Module.launch`` takes it."""
    if not isinstance(argument.owner, SimulatedTensor):
        return np.float32(argument.value) if argument.type == "float32" else int(argument.value)
    buffer, shape = argument.owner.buffer, argument.map
    if shape is None:
        return buffer
    return TensorMap(buffer, shape.extents, shape.strides, shape.box, shape.swizzle)


_TYPES = {"float*": "float32", "half*": "float16", "bfloat16*": "bfloat16", "int32*": "int32", "int64*": "int64"}


def operands_of(contract: Contract, problem: AtHeadDim, prepared: Prepared) -> dict[str, Any]:
    """Extra tensors by parameter name, and their strides by the names the kernel gives them.

    Axes whose stride the kernel is told are spread out: slabs of their own for the leading ones, unusable elements
    behind each row. What the kernel takes to be contiguous is.
    """
    by_name = {item.name: t for item, t in zip(problem.attention.inputs, prepared.tensors, strict=True)}
    values: dict[str, Any] = {}
    arrays: dict[str, tuple[Array, str]] = {}
    for parameter, name in problem.binding.operands.items():
        wanted = next(p for p in contract.parameters if p.name == parameter)
        source = by_name[name]
        dtype = prepared.dtype if wanted.type == "T*" else _TYPES.get(wanted.type, "")
        dtype = dtype or str(source.dtype).removeprefix("torch.")
        arrays[parameter] = elements(source, dtype), dtype
    made = prepared.tiles
    if made is None:
        made = tile_arrays(problem.binding, prepared.roles, prepared.case.sizes)
    for parameter, array in made.items():
        arrays[parameter] = array, "int32"
    found = prepared.tables
    for parameter, array in (found or tables(problem.binding.pages, prepared.case.sizes)).items():
        dtype = _TYPES[next(p.type for p in contract.parameters if p.name == parameter)]
        arrays[parameter] = array.astype(dtype), dtype
    for parameter, (array, dtype) in arrays.items():
        told = problem.binding.stride_params.get(parameter, {})
        buffer = _spread(array, parameter, told)
        own = buffer.strides[: array.ndim]  # a single number lies in a buffer of one element
        strides = tuple(s if n > 1 else 0 for s, n in zip(own, array.shape, strict=True))
        values[parameter] = SimulatedTensor(buffer, array.shape, strides, dtype)
        values |= {stride: strides[axis] for stride, axis in told.items()}
    return values


def _spread(array: Array, name: str, told: Mapping[str, int]) -> Buffer:
    free = set(told.values())
    isolate = _leading(array.shape, free, array.ndim - 2)
    # Rows can only be spread where every axis before the last is free to move.
    padded = array.ndim >= 2 and _leading(array.shape, free, array.ndim - 1) == array.ndim - 1
    return Buffer(array, "in", name, isolate=isolate, row_pad=OPERAND_PAD if padded and free else 0)


def _leading(shape: Sequence[int], free: set[int], most: int) -> int:
    """How many leading axes, up to `most`, have a stride of their own (or one index, so that it does not matter)."""
    count = 0
    while count < most and (count in free or shape[count] == 1):
        count += 1
    return count
