"""Tests of the same block as bounds of the column: the same mask, and no division of a column."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import Call, free_vars, walk
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.lower.blocks import in_bounds

REWRITTEN = {
    "causal": ("j <= i & i // 48 == j // 48", 2),
    "causal, the other way round": ("j // 48 == i // 48 & i >= j", 2),
    "both sides": ("i // 48 == j // 48", 2),
    "moved rows": ("j <= i + 5 & (i + 5) // 48 == j // 48", 2),
    "moved rows, causal in others": ("j <= i & (i + 5) // 48 == j // 48", 3),
    "with a window": ("j >= i - 9 & j <= i & i // 48 == j // 48", 3),
}
KEPT = (
    "i // 48 == j // 32",
    "i // 48 != j // 48",
    "i // 48 <= j // 48",
    "i // n == j // n",
    "j // 48 == (i + j) // 48",
)


@pytest.mark.parametrize("case", REWRITTEN)
def test_a_block_becomes_bounds_of_the_column(case):
    text, comparisons = REWRITTEN[case]
    keep = parse_expr(text)
    bounds = in_bounds(keep)
    nodes = [e for e in walk(bounds) if isinstance(e, Call)]
    assert not [e for e in nodes if e.op == "floordiv" and "j" in free_vars(e)]
    assert sum(e.op in ("lt", "le", "gt", "ge", "eq") for e in nodes) == comparisons
    env = {"i": np.arange(200)[:, None], "j": np.arange(220)[None, :]}
    np.testing.assert_array_equal(evaluate(bounds, env, {}), evaluate(keep, env, {}))


@pytest.mark.parametrize("text", KEPT)
def test_another_condition_stays(text):
    assert in_bounds(parse_expr(text)) == parse_expr(text)
