"""Where the score of an element can be changed, and how its key is spelled, on rungs whose text makes that hard."""

from __future__ import annotations

import pytest

from cubridge_engine.lift import lift
from tests.ladder.rungs import source_of


def site_of(name):
    (site,) = lift(source_of(name), remember=False).anchors.score
    return site


@pytest.mark.parametrize(
    ("name", "element", "column"),
    [("per_key", "s", "(t + j)"), ("per_key_branches", "s", "(first + r)"), ("uniform_tail", "s[j]", "(first + j)")],
)
def test_a_score_inside_the_loop_over_keys(name, element, column):
    site = site_of(name)
    assert (site.nest.element, site.nest.col, site.nest.headers) == (element, column, ())


def test_loops_of_our_own_over_scores_that_are_masked_by_numbers():
    nest = site_of("mma_three_stages").nest
    assert [header.splitlines()[1] for header in nest.headers] == [
        "for (int nb = 0; nb < 8; ++nb)",
        "for (int e4 = 0; e4 < 4; ++e4)",
    ]
    assert nest.element == "s[nb][e4]"
    column = compile(nest.col.replace("/", "//"), "column", "eval")
    row = compile(nest.row.replace("/", "//"), "row", "eval")
    for lane, nb, e in ((0, 0, 0), (5, 3, 1), (31, 7, 2), (18, 6, 3)):
        scope = {"t": 2, "q0": 256, "warp": 3, "lane": lane, "nb": nb, "e4": e}
        assert eval(column, scope) == 2 * 64 + nb * 8 + lane % 4 * 2 + e % 2  # as m16n8k16 holds its results
        assert eval(row, scope) == 256 + 3 * 16 + lane // 4 + 8 * (e // 2)
