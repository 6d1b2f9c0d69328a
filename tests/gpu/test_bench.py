"""`cubridge bench` on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cubridge_engine.pipeline.bench import Request, bench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]
KERNEL = str(ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu")


def test_a_kernel_is_measured_beside_its_peers() -> None:
    request = Request({"B": 2, "H": 8, "S": 1024}, rounds=10)
    done = bench(KERNEL, str(ROOT / "examples" / "causal_sdpa.py"), request)
    assert not [d for d in done.diagnostics if d["severity"] == "error"]
    rows = {one.name: one for one in done.contenders}
    assert {"kernel", "eager", "torch.compile", "SDPA"} <= {name for name, one in rows.items() if one.ms is not None}
    assert all(one.error is not None and one.error < 4e-3 for one in rows.values() if one.ms is not None)
    assert done.pairs == 2 * 8 * 1024 * 1025 // 2
    assert rows["kernel"].tflops is not None
    assert 1 < rows["kernel"].tflops < 2000


def test_a_kernel_that_computes_something_else_is_not_timed() -> None:
    done = bench(KERNEL, str(ROOT / "examples" / "gemma2_softcap_window.py"), Request({"B": 1, "H": 8, "S": 512}))
    assert [d["code"] for d in done.diagnostics if d["severity"] == "error"] == ["CB652"]
    assert not done.contenders
