"""A simulated launch from a contract: arrays in, the arguments of ``Module.launch`` out. NumPy alone, no torch.

call = prepare_call(contract, instance, sizes, {"q": q, "k": k, "v": v}, {"scale": 0.125, "causal": 1})
run = module.launch(name, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared)
o = output(call, run, "o")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile.contract import Contract, Instance
from ..compile.parameters import POINTER_DTYPES, Parameter
from ..device.binding import bind_arguments
from ..diagnostics import Diagnostic
from .buffers import Buffer
from .run import Run
from .tensors import ELEMENTS, SimulatedTensor, bits_of, floats, place, simulated_argument, workspaces_of

Array = NDArray[Any]
_ROLES = ("q", "k", "v", "o")


@dataclass(frozen=True, slots=True)
class Call:
    """What ``Module.launch`` takes. `buffers` by role, or by the name of a scratch parameter or an extra tensor;
    `layouts` the order of the axes of q, k, v and o in their buffers; `dtypes` of the buffers' elements. With
    `diagnostics` there are no arguments.
    """

    args: tuple[object, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    buffers: Mapping[str, Buffer]
    layouts: Mapping[str, str]
    dtypes: Mapping[str, str]
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(slots=True)
class _Memory:
    """The tensors of one call, by role."""

    tensors: dict[str, SimulatedTensor] = field(default_factory=dict[str, SimulatedTensor])
    layouts: dict[str, str] = field(default_factory=dict[str, str])
    dtypes: dict[str, str] = field(default_factory=dict[str, str])
    unit: int = 16  # alignment in bytes that the contract asks for

    def add(self, role: str, array: Array, dtype: str, access: str, layout: str, isolate: int) -> None:
        """A ``[B, H, S, D]`` array of bits, in the order of axes that `layout` names."""
        self.tensors[role] = place(array, layout, role.upper(), dtype, self.unit, access, isolate)
        self.layouts[role], self.dtypes[role] = layout, dtype


def prepare_call(
    contract: Contract,
    instance: Instance,
    sizes: Mapping[str, int],
    tensors: Mapping[str, Array],
    values: Mapping[str, Any] | None = None,
    *,
    isolate: bool = True,
    layouts: Mapping[str, str] | None = None,
) -> Call:
    """The launch of `instance` on these tensors.

    `sizes` has B, H, Hkv, Sq, Sk, D (and Dv where it is other). `tensors` are arrays of numbers: q [B, H, Sq, D],
    k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], and extra tensors by parameter name. `values` gives scalars as
    ``bind_arguments`` takes them: ``scale`` (default D ** -0.5), ``causal`` (default 0), others by name. O and LSE
    are poisoned unless the contract fills them. `isolate`: every head whose stride the kernel is told lies in an
    allocation of its own, with a red zone behind it. `layouts` gives for q, k, v and o ``bhsd``, ``bshd`` or ``padded``
    (as `tensors.place`), heeded where the kernel is told all strides of the tensor. What is missing is in
    ``Call.diagnostics`` (CB645, CB646, CB649).
    """
    sizes = {"Dv": sizes["D"], **sizes}
    memory = _memory(contract, instance, sizes, tensors, isolate, layouts or {})
    scratch = workspaces_of(contract, sizes)
    found: dict[str, Any] = {**memory.tensors, **scratch}
    given = {"scale": sizes["D"] ** -0.5, "causal": 0, **(values or {})}
    arguments, problems = bind_arguments(contract, found, sizes, {**found, **given})
    shape = contract.launch(sizes, instance.dtype)
    # A scratch parameter may be called as a role is: it is not that tensor.
    clash = scratch.keys() & memory.tensors.keys()
    buffers = {f"{name} (scratch)" if name in clash else name: tensor.buffer for name, tensor in found.items()}
    args = tuple(simulated_argument(argument) for argument in arguments)
    return Call(
        args, shape.grid, shape.block, shape.dynamic_shared_bytes, buffers, memory.layouts, memory.dtypes,
        tuple(problems),
    )  # fmt: skip


def _memory(
    contract: Contract, instance: Instance, sizes: Mapping[str, int], tensors: Mapping[str, Array], isolate: bool,
    layouts: Mapping[str, str],
) -> _Memory:  # fmt: skip
    free = {role: layout for role, layout in layouts.items() if _told_all(contract, role)}
    memory = _Memory(unit=contract.alignment_bytes)
    by_role = {p.role: p for p in contract.leaves}
    extra = {p.name: p for p in contract.leaves if p.role.startswith("operand:")}
    for name, array in tensors.items():
        if name in _ROLES:
            dtype = _dtype(by_role[name], instance)
            owner = _owner(by_role[name])
            spread = _told(contract, owner) if isolate else 0
            layout = free.get(owner, by_role[owner].layout)
            memory.add(name, bits_of(array, dtype), dtype, "in", layout, spread)
        elif name in extra:
            memory.tensors[name] = _operand(name, array, _dtype(extra[name], instance))
    o_shape = sizes["B"], sizes["H"], sizes["Sq"], sizes["Dv"]
    o = by_role["o"]
    dtype = _dtype(o, instance)
    spread = _told(contract, _owner(o)) if isolate else 0
    layout = free.get(_owner(o), by_role[_owner(o)].layout)
    memory.add("o", _filled(o, o_shape, dtype), dtype, _access(o), layout, spread)
    lse = by_role.get("lse")
    access = _access(lse) if lse is not None else "in"
    buffer = Buffer(_filled(lse, o_shape[:3], "float32"), access, "LSE")
    memory.tensors["lse"] = SimulatedTensor(buffer, o_shape[:3], buffer.strides, "float32")
    memory.dtypes["lse"] = "float32"
    return memory


def _owner(parameter: Parameter) -> str:
    """The tensor whose strides a tensor has: its own, or those of the one that its layout names."""
    return parameter.layout if parameter.layout in _ROLES else parameter.role


def _told(contract: Contract, role: str) -> int:
    """How many leading axes of a tensor have a stride that the kernel is told: those can lie apart."""
    told = {p.role.rpartition(".")[2] for p in contract.leaves if p.role.startswith(f"stride:{role}.")}
    if any(p.role == role and p.box is not None for p in contract.leaves):
        return 2
    return ("b" in told) + ("b" in told and "h" in told)


def _told_all(contract: Contract, role: str) -> bool:
    """True where the kernel is told the strides of batch, head and row."""
    told = {p.role for p in contract.leaves}
    return all(f"stride:{role}.{axis}" in told for axis in ("b", "h", "row"))


def _dtype(parameter: Parameter, instance: Instance) -> str:
    return POINTER_DTYPES.get(parameter.type) or instance.dtype


def _access(parameter: Parameter) -> str:
    return "out" if parameter.fill is None else "inout"


def _filled(parameter: Parameter | None, shape: Sequence[int], dtype: str) -> Array:
    fill = parameter.fill if parameter is not None and parameter.fill is not None else 0.0
    return bits_of(np.full(shape, fill), dtype)


def _operand(name: str, array: Array, dtype: str) -> SimulatedTensor:
    held = bits_of(array, dtype) if dtype in ELEMENTS else array.astype(dtype)
    buffer = Buffer(held, "in", name)
    return SimulatedTensor(buffer, array.shape, buffer.strides[: array.ndim], dtype)


def output(call: Call, run: Run, role: str = "o") -> Array:
    """An output of a run as float64: o ``[B, H, Sq, Dv]`` whatever its layout, lse ``[B, H, Sq]``."""
    array = floats(run.outputs[call.buffers[role].name], call.dtypes[role])
    return array.transpose(0, 2, 1, 3) if call.layouts.get(role) == "bshd" else array
