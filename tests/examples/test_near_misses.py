"""For every example: the adapted kernel passes level ir, and each near miss of it is rejected.

Those that two other examples have on the same kernel are tried with CUBRIDGE_NEAR_MISSES=all (`make corpus`) only.
"""

from __future__ import annotations

import os

import pytest

from .conftest import EXAMPLES, KERNEL_FOR
from .near_misses import NEAR_MISSES

pytestmark = pytest.mark.slow

# Edits that change nothing a spec can see, with the reason: they must pass, or the reason is wrong.
HARMLESS: dict[tuple[str, str], str] = {
    ("image_relative_position", "range_too_short"): (
        "the loop counts keys: up to 69 of 70 it still reaches the tile of key 64, and there is no other length"
    ),
    ("retention", "score_after_mask"): "a weight of 0 stays 0 when it decays",
}


# With these each near miss is tried on two examples of each kernel, or on all that have it.
ENOUGH = {
    "bert_padding_10000",
    "bshd_fp32_causal",
    "decode_kv_cache",
    "flex_chunked_softcap",
    "gated_window",
    "gpt_oss_sink",
    "image_relative_position",
    "llama_block",
    "llama_gqa_expand",
    "longformer_two_sided_window",
    "paged_kv_cache",
    "per_head_loop",
    "relu_attention",
    "retention",
    "sdpa_with_bias",
    "sigmoid_attention",
    "speculative_decode",
    "t5_dense_bias",
}
EVERY = os.environ.get("CUBRIDGE_NEAR_MISSES") == "all"
CHOSEN = [name for name in EXAMPLES if name in ENOUGH or EVERY]

# No mask, no operand, a KV head for each head: there is little to get wrong.
PLAIN = {"siglip_head_72", "vit_fused_qkv"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_adapted_text_passes_and_visits_no_empty_tile(adapted, example: str) -> None:
    done = adapted(example)
    outcome, problems = done.check(done.text)
    assert outcome.passed, [d.message for d in (*problems, *outcome.diagnostics)]
    assert outcome.empty
    assert not any(outcome.empty.values()), outcome.empty


@pytest.mark.parametrize("example", CHOSEN)
def test_near_misses_are_rejected(adapted, example: str) -> None:
    done = adapted(example)
    tried = []
    for edit in NEAR_MISSES:
        text = edit(done)
        if text is None or text == done.text:
            continue
        outcome, _ = done.check(text)
        harmless = HARMLESS.get((example, edit.__name__))
        assert outcome.passed == (harmless is not None), f"{edit.__name__} on {example}"
        if harmless is None:
            tried.append(edit.__name__)
    assert len(tried) >= (1 if example in PLAIN else 2), tried


@pytest.mark.skipif(not EVERY, reason="CUBRIDGE_NEAR_MISSES=all makes the near misses of every example")
def test_each_near_miss_is_tried_on_two_examples_of_a_kernel(adapted) -> None:
    have: dict[tuple[str, str], set[str]] = {}
    for example in EXAMPLES:
        done = adapted(example)
        for edit in NEAR_MISSES:
            if (text := edit(done)) is not None and text != done.text:
                have.setdefault((edit.__name__, KERNEL_FOR[done.attention.input("q").dtype]), set()).add(example)
    assert have
    for kind, names in have.items():
        assert len(names & ENOUGH) >= min(2, len(names)), (kind, names)


def test_what_is_named_is_an_example() -> None:
    assert set(EXAMPLES) >= ENOUGH
