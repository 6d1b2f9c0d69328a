"""Near misses generated from each example's own expressions: a kernel adapted to one must not pass for the example.

CUBRIDGE_NEAR_MISSES=all tries every one of every example; otherwise one of each kind, and each kind on four examples.
"""

from __future__ import annotations

import pytest

from tests.corpus.near_misses import near_misses
from tests.corpus.tell_apart import EVERY, SAME, chosen, difference, survivors

from .conftest import EXAMPLES

pytestmark = pytest.mark.slow

# With these each kind is tried on four examples, or on all that have it.
ENOUGH = {
    "alibi",
    "bert_padding_10000",
    "decode_kv_cache",
    "document_mask",
    "flex_chunked_softcap",
    "gemma2_softcap_window",
    "gpt_oss_sink",
    "image_relative_position",
    "sdpa_with_bias",
    "t5_dense_bias",
    "tree_mask",
}
TRIED = [name for name in EXAMPLES if name in ENOUGH or EVERY]


@pytest.mark.parametrize("example", TRIED)
def test_generated_near_misses_are_told_apart(adapted, example: str) -> None:
    done = adapted(example)
    passed, rejected = survivors(done)
    assert not passed, passed
    spec = done.attention
    # Of a full attention with nothing but a scale, every near miss is refused before there is a kernel to reject.
    plain = spec.mask is None and spec.sink is None and not spec.operands
    assert rejected >= 1 or plain


def test_each_kind_is_tried_on_four_examples(read_example) -> None:
    have: dict[str, set[str]] = {}
    for example in EXAMPLES:
        spec, _ = read_example(example)
        for miss in chosen(near_misses(spec)):
            if difference(spec, miss.attention) > SAME:
                have.setdefault(miss.kind, set()).add(example)
    assert len(have) > 10
    for kind, names in have.items():
        assert len(names & ENOUGH) >= min(4, len(names)), (kind, names)
