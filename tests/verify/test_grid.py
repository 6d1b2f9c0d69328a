"""The grid is derived from the spec: each condition has a case that meets it, or is reported."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.ir.expr import Const, Var
from cubridge_engine.ir.nodes import GridMap, Kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec.attention import TensorInput
from cubridge_engine.verify.derive import (
    CONDITIONS,
    choose_heads,
    grid_for,
    natural_scale,
    saturating_scale,
    tile_facts,
)
from cubridge_engine.verify.far import differs, far_cases
from cubridge_engine.verify.grid import Heads, base_cases
from cubridge_engine.verify.levels import applicability

HEADS = Heads((2, 2), (6, 3))


def kernel(br: int = 64, bc: int = 64) -> Kernel:
    grid = GridMap(Var("bx"), Var("bz"), Var("by"), Var("h"))
    return Kernel("k", (), grid, br, bc, 64, 64, 128, "mma", (), Const(1.0))


def test_the_fixed_grid_has_what_design_5_asks_for() -> None:
    cases = base_cases(64, 64, 64, HEADS)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert any(c.Sq == c.Sk for c in cases)
    assert any(0 < c.Sq < c.Sk for c in cases)
    assert any(c.Sq > c.Sk > 0 for c in cases)
    assert any(c.Sq % 64 and c.Sq > 64 for c in cases)
    assert any(0 < c.Sq < 64 and 0 < c.Sk < 64 for c in cases)
    assert any(c.Sq == 1 for c in cases)
    assert any(c.Sk == 1 for c in cases)
    assert any(c.Sk >= 3 * 64 and "rising" in c.twists for c in cases)
    assert any(c.Hkv not in (1, c.H) and c.Hkv != c.H // c.Hkv for c in cases)
    assert any(c.Sk == 0 for c in cases)
    assert any(c.Sq == 0 for c in cases)
    assert len({c.layout for c in cases}) >= 3
    assert any("large" in c.twists for c in cases)
    assert all(c.why for c in cases)


@pytest.mark.parametrize(
    ("bc", "mask", "must"),
    [
        (64, "(j <= i) & (j > i - 100)", {"range-starts-odd", "range-starts-even", "range-ends-early"}),
        (
            32,
            "(j <= i + (Sk - Sq)) & (j > i + (Sk - Sq) - 40)",
            {"range-starts-odd", "row-dead-in-first-tile", "tile-empty"},
        ),
        (32, "j <= i", {"range-ends-early", "row-dead-in-last-tile"}),
        (64, "j >= i", {"range-starts-odd", "row-dead"}),
    ],
)
def test_masks_get_cases_for_their_bounds(make_attention, bc: int, mask: str, must: set[str]) -> None:
    attention = make_attention(mask=mask)
    grid = grid_for(attention, kernel(64, bc), HEADS)
    assert must <= set(grid.covered)
    by_name = {case.name: case for case in grid.cases}
    conditions = {c.name: c for c in CONDITIONS}
    for name in must:
        facts = tile_facts(attention, by_name[grid.covered[name]], 64, bc)
        assert facts is not None
        assert conditions[name].met(facts)


def test_what_no_length_meets_is_reported(make_attention) -> None:
    grid = grid_for(make_attention(mask="(j <= i) & (j > i - 500000)"), kernel(), HEADS)
    assert "range-starts-odd" in grid.not_covered
    assert "mask: 500000" in grid.not_covered


def test_a_full_mask_adds_no_bound_cases(make_attention) -> None:
    grid = grid_for(make_attention(), kernel(), HEADS)
    assert grid.covered == {}
    assert len(grid.cases) == len(base_cases(64, 64, 64, HEADS))


def test_tile_facts_agree_with_counting(make_attention) -> None:
    attention = make_attention(mask="(j <= i) & (j > i - 50)")
    case = next(c for c in base_cases(64, 64, 64, HEADS) if c.name == "rising-max")
    facts = tile_facts(attention, case, 64, 64)
    assert facts is not None
    for tile in range(-(-case.Sq // 64)):
        keys = {j for i in range(tile * 64, min(tile * 64 + 64, case.Sq)) for j in range(case.Sk) if i - 50 < j <= i}
        assert facts.lo[0, tile] == min(keys) // 64
        assert facts.hi[0, tile] == max(keys) // 64 + 1


def test_softcap_gets_a_saturating_case_and_linear_scores_do_not(make_attention) -> None:
    capped = make_attention("50.0 * tanh(s * 0.125 / 50.0)")
    factor = saturating_scale(capped, 64)
    assert factor is not None
    assert 50.0 * np.tanh(2 * 8 * factor * 0.125 / 50.0) < 0.5 * 2 * 8 * factor * 0.125
    assert "saturated" in grid_for(capped, kernel(), HEADS).covered
    assert saturating_scale(make_attention(), 64) is None
    assert natural_scale(capped) == pytest.approx(0.125, rel=1e-4)


def test_biases_masks_and_parameters_as_tensors_get_their_cases(make_attention) -> None:
    bias = TensorInput("bias", "operand", ("1", "H", "Sq", "Sk"), "float16", 3)
    slopes = TensorInput("slopes", "operand", ("H",), "float32", 4)
    keep = TensorInput("keep", "operand", ("B", "Sk"), "bool", 5)
    spec = make_attention(
        "s * 0.125 + bias[0, h, i, j] + slopes[h] * (j - i)", "keep[b, j]", operands=(bias, slopes, keep)
    )
    assert {"bias-row-shift", "large-parameters", "masked-by-data"} <= set(grid_for(spec, kernel(), HEADS).covered)


@pytest.mark.parametrize(
    ("head_map", "specialised", "grouped"),
    [
        ("h // (H // Hkv)", {}, (6, 3)),
        ("h", {}, (3, 3)),  # with two heads, h and h % 2 are one
        ("h // 2", {}, (6, 3)),
        ("h // 4", {}, (8, 2)),
        ("h // (H // Hkv)", {"H": 4, "Hkv": 2}, (4, 2)),
        ("h // (H // Hkv)", {"H": 16, "Hkv": 2}, (16, 2)),
        ("0", {}, (2, 1)),
    ],
)
def test_head_counts_follow_the_head_map(make_attention, head_map: str, specialised: dict, grouped: tuple) -> None:
    heads = choose_heads(make_attention(head_map=head_map, specialised=specialised))
    assert heads is not None
    assert heads.grouped == grouped


def test_a_constant_beyond_the_fixed_lengths_gets_its_own_case(make_attention) -> None:
    attention = make_attention(mask="j <= i & i - j < 4096")
    cases, missing = far_cases(attention, 64, 64, 64, [(1, 1)], [])
    assert missing == {}
    assert any(differs(attention, parse_expr("j <= i & i - j < 4097"), case) for case in cases)
    assert max(case.Sq * case.Sk for case in cases) < 10**6


def test_a_constant_that_no_length_reaches_is_said(make_attention) -> None:
    attention = make_attention(mask="j <= i | (i == 77777 & j == 88888)")
    _, missing = far_cases(attention, 64, 64, 64, [(1, 1)], [])
    assert "mask: 77777" in missing


def test_what_the_grid_never_reaches_is_not_called_verified() -> None:
    assert applicability("simulated", False) == "verified"
    assert applicability("simulated", False, {"CB721"}) == "unverified"
    assert applicability("simulated", True, {"CB721"}) == "sketch"
