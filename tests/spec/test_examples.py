"""Every file of examples/ reads; what it means is written here once more, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.diagnostics import Severity
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.spec import read_spec

from .test_read_table import same

EXAMPLES = Path(__file__).parents[2] / "examples"
BOTTOM_RIGHT = "j <= i + Sk - Sq"
GQA = "h // (H // Hkv)"

# name: (score, mask, fill, head map, sink, empty rows)
MEANING: dict[str, tuple[str, str | None, str, str, str | None, str]] = {
    "alibi": ("s / 8.0 + slopes[h] * (j - i)", "j <= i", "-inf", "h", None, "none"),
    "bert_padding_10000": (
        "s / 8.0 + where(attention_mask[b, 0, 0, j] != 0, 0.0, -10000.0)",
        None,
        "-inf",
        "h",
        None,
        "none",
    ),
    "bshd_fp32_causal": ("s / 8.0", BOTTOM_RIGHT, "-inf", "h", None, "nan"),
    "causal_bottom_right": ("s / 8.0", BOTTOM_RIGHT, "-inf", "h", None, "nan"),
    "causal_sdpa": ("s / 8.0", "j <= i", "-inf", "h", None, "none"),
    "cross_attention_lse": ("s / 8.0", None, "-inf", "h", None, "none"),
    "decode_kv_cache": ("s / 8.0", "j < lengths[b]", "-inf", GQA, None, "none"),
    "document_mask": ("s / 8.0", "document_ids[b, i] == document_ids[b, j] & j <= i", "-inf", "h", None, "none"),
    "flex_chunked_softcap": ("20.0 * tanh(s / 160.0)", "i // 64 == j // 64 & i >= j", "-inf", GQA, None, "zero"),
    "gemma2_softcap_window": (
        "50.0 * tanh(s / 600.0)",
        f"{BOTTOM_RIGHT} & i + Sk - Sq - j < 64",
        "-inf",
        GQA,
        None,
        "nan",
    ),
    "gated_window": ("s / 8.0", "j <= i & i - j < 24", "-inf", "h", None, "none"),
    "gpt_oss_sink": ("s / 8.0", "j <= i & i - j < 64", "-inf", GQA, "S[h]", "computed"),
    "grok_softcap": ("30.0 * tanh(s * 0.08838834764831845 / 30.0)", "j <= i", "-1.0e30", "h", None, "none"),
    "image_relative_position": (
        "s / 8.0 + rel_h[b, h, i, j // 7] + rel_w[b, h, i, j % 7]",
        None,
        "-inf",
        "h",
        None,
        "none",
    ),
    "llama_block": ("s / 8.0", "j <= i", "-inf", GQA, None, "none"),
    "llama_gqa_expand": ("s / sqrt(128.0)", BOTTOM_RIGHT, "-3.3895313892515355e38", GQA, None, "computed"),
    "longformer_two_sided_window": ("s / 8.0", "abs(i - j) <= 32", "-inf", "h", None, "nan"),
    "mistral_sliding_window": (
        "s / sqrt(128.0)",
        f"{BOTTOM_RIGHT} & i + Sk - Sq - j < 96",
        "-inf",
        GQA,
        None,
        "zero",
    ),
    "packed_documents": ("s / 8.0", "sequence[i] == sequence[j] & j <= i", "-inf", GQA, None, "none"),
    "paged_kv_cache": ("s / 8.0", "j < lengths[b]", "-inf", GQA, None, "none"),
    "mla_192_128": ("s / sqrt(192.0)", BOTTOM_RIGHT, "-inf", "h", None, "nan"),
    "per_head_loop": ("s / 8.0", "j <= i", "-inf", GQA, None, "none"),
    "prefix_lm": ("s / 8.0", "j < 40 | j <= i", "-inf", "h", None, "none"),
    "relu_attention": ("relu(s / 8.0)", "j <= i", "0.0", "h", None, "none"),
    "retention": ("s / 8.0 * pow(1.0 - pow(2.0, -5.0 - h), max(i - j, 0))", "j <= i", "0.0", "h", None, "none"),
    "sdpa_gqa_custom_scale": ("s / 128.0", None, "-inf", GQA, None, "none"),
    "sdpa_with_bias": ("s / 8.0 + pair_bias[h, i, j]", None, "-inf", "h", None, "none"),
    "shared_question": ("s / 8.0", "j <= i & i < last_row[b, j]", "-inf", "h", None, "nan"),
    "sigmoid_attention": ("sigmoid(s / 8.0 - log(float(Sk)))", BOTTOM_RIGHT, "0.0", "h", None, "computed"),
    "speculative_decode": ("s / 8.0", "j <= i + lengths[b] - Sq", "-inf", GQA, None, "nan"),
    "siglip_head_72": ("s / sqrt(72.0)", None, "-inf", "h", None, "none"),
    "streaming_llm": (
        "s / 8.0",
        f"{BOTTOM_RIGHT} & (i + Sk - Sq - j < 96 | j < 4)",
        "-inf",
        "h",
        None,
        "nan",
    ),
    "t5_dense_bias": ("s + position_bias[0, h, i, j]", None, "-inf", "h", None, "none"),
    "tree_mask": ("s / 8.0", "j < Sk - Sq | ancestors[i, max(j - (Sk - Sq), 0)]", "-inf", GQA, None, "zero"),
    "varlen_cu_seqlens": ("s / 8.0", "sequence[i] == sequence[j] & j <= i", "-inf", "h", None, "none"),
    "vit_fused_qkv": ("s / 8.0", None, "-inf", "h", None, "none"),
}

# Weights that are no softmax: the normaliser, and the divisor over the row sum l.
WEIGHTS: dict[str, tuple[str, str | None]] = {
    "relu_attention": ("none", None),
    "retention": ("sum", "max(abs(l), 1.0)"),
    "sigmoid_attention": ("none", None),
}


def test_every_example_is_described() -> None:
    files = {p.stem for p in EXAMPLES.glob("*.py")}
    assert files == set(MEANING)
    readme = (EXAMPLES / "README.md").read_text()
    assert [name for name in files if f"{name}.py" not in readme] == []


@pytest.mark.parametrize("name", MEANING)
def test_example(name: str) -> None:
    score, mask, fill, head, sink, empty = MEANING[name]
    result = read_spec(str(EXAMPLES / f"{name}.py"))
    attention = result.attention
    assert attention is not None, [d.message for d in result.diagnostics]
    assert [d for d in result.diagnostics if d.severity >= Severity.WARNING] == []
    same(attention.score, score)
    same(attention.head_map, head, equal_heads=head == "h")
    same(attention.fill, fill)
    assert (attention.mask is None, attention.sink is None) == (mask is None, sink is None)
    if attention.mask is not None and mask is not None:
        same(attention.mask, mask)
    if attention.sink is not None and sink is not None:
        same(attention.sink, sink)
    assert attention.empty_rows == empty
    divisor = None if attention.divisor is None else print_expr(attention.divisor)
    assert (attention.normaliser, divisor) == WEIGHTS.get(name, ("softmax", None))
    source = (EXAMPLES / f"{name}.py").read_bytes()
    for part, span in attention.spans.items():
        assert source[span.start : span.end].strip(), part
        assert source[: span.start].count(b"\n") == span.line, part
