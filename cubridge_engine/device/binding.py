"""From tensors and sizes to the ordered arguments of a kernel, by the roles of its contract."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..compile.contract import Contract
from ..compile.parameters import POINTER_DTYPES, STRUCT, Parameter
from ..compile.size_text import evaluate_size
from ..compile.tensor_maps import MapShape, map_shape
from ..diagnostics import Diagnostic, make

LOG2E = math.log2(math.e)
_AXES = {"b": 0, "h": 1, "row": 2, "col": 3}
_C_TYPES: dict[str, Callable[[Any], Any]] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "bool": ctypes.c_bool,
}
_INTEGER_BITS = {"int32": 32, "int64": 64}
_FLOATS = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: a device address (type ends in ``*``), a number, or a tensor map: `map` describes it, and
    the value is the address of its data. `owner` keeps a tensor's memory alive. A struct has its `parts` by byte
    offset, and its size in bytes as its value.
    """

    name: str
    type: str
    value: int | float
    owner: object = field(default=None, compare=False, repr=False)
    map: MapShape | None = None
    parts: tuple[tuple[int, Argument], ...] = ()

    def ctype(self) -> Any:
        """The value as the ctypes object whose address cuLaunchKernel takes."""
        if self.type == STRUCT:
            block = (ctypes.c_char * int(self.value))()
            for offset, part in self.parts:
                held = part.ctype()
                ctypes.memmove(ctypes.byref(block, offset), ctypes.byref(held), ctypes.sizeof(held))
            return block
        if self.type in POINTER_DTYPES:
            return ctypes.c_uint64(int(self.value))
        return _C_TYPES[self.type](self.value)


def dtype_name(tensor: Any) -> str:
    """``float16`` for torch.float16."""
    return str(tensor.dtype).removeprefix("torch.")


def sizes_of(tensors: Mapping[str, Any]) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk, D and Dv of tensors q [B, H, Sq, D], k [B, Hkv, Sk, D] and v [B, Hkv, Sk, Dv]."""
    batch, heads, sq, head_dim = (int(n) for n in tensors["q"].shape)
    kv_heads, sk = int(tensors["k"].shape[1]), int(tensors["k"].shape[2])
    sizes = {"B": batch, "H": heads, "Hkv": kv_heads, "Sq": sq, "Sk": sk, "D": head_dim}
    return {**sizes, "Dv": int(tensors["v"].shape[3])} if "v" in tensors else sizes


class _Refused(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(frozen=True, slots=True)
class _Values:
    contract: Contract
    dtype: str
    tensors: Mapping[str, Any]
    sizes: Mapping[str, int]
    bindings: Mapping[str, Any]

    def tensor(self, parameter: Parameter) -> Any:
        kind, _, name = parameter.role.partition(":")
        for key in (parameter.name, parameter.role, name or kind):
            for table in (self.tensors, self.bindings):
                if hasattr(table.get(key), "data_ptr"):
                    return table[key]
        raise _Refused(make("CB645", None, name=parameter.name, role=parameter.role))

    def has(self, parameter: Parameter) -> bool:
        """Whether the caller gives a value, or the tensor whose stride it is."""
        kind, _, name = parameter.role.partition(":")
        keys = {parameter.name, parameter.role, name, name.rpartition(".")[0] if kind == "stride" else name}
        return any(table.get(key) is not None for key in keys for table in (self.tensors, self.bindings))

    def checked(self, parameter: Parameter) -> Any:
        """The tensor of a pointer parameter, refused where the kernel would read something else from it."""
        tensor = self.tensor(parameter)
        wanted = POINTER_DTYPES.get(parameter.type) or self.dtype
        if dtype_name(tensor) != wanted:
            self.refuse(parameter, f"it is {dtype_name(tensor)}, the kernel reads {wanted}")
        if parameter.role in ("q", "k", "v", "o"):
            self.check_rows(parameter, tensor)
        elif parameter.role == "lse" and not tensor.is_contiguous():
            self.refuse(parameter, "it is not contiguous")
        return tensor

    def tensor_map(self, parameter: Parameter, tensor: Any) -> MapShape:
        box = parameter.box
        assert box is not None, "a contract's tensor map has a box"
        width = int(tensor.element_size())
        sizes = {"Dv": self.sizes["D"], **self.sizes, "element_bytes": width}
        extents = (evaluate_size(box.columns, sizes), evaluate_size(box.rows, sizes))
        return map_shape(tensor.shape, tensor.stride(), width, extents, box.swizzle, dtype_name(tensor))

    def check_rows(self, parameter: Parameter, tensor: Any) -> None:
        strides = tensor.stride()
        if tensor.shape[-1] > 1 and strides[-1] != 1:
            self.refuse(parameter, "its last dimension is not contiguous")
        unit = self.contract.alignment_bytes
        # A stride of a dimension of one index is never multiplied by anything but zero.
        steps = [s for s, n in zip(strides[:-1], tensor.shape[:-1], strict=True) if n > 1]
        if tensor.data_ptr() % unit or any(step * tensor.element_size() % unit for step in steps):
            self.refuse(parameter, f"its rows are not aligned to {unit} bytes")

    def refuse(self, parameter: Parameter, reason: str) -> None:
        raise _Refused(make("CB646", None, name=parameter.name, reason=reason))

    def number(self, parameter: Parameter) -> int | float:
        kind, _, name = parameter.role.partition(":")
        for key in (parameter.name, parameter.role, name or kind):
            if key in self.bindings and not hasattr(self.bindings[key], "data_ptr"):
                return self.bindings[key]
        if kind == "stride":
            return self.stride(parameter, name)
        if kind in self.sizes:
            return self.sizes[kind]
        if parameter.role == "value":
            return parameter.number(self.sizes)
        computed = _COMPUTED.get(parameter.role)
        value = computed(self) if computed else None
        if value is None:
            raise _Refused(make("CB645", None, name=parameter.name, role=parameter.role))
        return value

    def stride(self, parameter: Parameter, place: str) -> int:
        owner, _, axis = place.rpartition(".")
        role = owner if owner in ("q", "k", "v", "o") else f"operand:{owner}"
        tensor = self.tensor(Parameter(parameter.name, role, "T*"))
        index = _AXES[axis] - 4 + tensor.dim() if tensor.dim() < 4 and axis in ("row", "col") else _AXES[axis]
        if not 0 <= index < tensor.dim():
            self.refuse(parameter, f"{owner} has no dimension for {axis}")
        # A broadcast dimension (one index, or expanded) does not move.
        return int(tensor.stride(index)) if tensor.shape[index] > 1 else 0


_COMPUTED: dict[str, Callable[[_Values], int | float | None]] = {
    "group": lambda values: values.sizes["H"] // values.sizes["Hkv"],
    "scale": lambda values: values.bindings.get("scale"),
    "scale_log2": lambda values: values.bindings["scale"] * LOG2E if "scale" in values.bindings else None,
}


def _fits(parameter: Parameter, value: int | float) -> bool:
    bits = _INTEGER_BITS.get(parameter.type)
    return bits is None or (float(value).is_integer() and -(1 << (bits - 1)) <= value < 1 << (bits - 1))


def _argument(values: _Values, parameter: Parameter) -> Argument:
    if parameter.type == STRUCT:
        parts = tuple((field.offset, _argument(values, field.parameter)) for field in parameter.fields)
        return Argument(parameter.name, STRUCT, parameter.size, parts=parts)
    if parameter.optional and not values.has(parameter):
        return Argument(parameter.name, parameter.type, 0)
    if parameter.is_pointer or parameter.box is not None:
        tensor = values.checked(parameter)
        if parameter.box is not None:
            # A tensor without elements has no address, but the driver wants one; nothing is read through that map.
            address = int(tensor.data_ptr()) or int(values.tensors["q"].data_ptr())
            return Argument(parameter.name, parameter.type, address, tensor, values.tensor_map(parameter, tensor))
        return Argument(parameter.name, parameter.type, int(tensor.data_ptr()), tensor)
    value = values.number(parameter)
    if not _fits(parameter, value):
        raise _Refused(make("CB649", None, name=parameter.name, value=value, type=parameter.type))
    return Argument(parameter.name, parameter.type, float(value) if parameter.type in _FLOATS else int(value))


def bind_arguments(
    contract: Contract,
    tensors: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    bindings: Mapping[str, Any] | None = None,
) -> tuple[list[Argument], list[Diagnostic]]:
    """The kernel's arguments in order, and what is wrong (CB645, CB646, CB649); no arguments when something is.

    `tensors` holds torch tensors q, k, v, o of shape [B, heads, length, D] (any strides: pass a transposed view of
    BSHD) and lse [B, H, Sq]; `sizes` defaults to what q and k say. `bindings` gives the rest by parameter name, by
    role, or by the role's name: ``scale`` (natural units; scale_log2 follows from it), ``causal``, tensors, scalars.
    A workspace is a tensor of zeros under the parameter's name; an optional argument without a value is null, or 0.
    """
    dtype = dtype_name(tensors["q"])
    values = _Values(contract, dtype, tensors, sizes or sizes_of(tensors), bindings or {})
    arguments: list[Argument] = []
    diagnostics: list[Diagnostic] = []
    for parameter in contract.parameters:
        try:
            arguments.append(_argument(values, parameter))
        except _Refused as refused:
            diagnostics.append(refused.diagnostic)
    return ([] if diagnostics else arguments), diagnostics
