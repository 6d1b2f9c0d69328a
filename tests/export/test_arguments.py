"""What an exported module passes to the kernel is, byte by byte, what the engine itself passes."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch

from cubridge_engine.compile import Contract, read_contract
from cubridge_engine.device import bind_arguments
from cubridge_engine.lower import lower, with_header
from cubridge_engine.pipeline.common import load
from cubridge_engine.pipeline.files import Options
from cubridge_engine.pipeline.header import inputs_lines
from cubridge_engine.transfer import transfer
from cubridge_engine.verify.bindings import Given, bind_kernel
from cubridge_engine.verify.contracts import extended
from cubridge_engine.verify.stages import Stages

from .conftest import KERNELS, Importer

EXAMPLES = Path(__file__).parents[2] / "examples"
SCALE = 0.2


def bytes_of(values: list[Any]) -> list[Any]:
    """Comparable forms of an engine's arguments or of a module's."""
    found: list[Any] = []
    for value in values:
        if hasattr(value, "map"):
            value = (value.value, value.map) if value.map is not None else value.ctype()
        found.append((value[0], astuple(value[1])) if isinstance(value, tuple) else bytes(value))
    return found


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "bshd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "padded":
        room = torch.zeros(*x.shape[:3], x.shape[3] + 8, dtype=x.dtype)
        room[..., : x.shape[3]] = x
        return room[..., : x.shape[3]]
    return x


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "padded"])
@pytest.mark.parametrize("name", ["flash_fwd_scalar", "flash_fwd_sm80", "flash_fwd_sm90_plain", "flash_fwd_sm90"])
def test_bundled_kernels(name: str, layout: str, exported: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = exported(KERNELS / name / "kernel.cu")
    contract, _ = read_contract(KERNELS / name / "contract.toml")
    assert contract is not None
    instance = contract.instances[0]
    d, dv = instance.widths
    kind: torch.dtype = getattr(torch, instance.dtype)
    scratch = torch.zeros(8, dtype=torch.int32)
    monkeypatch.setattr(module.KERNELS, "workspace", lambda *_: scratch)
    for b, h, hkv, sq, sk in ((2, 4, 2, 70, 100), (1, 2, 2, 1, 1), (1, 6, 3, 130, 0)):
        q, k, v = (in_layout(torch.randn(b, n, s, w, dtype=kind), layout) for n, s, w in
                   ((h, sq, d), (hkv, sk, d), (hkv, sk, dv)))  # fmt: skip
        o, lse = module.outputs(q, dv, True)
        own: dict[str, Any] = {"scale": SCALE, "causal": 1}
        own |= {p.name: scratch for p in contract.parameters if p.role == "workspace"}
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        wanted, problems = bind_arguments(contract, tensors, None, own)
        assert not problems
        causal = [True] if "causal_bottom_right" in contract.masks else []
        assert bytes_of(module.arguments(o, lse, q, k, v, SCALE, *causal)) == bytes_of(wanted)
        sizes = {"B": b, "H": h, "Hkv": hkv, "Sq": sq, "Sk": sk, "D": d, "Dv": dv}
        assert module.instance(kind, d, dv) == instance.expression
        assert contract.launch(sizes, instance.dtype) == _launched(module, q, k, v, [SCALE, *causal])


def _launched(module: Any, q: Any, k: Any, v: Any, numbers: list[Any]) -> Any:
    """What `forward` hands to the launch, without a device."""
    from cubridge_engine.compile import LaunchShape

    seen: list[Any] = []
    module.KERNELS.launch = lambda _device, _name, grid, block, shared, _given: seen.append((grid, block, shared))
    require = module.require
    module.require = lambda good, what, *rest: require(good or what == "device of q", what, *rest)
    try:
        module.forward(q, k, v, *numbers)
    finally:
        module.require = require
    return LaunchShape(*seen[0])


def adapted(spec: str, kernel: str, folder: Path) -> tuple[Path, Contract, Any]:
    """The kernel adapted to an example (nothing is verified), its contract, and how the engine binds it."""
    source, example = KERNELS / kernel / "kernel.cu", EXAMPLES / f"{spec}.py"
    loaded = load(str(source), str(example), Options(), (), Stages(("parse", "lift", "spec"), lambda *_: None), [])
    assert loaded is not None
    assert loaded.attention is not None
    assert loaded.contract is not None
    result = transfer(loaded.lifted.kernel, loaded.given, tile_lists=True, pages=not loaded.padded)
    assert result.target is not None
    lowered = lower(loaded.lifted, result, loaded.source, spec=str(example))
    assert lowered.text is not None
    lines = (*lowered.header_lines, *inputs_lines(loaded.lifted.kernel, loaded.attention))
    path = folder / f"{spec}.cu"
    path.write_bytes(with_header(lowered.text, lines, "\n"))
    operands = {op.param: op.name for op in result.operands}
    bound = bind_kernel(result.target, loaded.attention, Given(result.bindings, operands))
    assert not bound.diagnostics
    return path, extended(loaded.contract, result.target, operands), bound.binding


def test_a_list_of_tiles_and_the_tensor_that_the_mask_reads(exported: Importer, tmp_path: Path) -> None:
    path, contract, binding = adapted("document_mask", "flash_fwd_sm80", tmp_path)
    module = exported(path)
    assert module.call.__code__.co_varnames[:5] == ("q", "k", "v", "document_ids", "kv_tiles")
    q, k, v = (torch.randn(2, 4, 192, 64, dtype=torch.float16) for _ in range(3))
    ids = torch.zeros(2, 192, dtype=torch.int32)
    tiles = torch.zeros(2, 3, 5, dtype=torch.int32)
    o, lse = module.outputs(q, 64, True)
    given = {"document_ids": ids, "kv_tiles": tiles}
    strides = {
        s: given[param].stride(axis) for param, axes in binding.stride_params.items() for s, axis in axes.items()
    }
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    wanted, problems = bind_arguments(contract, tensors, None, {**binding.values, **given, **strides})
    assert not problems
    assert bytes_of(module.arguments(o, lse, q, k, v, ids, tiles)) == bytes_of(wanted)
    refused = [
        ((q, k, v, ids[:, :100], tiles), r"shape of document_ids: expected \(2, 192\), got \(2, 100\)"),
        ((q, k, v, ids.long(), tiles), r"dtype of document_ids: expected torch.int32, got torch.int64"),
        ((q, k, v, ids, tiles[:, :2]), r"shape of kv_tiles: expected \(2, 3, 'any'\), got \(2, 2, 5\)"),
        ((q, k, v, ids, tiles.transpose(1, 2).contiguous().transpose(1, 2)), "stride 2 of kv_tiles: expected 1, got 3"),
        ((q, k[:, :, :100], v[:, :, :100], ids, tiles), "sizes: expected Sq == Sk, got Sq = 192, Sk = 100"),
        ((q, k, v, ids, tiles), "device of q: expected a CUDA device, got cpu"),
    ]
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            module.call(*arguments)
