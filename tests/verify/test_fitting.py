"""What a kernel's contract requires bounds the grid: every case meets it, and what cannot is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.verify.derive import choose_heads, grid_for
from cubridge_engine.verify.fitting import condition_of, demanded, fitted
from cubridge_engine.verify.grid import Case
from tests.ladder.rungs import PATHS
from tests.verify.test_grid import kernel


def contract(*requires):
    found, _ = read_contract(PATHS["warp_per_row"])
    return replace(found, requires=requires)


@pytest.mark.parametrize(
    ("requires", "sizes", "want"),
    [
        (("Sk % 64 == 0",), (9, 7), (9, 64)),
        (("Sk % 64 == 0", "Sq % 32 == 0"), (33, 65), (64, 128)),
        (("Sq == Sk",), (9, 70), (70, 70)),
        (("Sq == Sk", "Sq % 32 == 0"), (9, 70), (96, 96)),
        (("Sq == 1",), (64, 70), (1, 70)),
        (("Sq <= Sk",), (64, 9), (64, 64)),
        (("1 <= Sk",), (5, 0), None),
        (("Sk % 64 == 0",), (5, 0), (5, 0)),
        (("B == 1",), (5, 7), (5, 7)),
        (("D == 80",), (5, 7), None),
        (("cdiv(Sk, 32) % 2 == 0",), (5, 20), (5, 33)),
    ],
)
def test_a_case_is_moved_to_the_nearest_sizes(make_attention, requires, sizes, want) -> None:
    attention = demanded(make_attention(), contract(*requires))
    found = fitted(Case("x", "", 2, 2, 2, *sizes, 64), attention)
    assert (None if found is None else (found.Sq, found.Sk)) == want
    assert found is None or attention.allows(found.sizes)


def test_every_case_of_a_grid_meets_the_contract(make_attention) -> None:
    attention = demanded(
        make_attention(mask="(j <= i) & (j > i - 100)"), contract("Sk % 64 == 0", "1 <= Sk", "H == Hkv")
    )
    grid = grid_for(attention, kernel(64, 32), choose_heads(attention))
    assert len(grid.cases) > 8
    assert all(c.Sk % 64 == 0 and c.Sk >= 1 and c.Hkv == c.H for c in grid.cases)
    assert {c.Sq % 64 for c in grid.cases} != {0}, "what is not asked of Sq is not done to it"
    assert grid.not_covered["no-keys"] == "neither spec nor contract allow such sizes"


def test_a_condition_is_read_as_it_is_written() -> None:
    assert print_expr(condition_of("Sq % 32 == 0")) == "Sq % 32 == 0"
    assert print_expr(condition_of("1 <= Sk")) == "1 <= Sk"
