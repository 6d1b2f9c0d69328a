"""flash_decode on this device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cubridge_engine.compile import Instance, compile_contract, read_contract
from cubridge_engine.device import bind_arguments, device_available, open_runner, workspaces

from .problems import Inputs

FOLDER = Path(__file__).parents[2] / "expert_kernels/flash_decode"


class Ours:
    """The kernel, compiled for this device; `source` in its place where it is given, `head_dims` only, if any."""

    def __init__(self, source: bytes | None = None, head_dims: tuple[int, ...] = ()) -> None:
        contract, problems = read_contract(FOLDER / "contract.toml")
        device = device_available()
        if contract is None or device is None:
            raise RuntimeError("; ".join(d.message for d in problems) or "no CUDA device")
        self.contract = contract
        wanted = tuple(i for i in contract.instances if not head_dims or i.head_dim in head_dims)
        self.compiled = compile_contract(contract, source, arch=device.arch, instances=wanted)
        runner, problems = open_runner(self.compiled)
        if runner is None:
            raise RuntimeError("; ".join(d.message for d in (*self.compiled.diagnostics, *problems)))
        self.runner = runner

    def instance(self, x: Inputs) -> Instance:
        """The kernel for these widths and rows. Raises RuntimeError where there is none."""
        _, h, sq, d = x.q.shape
        dtype = str(x.q.dtype).removeprefix("torch.")
        found = self.contract.instance(dtype, d, int(x.v.shape[3]), h // int(x.k.shape[1]) * sq)
        if found is None:
            raise RuntimeError(self.contract.missing_instance(dtype, d).message)
        return found

    def prepare(self, x: Inputs) -> Callable[[], Any]:
        """A launch that writes x.o and x.lse, and returns x.o."""
        b, h, sq, d = x.q.shape
        sizes = {"B": b, "H": h, "Hkv": int(x.k.shape[1]), "Sq": sq, "Sk": x.sk, "D": d, "Dv": int(x.v.shape[3])}
        instance = self.instance(x)
        k, v = (c.transpose(1, 2) for c in x.cache) if x.page else (x.k, x.v)
        tensors = {"q": x.q, "k": k, "v": v, "o": x.o, "lse": x.lse}
        given: dict[str, Any] = {"scale": d**-0.5, "causal": int(x.causal), **workspaces(self.contract, sizes)}
        if x.page:
            given |= {"block_table": x.table, "page_size": x.page}
        if x.kv_lengths is not None:
            given["kv_lengths"] = x.kv_lengths
        arguments, problems = bind_arguments(self.contract, tensors, sizes, given)
        if problems:
            raise RuntimeError("; ".join(p.message for p in problems))
        start = self.runner.repeatedly(instance.expression, self.contract.launch(sizes, instance.dtype), arguments)
        return lambda: (start(), x.o)[1]

    def figures(self) -> dict[str, Any]:
        """Registers and spilled bytes by instance."""
        return {
            k.expression: {"registers": k.registers, "spill_bytes": (k.spill_stores or 0) + (k.spill_loads or 0)}
            for k in self.compiled.kernels
        }
