"""What a mask says may be taken for granted in a weight, and nothing else."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.transfer.where_seen import where_seen

SAME = {
    "another order": ("j <= i", "max(0, i - j)", "i - j"),
    "as a person says it": ("i >= j", "s * pow(0.5, max(i - j, 0))", "s * pow(0.5, i - j)"),
    "strictly": ("j < i", "max(i - j, 1)", "i - j"),
    "one of several": ("j <= i & i - j < 64", "max(i - j, 0)", "i - j"),
    "with a shift": ("j <= i + (Sk - Sq)", "max(i + Sk - Sq - j, 0)", None),
    "not so far": ("j <= i", "max(i - j, 1)", "max(i - j, 1)"),
    "the other side": ("j >= i", "max(i - j, 0)", "max(i - j, 0)"),
    "a least": ("j <= i", "min(i - j, 0)", "min(i - j, 0)"),
    "only one of two": ("j <= i | j < 4", "max(i - j, 0)", "max(i - j, 0)"),
    "no integers": ("j <= i", "max(s, 0.0)", "max(s, 0.0)"),
}


@pytest.mark.parametrize("case", SAME)
def test_where_seen(case):
    mask, text, wanted = SAME[case]
    found = where_seen(parse_expr(text), parse_expr(mask), {})
    if wanted is None:
        assert "max" not in print_expr(found)
    else:
        assert print_expr(found) == print_expr(parse_expr(wanted))


def test_without_a_mask():
    assert print_expr(where_seen(parse_expr("max(i - j, 0)"), None, {})) == "max(i - j, 0)"
