"""Near misses generated from each example's own expressions: a kernel adapted to one must not pass for the example.

CUBRIDGE_NEAR_MISSES=all tries every one; otherwise one of each kind.
"""

from __future__ import annotations

import pytest

from tests.corpus.tell_apart import survivors

from .conftest import EXAMPLES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("example", EXAMPLES)
def test_generated_near_misses_are_told_apart(adapted, example: str) -> None:
    done = adapted(example)
    passed, rejected = survivors(done)
    assert not passed, passed
    spec = done.attention
    # Of a full attention with nothing but a scale, every near miss is refused before there is a kernel to reject.
    plain = spec.mask is None and spec.sink is None and not spec.operands
    assert rejected >= 1 or plain
