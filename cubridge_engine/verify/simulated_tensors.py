"""The tensors of a case in the simulator's device memory (simulate/tensors.py): its inputs, its outputs, the extra
tensors of its spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract
from ..compile.parameters import POINTER_DTYPES
from ..simulate import Buffer
from ..simulate.tensors import ELEMENTS, SimulatedTensor, floats, place, simulated_argument, workspaces_of
from .bindings import tile_arrays
from .grid import LAYOUTS, Case
from .inputs import canonical_view, widened
from .instances import AtHeadDim
from .paged import in_pages, table_for, tables
from .placement import placement
from .prepare import Prepared

Array = NDArray[Any]

__all__ = [
    "ELEMENTS", "SimulatedTensor", "element_types", "elements", "floats", "operands_of", "output_layout", "place",
    "simulated_argument", "tensors_of", "workspaces_of",
]  # fmt: skip

OPERAND_PAD = 8  # unusable elements behind each row of an extra tensor whose row stride the kernel is told


def elements(tensor: Any, dtype: str) -> Array:
    """A torch tensor as NumPy holds that dtype."""
    import torch

    wanted = tensor.to(getattr(torch, dtype)).contiguous()
    if dtype == "bfloat16":
        return wanted.view(torch.int16).numpy().view(np.uint16)
    return wanted.view(torch.uint8).numpy() if dtype == "bool" else wanted.numpy()


def element_types(contract: Contract, dtype: str) -> dict[str, str]:
    """The element types of q, k, v and o by role: `dtype`, unless the kernel takes one of them in another."""
    return {
        leaf.role: POINTER_DTYPES.get(leaf.type) or dtype
        for leaf in contract.leaves
        if leaf.role in ("q", "k", "v", "o")
    }


def tensors_of(contract: Contract, problem: AtHeadDim, prepared: Prepared) -> dict[str, SimulatedTensor]:
    """q, k, v, o and lse of a case by role; outputs hold poison (NaN) until they are written."""
    case, unit = prepared.case, contract.alignment_bytes
    types = element_types(contract, prepared.dtype)
    layouts = LAYOUTS[case.layout]
    result: dict[str, SimulatedTensor] = {}

    def placed(role: str, array: Array, access: str = "in") -> SimulatedTensor:
        at = placement(problem.kernel, role, layouts[role], array.shape, case.sizes)
        return place(array, at.layout, role.upper(), types[role], unit, access, at.isolate)

    for item, tensor in zip(problem.attention.inputs, prepared.tensors, strict=True):
        if item.role != "operand":
            view = elements(canonical_view(tensor, item.axes, item.role), types[item.role])
            view = widened(view, problem.kernel.Dv if item.role == "v" else problem.kernel.D)
            if item.role != "q" and prepared.tables is None:
                for size in problem.binding.pages.values():
                    view = in_pages(view, table_for(case.sizes, size), size)
            result[item.role] = placed(item.role, view)
    o = np.zeros((case.B, case.H, case.Sq, problem.kernel.Dv), ELEMENTS[types["o"]])
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
        wanted = next(p for p in contract.leaves if p.name == parameter)
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
        dtype = _TYPES[next(p.type for p in contract.leaves if p.name == parameter)]
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
