"""For every example: the adapted kernel passes level ir, and each near miss of it is rejected.

Of examples whose kinds of edits others have on the same kernel, the near misses are tried with CUBRIDGE_NEAR_MISSES=all
(`make corpus`) only; those generated from their own expressions (test_generated_near_misses.py) are in every run.
"""

from __future__ import annotations

import os

import pytest

from .conftest import EXAMPLES
from .near_misses import NEAR_MISSES

pytestmark = pytest.mark.slow

# Edits that change nothing a spec can see, with the reason: they must pass, or the reason is wrong.
HARMLESS: dict[tuple[str, str], str] = {
    ("image_relative_position", "range_too_short"): (
        "the loop counts keys: up to 69 of 70 it still reaches the tile of key 64, and there is no other length"
    ),
    ("retention", "score_after_mask"): "a weight of 0 stays 0 when it decays",
}


# Example -> one that has every kind of its near misses on the same kernel, or several that have them together.
ALIKE = {
    "gated_window": ("gemma2_softcap_window",),
    "grok_softcap": ("gemma2_softcap_window",),
    "longformer_two_sided_window": ("gemma2_softcap_window",),
    "per_head_loop": ("bshd_fp32_causal",),
    "sdpa_with_bias": ("t5_dense_bias",),
    "shared_question": ("causal_sdpa",),
    "varlen_cu_seqlens": ("packed_documents",),
    "vit_fused_qkv": ("bshd_fp32_causal",),
}
CHOSEN = [name for name in EXAMPLES if name not in ALIKE or os.environ.get("CUBRIDGE_NEAR_MISSES") == "all"]

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


def test_what_is_left_out_has_others_that_are_like_it() -> None:
    assert set(ALIKE) <= set(EXAMPLES)
    assert {name for others in ALIKE.values() for name in others} <= set(EXAMPLES) - set(ALIKE)
