"""Exported modules on a device: values, layouts, torch.compile, CUDA graphs, streams, devices, refusals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cubridge_engine.pipeline.adapt import adapt
from cubridge_engine.pipeline.export import export_kernel
from cubridge_engine.pipeline.files import Options
from cubridge_engine.verify.subject import VerifyOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
KERNELS = ["flash_fwd_sm80", "flash_fwd_scalar", *(["flash_fwd_sm90", "flash_fwd_sm90_plain"] if HOPPER else [])]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2.5e-2, torch.float32: 5e-5}
ROW_FLOOR = 1e-3


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def export(kernel: Path, folder: Path, name: str) -> ModuleType:
    """The exported module; its function is `call`."""
    result = export_kernel(str(kernel), f"{name}.py", None, Options())
    assert result.text is not None, result.diagnostics
    (folder / f"{name}.py").write_text(result.text)
    module = imported(folder / f"{name}.py")
    vars(module)["call"] = getattr(module, name)
    return module


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    folder = tmp_path_factory.mktemp("exported")
    return {n: export(ROOT / "expert_kernels" / n / "kernel.cu", folder, f"op_{n}") for n in KERNELS}


@pytest.fixture(params=KERNELS)
def module(request: pytest.FixtureRequest, modules: dict[str, ModuleType]) -> ModuleType:
    return modules[request.param]


def draw(module: ModuleType, b: int, h: int, hkv: int, sq: int, sk: int, seed: int = 0, d: int = 64) -> list[Any]:
    """q, k, v, seen as [B, H, S, D] but in memory as [B, S, H, D]."""
    g = torch.Generator("cuda").manual_seed(seed)
    rows = ((sq, h, 2.0), (sk, hkv, 1.0), (sk, hkv, 1.0))
    kind = module.DTYPES[-1]
    return [
        (scale * torch.randn(b, s, n, d, device="cuda", generator=g)).to(kind).transpose(1, 2) for s, n, scale in rows
    ]


def reference(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1), -torch.inf)
    lse = torch.logsumexp(s, -1)
    return torch.where(lse.isinf()[..., None], 0.0, torch.exp(s - lse[..., None])) @ v, lse


def off(got: Any, wanted: Any) -> float:
    size = wanted.abs().amax(-1, keepdim=True).clamp_min(ROW_FLOOR)
    return float(((got.double() - wanted).abs() / size).max())


def causal_of(module: ModuleType) -> dict[str, bool]:
    return {"causal": True} if "causal" in module.forward.__code__.co_varnames else {}


def test_values_and_lse_match_float64(module: ModuleType) -> None:
    for b, h, hkv, sq, sk in ((2, 4, 2, 70, 200), (1, 2, 2, 333, 333), (1, 4, 1, 1, 513)):
        q, k, v = draw(module, b, h, hkv, sq, sk)
        for options in ({}, causal_of(module)):
            o, lse = module.call(q, k, v, return_lse=True, **options)
            wanted, wanted_lse = reference(q, k, v, bool(options))
            assert off(o, wanted) < TOLERANCE[q.dtype]
            assert torch.allclose(lse.double(), wanted_lse, atol=2e-3, rtol=0)
            assert o.transpose(1, 2).is_contiguous(), "o lies in memory as q does"


def test_a_call_without_rows_or_keys(module: ModuleType) -> None:
    q, k, v = draw(module, 1, 2, 2, 65, 0)
    o, lse = module.call(q, k, v, return_lse=True)
    assert (o == 0).all()
    assert lse.isneginf().all()
    assert module.call(q[:, :, :0], k, v).shape == (1, 2, 0, 64)


def test_torch_compile_gives_the_same_without_a_graph_break(module: ModuleType) -> None:
    def model(q: Any, k: Any, v: Any) -> Any:
        return module.call(q * 0.5, k, v, **causal_of(module)).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) * 2

    q, k, v = draw(module, 2, 4, 2, 130, 130)
    compiled = torch.compile(model, fullgraph=True)
    assert torch.equal(compiled(q, k, v), model(q, k, v))


def test_a_cuda_graph_replays_on_new_inputs(module: ModuleType) -> None:
    q, k, v = draw(module, 2, 4, 2, 130, 300)
    module.call(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = module.call(q, k, v)
        o = module.call(q + first, k, v)
    for seed in (1, 2, 3):
        for old, new in zip((q, k, v), draw(module, 2, 4, 2, 130, 300, seed), strict=True):
            old.copy_(new)
        graph.replay()
        replayed = o.clone()
        assert torch.equal(replayed, module.call(q + module.call(q, k, v), k, v))


def test_the_current_stream_is_used(module: ModuleType) -> None:
    q, k, v = draw(module, 2, 4, 2, 256, 256)
    wanted = module.call(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    late = torch.zeros_like(q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(q)  # a kernel on another stream would read zeros
        o = module.call(late, k, v)
    stream.synchronize()
    assert torch.equal(o, wanted)


def test_another_thread_can_call_it(module: ModuleType) -> None:
    from concurrent.futures import ThreadPoolExecutor

    q, k, v = draw(module, 1, 2, 2, 100, 100)
    with ThreadPoolExecutor(1) as pool:
        o = pool.submit(lambda: module.call(q, k, v)).result()
    assert torch.equal(o, module.call(q, k, v))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_the_device_of_the_inputs_is_used(module: ModuleType) -> None:
    inputs = draw(module, 1, 2, 2, 100, 100)
    o = module.call(*(x.to("cuda:1") for x in inputs))
    assert o.device == torch.device("cuda:1")
    assert torch.equal(o.to("cuda:0"), module.call(*inputs))


def test_what_the_kernel_cannot_read_is_refused(module: ModuleType) -> None:
    q, k, v = draw(module, 1, 2, 2, 64, 64)
    if q.element_size() == 2:
        room = torch.zeros(1, 2, 64, 66, dtype=q.dtype, device="cuda")
        with pytest.raises(ValueError, match=r"alignment of the rows of k: expected 16 bytes, got"):
            module.call(q, room[..., 1:65], v)
    with pytest.raises(ValueError, match=r"stride of the last dimension of v: expected 1"):
        module.call(q, k, v.transpose(2, 3))
    with pytest.raises(ValueError, match=r"device of k: expected cuda:0, got cpu"):
        module.call(q, k.cpu(), v)
    module.call(q, k, v)


def test_backward_says_that_there_is_none(module: ModuleType) -> None:
    q, k, v = draw(module, 1, 2, 2, 64, 64)
    o = module.call(q.requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="forward pass only"):
        o.sum().backward()


# ---- adapted kernels, alone and in their drop-ins


@pytest.mark.parametrize(
    ("kernel", "spec"),
    [
        ("flash_fwd_sm80", "t5_dense_bias"),
        ("flash_fwd_sm80", "document_mask"),
        ("flash_fwd_sm80", "paged_kv_cache"),
        ("flash_fwd_sm80", "siglip_head_72"),
        *([("flash_fwd_sm90_plain", "gemma2_softcap_window")] if HOPPER else []),
    ],
)
def test_an_adapted_kernel_computes_its_spec(kernel: str, spec: str, tmp_path: Path) -> None:
    source, file = ROOT / "expert_kernels" / kernel / "kernel.cu", ROOT / "examples" / f"{spec}.py"
    done = adapt(str(source), str(file), Options(), VerifyOptions(use_gpu=False, use_simulator=False))
    assert done.text is not None, done.diagnostics
    (tmp_path / "adapted.cu").write_text(done.text)
    module = export(tmp_path / "adapted.cu", tmp_path, f"op_{spec}_{kernel}")
    user: Any = imported(file)
    entry, inputs = user.attention, [x.cuda() if isinstance(x, torch.Tensor) else x for x in user.example_inputs()]
    with torch.no_grad():
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        wanted = entry(*wide)
        if done.drop_in is None:
            o = module.call(*inputs)
        else:
            (tmp_path / "adapted_drop_in.py").write_text(done.drop_in)
            drop_in: Any = imported(tmp_path / "adapted_drop_in.py")
            around = getattr(drop_in, "attention_with_kernel", None) or drop_in.attention
            o = around(*inputs, kernel=module.call)
    assert off(o, wanted) < 2 * TOLERANCE[o.dtype]
