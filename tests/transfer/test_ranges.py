"""Ranges and guards derived from a mask, against brute force over small problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import TRUE, Call, Const, I, J
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.transfer.ranges import key_first, key_range, tidy, tile_guard

BR, BC = 4, 4

sides = st.sampled_from(["i", "i + (Sk - Sq)", "i // 3 * 3", "2 * i", "Sk - 2", "Sq", "0"]).map(parse_expr)
keys = st.sampled_from(["j", "j + 1", "2 * j", "j // 3", "-j"]).map(parse_expr)
shifts = st.integers(-6, 6)


def comparison(parts):
    op, key, side, shift = parts
    return Call(op, (key, side + Const(shift)))


comparisons = st.tuples(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), keys, sides, shifts).map(comparison)
distances = st.integers(0, 6).map(lambda n: Call("le", (Call("abs", (I - J,)), Const(n))))
others = st.just(parse_expr("(i - j) % 2 == 0"))
masks = st.recursive(
    st.one_of(comparisons, distances, others),
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(lambda t: Call(t[0], t[1:])),
    max_leaves=4,
)


def grid(mask, Sq, Sk):
    env = {"i": np.arange(Sq)[:, None], "j": np.arange(Sk)[None], "Sq": Sq, "Sk": Sk}
    return np.broadcast_to(np.asarray(evaluate(mask, env), dtype=bool), (Sq, Sk))


@settings(max_examples=150, deadline=None)
@given(masks, st.integers(1, 17), st.integers(1, 17))
def test_range_and_guard_are_conservative(mask, Sq, Sk):
    keep = grid(mask, Sq, Sk)
    lo, hi = key_range(mask)
    guard = tile_guard(mask)
    for q0 in range(0, Sq, BR):
        scope = {"q0": q0, "Sq": Sq, "Sk": Sk, "Br": BR, "Bc": BC}
        attended = np.flatnonzero(keep[q0 : q0 + BR].any(0))
        first = 0 if lo is None else int(evaluate(lo, scope))
        last = Sk if hi is None else int(evaluate(hi, scope))
        assert all(first <= j < last for j in attended), print_expr(mask)
        for kv0 in range(0, Sk, BC):
            if not keep[q0 : q0 + BR, kv0 : kv0 + BC].all():
                assert bool(evaluate(guard, {**scope, "kv0": kv0})), print_expr(mask)


@pytest.mark.parametrize(
    ("mask", "lo", "hi"),
    [
        ("j <= i", None, "q0 + Br"),
        ("j <= i + (Sk - Sq)", None, "q0 + Br + Sk - Sq"),
        ("j > i + (Sk - Sq) - 8", "q0 + Sk - Sq - 7", None),
        ("abs(i - j) <= 5", "q0 - 5", "q0 + Br + 5"),
        ("j <= i | j < 24", None, "max(q0 + Br, 24)"),
        ("i // 32 == j // 32", "32 * (q0 // 32)", "32 * ((q0 + Br - 1) // 32) + 32"),
        ("j < lens[b]", None, "lens[b]"),
        ("(i - j) % 2 == 0", None, None),
        ("j <= i | (i - j) % 2 == 0", None, None),
    ],
)
def test_ranges_are_tight_and_readable(mask, lo, hi):
    types = {"lens": "int"}
    got = key_range(parse_expr(mask), types)
    assert tuple(None if e is None else print_expr(tidy(e, types)) for e in got) == (lo, hi)


@pytest.mark.parametrize(
    ("mask", "guard"),
    [
        ("j <= i", "kv0 + Bc - 1 > q0"),
        ("j > i + (Sk - Sq) - 8", "kv0 <= q0 + Br + Sk - Sq - 9"),
        ("abs(i - j) <= 5", "kv0 + Bc - 1 > q0 + 5 | kv0 < q0 + Br - 6"),
    ],
)
def test_guards_are_readable(mask, guard):
    got = print_expr(tile_guard(parse_expr(mask)))
    assert set(got.split(" | ")) == set(guard.split(" | "))


def test_unknown_masks_are_tested_on_every_tile():
    assert tile_guard(parse_expr("ok[b, 0, i, j]"), {"ok": "bool"}) == TRUE
    assert tile_guard(parse_expr("(i - j) % 2 == 0")) == TRUE


def test_key_first_puts_the_key_on_the_left():
    assert print_expr(key_first(parse_expr("i - j < 11"))) == "j > i - 11"
    assert print_expr(key_first(parse_expr("i >= j"))) == "j <= i"


def test_sums_start_with_a_positive_term():
    assert print_expr(tidy(parse_expr("16 - Sk + Sq"))) == "Sq - Sk + 16"
    assert print_expr(tidy(parse_expr("-5 - i"))) == "-i - 5"
