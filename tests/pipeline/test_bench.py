"""`bench` without a GPU: who takes part, on which inputs, against which results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cubridge_engine.device.timing import relative_error
from cubridge_engine.pipeline import bench as module
from cubridge_engine.pipeline import peers
from cubridge_engine.pipeline.bench import Bench, Request, assemble, bench, checked
from cubridge_engine.pipeline.common import Loaded, load
from cubridge_engine.pipeline.files import Options
from cubridge_engine.verify.stages import Stages

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu"
SMALL = {"B": 2, "H": 4, "S": 130}


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(function: Any, **_: object) -> Any:
        return function

    def uncompiled(problem: peers.Problem) -> Any:
        return peers.flex(problem, compiled=False)

    monkeypatch.setattr(torch, "compile", as_it_is)
    monkeypatch.setattr(module, "flex", uncompiled)


def loaded(spec: Path, kernel: Path = KERNEL, head_dim: int | None = None) -> Loaded:
    found: list[Any] = []
    stages = Stages(("parse", "lift", "spec"), lambda *_: None)
    result = load(str(kernel), str(spec), Options(head_dim=head_dim), (), stages, found)
    assert result is not None, found
    assert not result.failed, found
    return result


def assembled(spec: Path, shape: dict[str, int], operator: Any) -> Bench:
    return assemble(loaded(spec), Request(shape=shape), Options(), lambda *_: None, device="cpu", operator=operator)


def no_kernel(q: Any, _k: Any, v: Any) -> Any:
    return torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("spec", "limit", "left_out", "pairs"),
    [
        ("causal_sdpa", 1e-3, {}, 2 * 4 * 130 * 131 // 2),
        ("gemma2_softcap_window", 8e-3, {"SDPA": "the score is more than a factor"}, 2 * 4 * (64 * 65 // 2 + 66 * 64)),
        (
            "sigmoid_attention",
            2e-3,
            dict.fromkeys(("SDPA", "FlexAttention"), "the weights are no softmax"),
            2 * 4 * 130 * 131 // 2,
        ),
    ],
)
def test_everyone_computes_the_spec(spec: str, limit: float, left_out: dict[str, str], pairs: int) -> None:
    done = assembled(ROOT / "examples" / f"{spec}.py", SMALL, no_kernel)
    assert done.out == left_out
    assert done.pairs == pairs
    everyone = {"kernel", "eager", "torch.compile", "SDPA", "FlexAttention"}
    assert set(done.calls) == everyone - set(left_out)
    with torch.no_grad():
        for name, calls in done.calls.items():
            for call, wanted in zip(calls, done.wanted, strict=True):
                assert (relative_error(call(), wanted) < limit) == (name != "kernel"), name


def test_a_wrong_or_failing_kernel_is_told_apart() -> None:
    wanted = [torch.ones(3)]
    wrong = checked("kernel", [lambda: torch.zeros(3)], wanted, 1e-3)
    assert wrong is not None
    assert wrong.code == "CB652"
    nan = checked("kernel", [lambda: torch.full((3,), torch.nan)], wanted, 1e-3)
    assert nan is not None
    assert nan.code == "CB652"

    def fails() -> Any:
        raise ValueError("alignment of the rows of k: expected 16 bytes")

    failed = checked("kernel", [fails], wanted, 1e-3)
    assert failed is not None
    assert failed.code == "CB653"
    assert "alignment of the rows of k" in failed.message
    assert checked("kernel", [lambda: torch.ones(3)], wanted, 1e-3) is None


def test_sizes_that_the_spec_does_not_take_are_refused() -> None:
    spec = ROOT / "examples" / "document_mask.py"  # its ids are read at queries and at keys
    read = loaded(spec)
    assert read.attention is not None
    with pytest.raises(Exception, match=r"the spec is not defined for .*Sq = 128, Sk = 256"):
        module.sizes_for(read.attention, read.lifted.kernel, {"Sq": 128, "Sk": 256}, read.program.example)
    with pytest.raises(Exception, match="it is written for D = 64, not 96"):
        module.sizes_for(read.attention, read.lifted.kernel, {"D": 96}, read.program.example)


def test_without_a_device_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = bench(str(KERNEL), str(ROOT / "examples" / "causal_sdpa.py"))
    assert [d["code"] for d in done.diagnostics] == ["CB650"]
    assert done.exit_code == 3
    assert not done.contenders
