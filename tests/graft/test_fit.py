"""Indices as sums: what is found on made-up values, and what is not claimed."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.graft.fit import Observation, match, units_of
from cubridge_engine.graft.model import Term

SCALE = 0.125
TILE = 16  # rows and keys of a tile; 32 threads with 8 elements each


def observed(sizes: tuple[int, int, int, int], *, factor: float = 1.0, swap: bool = False, drop: bool = False):
    """The values of a fragment layout: row t / 4 + 8 e1, key 2 (t % 4) + e0 + 8 e2, as random numbers."""
    rng = np.random.default_rng(sum(sizes))
    raw = rng.standard_normal(sizes) * 8
    axes = [np.arange(n) for n in (sizes[0], sizes[1], sizes[2] // TILE, sizes[3] // TILE, 32, 8)]
    b, h, qt, kt, t, e = (x.ravel() for x in np.meshgrid(*axes, indexing="ij"))
    i = qt * TILE + t // 4 + (e >> 1 & 1) * 8
    j = kt * TILE + t % 4 * 2 + (e & 1) + (e >> 2) * 8
    values = (raw[b, h, i, j] * factor * (1 + 1e-8)).astype(np.float32).astype(np.float64)
    if swap:
        values = np.sort(values)
    integers = {"n_block": kt, "batch": b, "head": h, "blockIdx.x": qt}
    if drop:
        del integers["n_block"]
    attended = np.ones(sizes[2:], bool)
    return Observation(values, {"threadIdx.x": t, "{0}": e}, integers, raw, attended)


def test_a_fragment_layout_is_found_from_its_values_alone():
    found = match([observed((2, 2, 32, 48)), observed((3, 1, 48, 64))], units_of(SCALE))
    assert found is not None
    assert found.units == "raw"
    i, j = found.indices["i"], found.indices["j"]
    assert i is not None
    assert j is not None
    assert set(i.terms) == {Term("blockIdx.x", 16), Term("threadIdx.x", 1, 2, 7), Term("{0}", 8, 1, 1)}
    assert set(j.terms) == {
        Term("n_block", 16), Term("threadIdx.x", 2, 0, 3), Term("{0}", 1, 0, 1), Term("{0}", 8, 2, 1),
    }  # fmt: skip
    assert found.passed is not None
    assert all((passed == 1).all() for passed in found.passed)


@pytest.mark.parametrize("units", ["raw", "scaled", "log2"])
def test_the_units_are_those_in_which_every_value_is_a_score(units):
    factor = units_of(SCALE)[units]
    found = match([observed((2, 2, 32, 48), factor=factor)], units_of(SCALE))
    assert found is not None
    assert found.units == units
    assert found.passed is not None


def test_what_no_integer_in_scope_tells_is_no_index():
    found = match([observed((2, 2, 32, 48), drop=True)], units_of(SCALE))
    assert found is not None
    assert found.indices["j"] is None
    assert found.indices["i"] is not None
    assert found.passed is None


def test_scores_in_another_order_and_other_numbers_are_no_match():
    mixed = match([observed((2, 2, 32, 48), swap=True)], units_of(SCALE))
    assert mixed is None or mixed.passed is None
    other = observed((2, 2, 32, 48))
    unrelated = np.random.default_rng(9).standard_normal(len(other.values)) * 30
    wrong = Observation(unrelated, other.bits, other.integers, other.raw, other.attended)
    assert match([wrong], units_of(SCALE)) is None


def test_one_problem_cannot_tell_a_constant_from_the_last_tile():
    """A copy for the last tile has one key offset on one problem: two problems show that it moves."""

    def last_tile(sizes):
        whole = observed(sizes)
        here = whole.integers["n_block"] == sizes[3] // TILE - 1
        pick = {name: column[here] for name, column in whole.integers.items()}
        bits = {name: column[here] for name, column in whole.bits.items()}
        return Observation(whole.values[here], bits, pick, whole.raw, whole.attended)

    one = match([last_tile((2, 2, 32, 48))], units_of(SCALE))
    both = match([last_tile((2, 2, 32, 48)), last_tile((2, 2, 32, 64))], units_of(SCALE))
    assert one is not None
    assert both is not None
    assert one.indices["j"] is not None
    assert both.indices["j"] is not None
    assert one.indices["j"].constant == 32  # nothing there says more
    assert both.indices["j"].constant == 0
    assert Term("n_block", 16) in both.indices["j"].terms
