"""Our kernels on this device: a bundled one as it is, or the text that ``cubridge adapt`` made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cubridge_engine.compile import Instance, Parameter, compile_contract, read_contract
from cubridge_engine.device import Runner, bind_arguments, device_available, open_runner, sizes_of, workspaces

from .adapted import Adapted

ROOT = Path(__file__).parents[2]
Call = Callable[[], Any]
_ELEMENTS = {"half*": "float16", "bfloat16*": "bfloat16", "float*": "float32", "int32*": "int32", "int64*": "int64"}


class Ours:
    """A kernel, compiled for this device: the bundled one `name`, or what was adapted from it."""

    def __init__(self, name: str, made: Adapted | None = None, instances: tuple[Instance, ...] | None = None) -> None:
        contract, problems = read_contract(ROOT / "expert_kernels" / name / "contract.toml")
        device = device_available()
        if contract is None or device is None:
            raise RuntimeError("; ".join(d.message for d in problems) or "no CUDA device")
        self.name, self.made = name, made
        self.contract = contract
        source = None
        if made is not None:
            self.contract = contract.with_parameters(
                tuple(Parameter(name, role, kind) for name, role, kind in made.parameters)
            )
            source = made.text.encode()
        self.compiled = compile_contract(self.contract, source, arch=device.arch, instances=instances)

    @cached_property
    def runner(self) -> Runner:
        """The module on the device: loaded at the first launch, in the thread that launches."""
        runner, problems = open_runner(self.compiled)
        if runner is None:
            raise RuntimeError("; ".join(d.message for d in (*self.compiled.diagnostics, *problems)))
        return runner

    def prepare(self, tensors: dict[str, Any], causal: bool, operands: Mapping[str, Any] | None = None) -> Call | None:
        """A launch on these tensors (q, k, v, o, lse), or None where the kernel has no such instance. `operands` are
        the spec's other tensors by name.
        """
        q, v = tensors["q"], tensors["v"]
        instance = self.contract.instance(str(q.dtype).removeprefix("torch."), q.shape[-1], v.shape[-1])
        if instance is None or (causal and "causal_bottom_right" not in self.contract.masks):
            return None
        sizes = {**sizes_of(tensors), "Dv": int(v.shape[-1])}
        given: dict[str, Any] = {"scale": q.shape[-1] ** -0.5, "causal": int(causal)}
        if self.made is not None:
            given = {**self.made.bindings, **self._extra(self.made, tensors, operands or {})}
        arguments, problems = bind_arguments(self.contract, tensors, sizes, {**workspaces(self.contract), **given})
        if problems:
            raise RuntimeError("; ".join(d.message for d in problems))
        shape = self.contract.launch(sizes, instance.dtype)
        return self.runner.repeatedly(instance.expression, shape, arguments)

    def _extra(self, made: Adapted, tensors: dict[str, Any], operands: Mapping[str, Any]) -> dict[str, Any]:
        """The added tensors by parameter, in the type that the kernel reads, and their strides."""
        import torch

        kinds = {name: kind for name, _, kind in made.parameters}
        found: dict[str, Any] = {param: operands[name] for param, name in made.operands.items()}
        for param, arguments in made.lists.items():
            scope: dict[str, Any] = {}
            exec(compile(made.drop_in, f"{made.spec}_drop_in.py", "exec"), scope)
            values = {**tensors, **operands}
            found[param] = scope["build_tile_list"](*(values[a] for a in arguments))
        values: dict[str, Any] = {}
        for param, tensor in found.items():
            kind = _ELEMENTS.get(kinds[param])
            kind = str(tensors["q"].dtype).removeprefix("torch.") if kinds[param] == "T*" else kind
            values[param] = tensor.contiguous() if kind is None else tensor.to(getattr(torch, kind)).contiguous()
            values |= {s: int(tensor.stride(axis)) for s, axis in made.strides.get(param, {}).items()}
        return values

    def figures(self) -> dict[str, Any]:
        """Registers and spilled bytes by instance."""
        return {
            k.expression: {"registers": k.registers, "spill_bytes": (k.spill_stores or 0) + (k.spill_loads or 0)}
            for k in self.compiled.kernels
        }


def only(name: str, dtype: str, d: int, dv: int) -> tuple[Instance, ...]:
    """The instance of a bundled kernel for a row, so that a variant compiles no other."""
    contract, _ = read_contract(ROOT / "expert_kernels" / name / "contract.toml")
    instance = contract.instance(dtype, d, dv) if contract is not None else None
    return () if instance is None else (replace(instance),)
