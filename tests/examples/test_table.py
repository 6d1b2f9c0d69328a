"""Spec x kernel x level: what this machine can show of every example, through the whole pipeline."""

from __future__ import annotations

import pytest

from cubridge_engine.compile.toolchain import find_nvcc, find_nvrtc
from cubridge_engine.pipeline.adapt import adapt
from cubridge_engine.verify.run import VerifyOptions

from .conftest import EXAMPLES, ROOT

pytestmark = pytest.mark.slow

# flash_fwd_scalar computes in fp32, flash_fwd_sm80 in fp16 and bf16; the other pairs are refused, of which two are
# tried.
SCALAR = {"bert_padding_10000", "bshd_fp32_causal", "per_head_loop"}
REFUSED = {("causal_sdpa", "flash_fwd_scalar"): "CB303", ("bshd_fp32_causal", "flash_fwd_sm80"): "CB303"}
PAIRS = [(name, "flash_fwd_scalar" if name in SCALAR else "flash_fwd_sm80") for name in EXAMPLES]


@pytest.mark.parametrize(("example", "kernel"), [*PAIRS, *REFUSED])
def test_level_reached(example: str, kernel: str) -> None:
    path, spec = ROOT / "expert_kernels" / kernel / "kernel.cu", ROOT / "examples" / f"{example}.py"
    done = adapt(str(path), str(spec), checks=VerifyOptions(archs=("sm_80",), use_gpu=False))
    codes = [d["code"] for d in done.diagnostics if d["severity"] == "error"]
    refused = REFUSED.get((example, kernel))
    if refused is not None:
        assert refused in codes
        assert done.text is None
        return
    assert codes == []
    compiler = find_nvrtc() is not None or find_nvcc() is not None
    assert done.level == ("compiled" if compiler else "ir")
    assert done.applicability == ("unverified" if compiler else "sketch")
    assert done.hunks or done.bindings
    assert done.text is not None
    assert done.text.startswith("// cubridge:")
    report = done.report
    assert report is not None
    assert all(case.passed for case in report.cases)
    assert all(p.rejected for p in report.power if p.kind == "output")
    assert {c.arch for c in report.compiled} <= {"sm_80"}
    spilled = {c.instantiation for c in report.compiled if c.spill_bytes}
    assert bool(spilled) == any(d["code"] == "CB609" for d in done.diagnostics), "a spill is said, never hidden"
