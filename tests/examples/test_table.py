"""Spec x kernel x level: what a machine without a GPU can show of every example, through the whole pipeline.

An example goes to level ``simulated`` on one kernel, those that are alike with CUBRIDGE_CORPUS only; ``python -m
bench.examples`` takes all pairs there.
"""

from __future__ import annotations

import os

import pytest

from cubridge_engine.compile.toolchain import find_nvcc, find_nvrtc
from cubridge_engine.pipeline.adapt import adapt
from cubridge_engine.verify.subject import VerifyOptions

from .conftest import EXAMPLES, ROOT

pytestmark = pytest.mark.slow

# flash_fwd_scalar computes in fp32, flash_fwd_sm80 in fp16 and bf16. Two pairs cross over: a kernel may compute in
# another dtype than the spec.
SCALAR = {
    "bert_padding_10000",
    "bshd_fp32_causal",
    "image_relative_position",
    "per_head_loop",
    "relu_attention",
    "retention",
    "speculative_decode",
    "vit_fused_qkv",
}
PAIRS = [(name, "flash_fwd_scalar" if name in SCALAR else "flash_fwd_sm80") for name in EXAMPLES]
CROSSED = [("causal_sdpa", "flash_fwd_scalar"), ("bshd_fp32_causal", "flash_fwd_sm80")]
# Weights that are no softmax change the structure of a kernel: each on both.
CROSSED += [("sigmoid_attention", "flash_fwd_scalar")]
# So does looking rows up in pages.
CROSSED += [("paged_kv_cache", "flash_fwd_scalar")]
CROSSED += [("relu_attention", "flash_fwd_sm80"), ("retention", "flash_fwd_sm80")]
# Kinds of edits of which each run has another example on the same kernel: `make corpus` runs these too.
ALIKE = {
    ("bshd_fp32_causal", "flash_fwd_scalar"),
    ("gated_window", "flash_fwd_sm80"),
    ("grok_softcap", "flash_fwd_sm80"),
    ("llama_gqa_expand", "flash_fwd_sm80"),
    ("longformer_two_sided_window", "flash_fwd_sm80"),
    ("paged_kv_cache", "flash_fwd_scalar"),
    ("per_head_loop", "flash_fwd_scalar"),
    ("relu_attention", "flash_fwd_scalar"),
    ("retention", "flash_fwd_scalar"),
    ("sdpa_with_bias", "flash_fwd_sm80"),
    ("shared_question", "flash_fwd_sm80"),
    ("sigmoid_attention", "flash_fwd_scalar"),
    ("varlen_cu_seqlens", "flash_fwd_sm80"),
    ("vit_fused_qkv", "flash_fwd_scalar"),
}
ALL = bool(os.environ.get("CUBRIDGE_CORPUS"))
CHOSEN = [pair for pair in (*PAIRS, *CROSSED) if ALL or pair not in ALIKE]


@pytest.mark.parametrize(("example", "kernel"), CHOSEN)
def test_level_reached(example: str, kernel: str) -> None:
    path, spec = ROOT / "expert_kernels" / kernel / "kernel.cu", ROOT / "examples" / f"{example}.py"
    compiler = find_nvrtc() is not None or find_nvcc() is not None
    checks = VerifyOptions(archs=("sm_80",), use_gpu=False)
    done = adapt(str(path), str(spec), checks=checks)
    assert [d["message"] for d in done.diagnostics if d["severity"] == "error"] == []
    assert done.level == ("simulated" if compiler else "ir")
    assert done.applicability == ("verified" if compiler else "sketch")
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
    if compiler:
        grid = {c.name for c in report.cases if c.level == "ir"}
        assert all(set(one.cases) == grid for one in report.simulated if one.head_dim == report.simulated[0].head_dim)
        ran = {one.instantiation for one in report.simulated} | set(report.not_covered)
        assert {one.instantiation for one in report.compiled} <= ran, "an instantiation that did not run is named"


def test_every_run_takes_most_pairs() -> None:
    assert {*PAIRS, *CROSSED} > ALIKE
    assert len(CHOSEN) >= 2 * len(ALIKE)
