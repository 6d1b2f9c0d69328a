"""For every example: the adapted kernel passes level ir, and each near miss of it is rejected."""

from __future__ import annotations

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


# No mask, no operand, a KV head for each head: there is little to get wrong.
PLAIN = {"siglip_head_72", "vit_fused_qkv"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_adapted_text_passes_and_visits_no_empty_tile(adapted, example: str) -> None:
    done = adapted(example)
    outcome, problems = done.check(done.text)
    assert outcome.passed, [d.message for d in (*problems, *outcome.diagnostics)]
    assert outcome.empty
    assert not any(outcome.empty.values()), outcome.empty


@pytest.mark.parametrize("example", EXAMPLES)
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
