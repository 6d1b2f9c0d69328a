"""Normal forms and equivalence: near misses must come out different."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.simplify import equivalent, normal_form, simplify
from cubridge_engine.ir.text_expr import parse_expr, print_expr


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("i + 0 * j", "i"),
        ("(i + 3) - (j + 3)", "i - j"),
        ("j - i + i", "j"),
        ("(i * 64 + 128) // 64", "i + 2"),
        ("(i * 4 + 7) % 4", "3"),
        ("!(j > i)", "j <= i"),
        ("true & (j < Sk)", "j < Sk"),
        ("where(false, s, 0.0)", "0.0"),
        ("s * 2.0 * 3.0", "s * 6.0"),
        ("!(j > i | j < 3)", "j <= i & j >= 3"),
    ],
)
def test_simplify(text, want):
    assert print_expr(simplify(parse_expr(text))) == want


SAME = [
    ("j <= i", "!(j > i)"),
    ("j < i + 1", "j <= i"),
    ("i - j < 128", "j > i - 128"),
    ("s * 0.125 + slopes[h] * float(j - i)", "slopes[h] * (float(j) - float(i)) + s / 8.0"),
    ("50.0 * tanh(s / 50.0)", "50.0 * (1.0 - 2.0 / (1.0 + exp(2.0 * s / 50.0)))"),
    ("j <= i & i - j < 4", "i - j < 4 & i >= j"),
    ("h // (H // Hkv)", "h * Hkv // H"),
    ("max(i, j)", "where(i > j, i, j)"),
]
DIFFERENT = [
    ("j <= i", "j < i"),
    ("i - j < 128", "i - j <= 128"),
    ("i - j < 4096", "i - j < 4095"),
    ("j <= i", "j <= i + (Sk - Sq)"),
    ("slopes[h] * float(j - i)", "slopes[h] * float(i - j)"),
    ("h // (H // Hkv)", "h % Hkv"),
    ("where(j < 1024 | j <= i, 1.0, 0.0)", "where(j <= 1024 | j <= i, 1.0, 0.0)"),
    ("bias[0, h, i, j]", "bias[0, h, j, i]"),
    ("(i - j) % 2 == 0", "(i - j) % 3 == 0"),
    ("where(j <= i, s, -inf)", "where(j <= i, s, -10000.0)"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equivalent(a, b):
    assert equivalent(parse_expr(a), parse_expr(b))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_not_equivalent(a, b):
    assert not equivalent(parse_expr(a), parse_expr(b))


@pytest.mark.parametrize(("a", "b"), SAME[:4])
def test_normal_forms_meet(a, b):
    assert normal_form(parse_expr(a)) == normal_form(parse_expr(b))
