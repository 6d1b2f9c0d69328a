"""Spec x kernel x level: what a machine without a GPU can show of every example, through the whole pipeline.

An example goes to level ``simulated`` on one kernel, those that are alike with CUBRIDGE_CORPUS only (``make corpus``);
``python -m bench.examples`` takes all pairs there, and records them in bench/results/examples_cpu.json.
"""

from __future__ import annotations

import json
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
# Pairs whose kinds of edits each run has from another example (named): `make corpus` runs these too. Each run executes
# every example at level ir (test_near_misses.py).
ALIKE = {
    ("alibi", "flash_fwd_sm80"): "t5_dense_bias",  # an operand in the score
    ("bshd_fp32_causal", "flash_fwd_scalar"): "image_relative_position",
    ("causal_bottom_right", "flash_fwd_sm80"): "causal_sdpa",
    ("causal_sdpa", "flash_fwd_scalar"): "bshd_fp32_causal",  # the other way to compute in another dtype
    ("flex_chunked_softcap", "flash_fwd_sm80"): "gemma2_softcap_window",
    ("gated_window", "flash_fwd_sm80"): "gemma2_softcap_window",
    ("grok_softcap", "flash_fwd_sm80"): "gemma2_softcap_window",
    ("llama_gqa_expand", "flash_fwd_sm80"): "gpt_oss_sink",
    ("longformer_two_sided_window", "flash_fwd_sm80"): "gemma2_softcap_window",
    ("mistral_sliding_window", "flash_fwd_sm80"): "gemma2_softcap_window",
    ("paged_kv_cache", "flash_fwd_scalar"): "paged_kv_cache",
    ("per_head_loop", "flash_fwd_scalar"): "image_relative_position",
    ("prefix_lm", "flash_fwd_sm80"): "decode_kv_cache",  # a length per batch in the mask and the range
    ("relu_attention", "flash_fwd_scalar"): "relu_attention",
    ("retention", "flash_fwd_scalar"): "retention",
    ("sdpa_gqa_custom_scale", "flash_fwd_sm80"): "gpt_oss_sink",
    ("sdpa_with_bias", "flash_fwd_sm80"): "t5_dense_bias",
    ("shared_question", "flash_fwd_sm80"): "document_mask",
    ("sigmoid_attention", "flash_fwd_scalar"): "sigmoid_attention",
    ("varlen_cu_seqlens", "flash_fwd_sm80"): "packed_documents",
    ("vit_fused_qkv", "flash_fwd_scalar"): "image_relative_position",
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


def test_what_is_left_out_is_on_record_and_has_others_that_are_like_it() -> None:
    recorded = json.loads((ROOT / "bench/results/examples_cpu.json").read_text())["table"]
    always = {pair for pair in (*PAIRS, *CROSSED) if pair not in ALIKE}
    assert {*PAIRS, *CROSSED} == always | set(ALIKE)
    for (example, kernel), other in ALIKE.items():
        assert other in {name for name, _ in always}, (example, kernel)
        on_record = recorded.get(example, {}).get(kernel)
        assert on_record is None or on_record["level"] == "simulated", (example, kernel)
    assert sum(kernel in recorded.get(example, {}) for example, kernel in ALIKE) > len(ALIKE) // 2
