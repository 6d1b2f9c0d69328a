"""Both expert kernels on a device against float64: every instance, the shape grid, layouts, GQA, causal, empty rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cubridge_engine.compile import Compiled, Contract, Instance, LaunchShape, compile_contract, compile_source
from cubridge_engine.compile import read_contract as read
from cubridge_engine.device import Argument, device_available, open_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2] / "expert_kernels"
# Error of O relative to the largest element of its row; the floor keeps rows near zero from counting as wrong.
TOLERANCE = {"float16": 4e-3, "bfloat16": 2.5e-2, "float32": 5e-5}
ROW_FLOOR = 1e-3
LSE_TOLERANCE = 2e-4
# B, H, Hkv, Sq, Sk
SHAPES = [
    (1, 2, 2, 128, 128),
    (2, 4, 2, 70, 200),
    (1, 4, 1, 200, 70),
    (1, 1, 1, 1, 1),
    (1, 6, 2, 5, 333),
    (2, 2, 1, 65, 0),
    (1, 3, 3, 1, 513),
    (1, 8, 2, 517, 517),
]
LAYOUTS = ("bhsd", "bshd", "padded")


def contract_of(name: str) -> Contract:
    contract, diagnostics = read(ROOT / name / "contract.toml")
    assert contract is not None, diagnostics
    return contract


CASES = [(n, i) for n in ("flash_fwd_sm80", "flash_fwd_scalar") for i in contract_of(n).instances]


@lru_cache(maxsize=4)
def compiled_of(name: str, arch: str) -> Compiled:
    result = compile_contract(contract_of(name), arch=arch)
    assert result.ok, [d.message for d in result.diagnostics]
    return result


def arrange(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` [B, H, S, D] with the same values and other strides; what lies between the rows is NaN."""
    if layout == "bhsd":
        return x.contiguous()
    if layout == "bshd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    b, h, s, d = x.shape
    room = torch.full((b, s, h, d + 8), float("nan"), dtype=x.dtype, device=x.device)
    view = room[..., :d].transpose(1, 2)
    view.copy_(x)
    return view


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE in float64; causal aligned to the bottom right; a row without a key gives 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    sq, sk = q.shape[2], k.shape[2]
    s = q @ k.transpose(-1, -2) * scale
    if causal:
        i, j = torch.arange(sq, device=q.device)[:, None], torch.arange(sk, device=q.device)[None]
        s = s.masked_fill(j > i + sk - sq, float("-inf"))
    lse = torch.logsumexp(s, -1) if sk else torch.full(s.shape[:-1], float("-inf"), device=q.device).double()
    p = torch.where(lse[..., None].isinf(), 0.0, torch.exp(s - lse[..., None]))
    return p @ v, lse


def row_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    size = wanted.abs().amax(-1, keepdim=True).clamp_min(ROW_FLOOR)
    return float(((got.double() - wanted).abs() / size).max())


@pytest.fixture(params=CASES, ids=lambda case: case[1].expression)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Contract, Instance, Any]]:
    name, instance = request.param
    device = device_available()
    assert device is not None
    runner, diagnostics = open_runner(compiled_of(name, device.arch))
    assert runner is not None, diagnostics
    yield contract_of(name), instance, runner
    runner.close()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_against_float64(case: tuple[Contract, Instance, Any], shape: tuple[int, int, int, int, int]) -> None:
    contract, instance, runner = case
    b, h, hkv, sq, sk = shape
    d, dv = instance.widths
    dtype = getattr(torch, instance.dtype)
    scale = d**-0.5
    for index, causal in enumerate((False, True) if "causal_bottom_right" in contract.masks else (False,)):
        for layout in LAYOUTS:
            generator = torch.Generator("cuda").manual_seed(index)

            def draw(heads: int, length: int, width: int, layout: str = layout, g: Any = generator) -> torch.Tensor:
                x = torch.randn(b, heads, length, width, device="cuda", generator=g)
                return arrange(x.to(dtype), layout)

            # Scores of standard deviation 3: a row max that moves from tile to tile.
            q, k, v = draw(h, sq, d).mul_(3.0), draw(hkv, sk, d), draw(hkv, sk, dv)
            before = [x.clone() for x in (q, k, v)]
            o = arrange(torch.full((b, h, sq, dv), float("nan"), device="cuda", dtype=dtype), layout)
            lse = torch.full((b, h, sq), float("nan"), device="cuda")
            tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
            assert runner.run(contract, instance, tensors, {"scale": scale, "causal": causal}) == []
            wanted, wanted_lse = reference(q, k, v, scale, causal)
            assert row_error(o, wanted) < TOLERANCE[instance.dtype], (causal, layout)
            assert torch.equal(lse.isneginf(), wanted_lse.isneginf())
            live = ~wanted_lse.isneginf()
            assert torch.allclose(lse[live].double(), wanted_lse[live], atol=LSE_TOLERANCE, rtol=0)
            assert (o[~live] == 0).all()
            assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True)), "inputs are not written"


def test_the_comparison_can_fail() -> None:
    """Top-left causal in place of bottom-right, and a head map by modulo, are far outside the tolerance."""
    g = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(1, 4, 70, 64, device="cuda", generator=g)
    k, v = (torch.randn(1, 2, 200, 64, device="cuda", generator=g) for _ in range(2))
    wanted, _ = reference(q, k, v, 0.125, True)
    top_left, _ = reference(q, k[:, :, :70], v[:, :, :70], 0.125, True)
    modulo, _ = reference(q[:, [0, 2, 1, 3]], k, v, 0.125, True)
    assert row_error(top_left, wanted) > 0.1
    assert row_error(modulo[:, [0, 2, 1, 3]], wanted) > 0.1


def test_ptx_of_another_architecture_runs_too() -> None:
    """Code compiled for sm_80 reaches a newer device as PTX, which the driver compiles."""
    contract = contract_of("flash_fwd_sm80")
    compiled = compiled_of("flash_fwd_sm80", "sm_80")
    runner, diagnostics = open_runner(compiled)
    assert runner is not None, diagnostics
    q, k, v = (torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    o, lse = torch.full_like(q, float("nan")), torch.full((1, 2, 100), float("nan"), device="cuda")
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    assert runner.run(contract, contract.instances[0], tensors, {"scale": 0.125, "causal": 1}) == []
    assert row_error(o, reference(q, k, v, 0.125, True)[0]) < TOLERANCE["float16"]
    runner.close()


def test_a_refused_launch_is_a_diagnostic_and_the_device_lives_on() -> None:
    compiled = compile_source(
        'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 7.f; }', path="k.cu", arch="sm_80"
    )
    runner, _ = open_runner(compiled)
    assert runner is not None
    x = torch.zeros(32, device="cuda")
    arguments = [Argument("x", "float*", x.data_ptr(), x)]
    refused = runner.launch("k", LaunchShape((1, 1, 1), (2048, 1, 1), 0), arguments)
    assert refused is not None
    assert refused.code == "CB642"
    too_much = runner.launch("k", LaunchShape((1, 1, 1), (32, 1, 1), 1 << 20), arguments)
    assert too_much is not None
    assert too_much.code == "CB648"
    assert runner.launch("k", LaunchShape((1, 1, 1), (32, 1, 1), 0), arguments) is None
    assert (x == 7).all()
    missing = runner.launch("nope", LaunchShape((1, 1, 1), (32, 1, 1), 0), arguments)
    assert missing is not None
    assert missing.code == "CB647"
    runner.close()


FAULT = """
import sys, torch
from cubridge_engine.compile import LaunchShape, compile_source
from cubridge_engine.device import Argument, open_runner
text = 'extern "C" __global__ void k(float* x) { x[(1ll << 40) + threadIdx.x] = 7.f; }'
runner, _ = open_runner(compile_source(text, path="k.cu", arch="sm_80"))
x = torch.zeros(32, device="cuda")
found = runner.launch("k", LaunchShape((1, 1, 1), (32, 1, 1), 0), [Argument("x", "float*", x.data_ptr(), x)])
sys.stdout.write(f"{found.code} {runner.lost}")
sys.stdout.flush()
import os
os._exit(0)  # the context is gone: tearing torch down would complain
"""


def test_a_fault_is_a_diagnostic_in_a_process_of_its_own() -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=120, cwd=ROOT.parent, check=False
    )
    assert done.stdout == "CB643 True", done.stderr
