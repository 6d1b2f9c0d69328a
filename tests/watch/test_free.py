"""References that are no maximum, measured from the weights alone; and none where the weights are of other scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cubridge_engine.watch.free import by_tile, filled, references
from cubridge_engine.watch.layout import Held, exact_by_visit
from cubridge_engine.watch.lookup import Groups
from cubridge_engine.watch.observed import Observed
from cubridge_engine.watch.problem import meaning_of, problem_of

BC, REGISTERS, LANES = 32, 16, 8
PROBLEM = problem_of({"B": 1, "H": 1, "Hkv": 1, "Sq": LANES, "Sk": 64, "D": 16, "Dv": 16}, "float16")
MEANING = meaning_of(PROBLEM, np.ones((LANES, 64), bool), 0.25)
ROWS = Groups(np.arange(LANES)[:, None], np.arange(LANES).reshape(1, 1, LANES))
CODE: Any = SimpleNamespace(chain=lambda site: ())
CHOSEN = np.random.default_rng(4).uniform(1, 5, (LANES, 2))


def observed(scores: np.ndarray) -> list[Observed]:
    """Lane n holds every second key of row n, a register each, one tile per trip."""
    found: list[Observed] = []
    for register in range(REGISTERS):
        values = np.stack([np.exp(scores[:, t * BC + 2 * register] - CHOSEN[:, t]) for t in range(2)])
        values = values.astype(np.float32).astype(float)
        marks = np.ones(values.shape, bool)
        trips = np.repeat(np.arange(2)[:, None], LANES, 1)
        found.append(Observed(register, 0, -1, "f32", values, values, marks, marks, trips))
    return found


def test_the_reference_of_each_row_and_tile_is_measured():
    found = references(observed(MEANING.scores[0, 0]), CODE, MEANING, ROWS, set(range(REGISTERS)))
    assert found is not None
    assert np.isfinite(found[0, 0, :, ::2]).all()
    assert np.isnan(found[0, 0, :, 1::2]).all()  # keys that no lane weighed
    tiles = by_tile(found, BC)
    assert tiles is not None
    np.testing.assert_allclose(tiles[0, 0], CHOSEN, atol=3e-6)
    assert by_tile(found, 2 * BC) is None  # two of one tile: these are not its tiles


def test_weights_of_other_scores_show_no_reference():
    other = np.random.default_rng(6).standard_normal((LANES, 64))
    assert references(observed(other), CODE, MEANING, ROWS, set(range(REGISTERS))) is None


def test_a_tile_too_short_to_tell_has_the_reference_of_its_neighbour():
    tiles = np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, np.nan]])
    np.testing.assert_array_equal(filled(tiles, False), [[1, 1, 3], [2, 2, 2]])
    np.testing.assert_array_equal(filled(tiles, True), [[1, 3, 3], [2, 2, 2]])


def held(index: np.ndarray, thread: np.ndarray, trip: np.ndarray) -> Held:
    return Held(thread, np.zeros((len(thread), 3), int), trip, np.zeros(len(thread), int), index[:, None])


@pytest.mark.parametrize(("kind", "low", "high"), [("own offsets", 0.98, 1.0), ("all the same", 0, 0), ("any", 0, 0.5)])
def test_a_map_with_an_offset_per_trip_needs_lanes_that_differ(kind, low, high):
    rng = np.random.default_rng(1)
    thread, trip = np.tile(np.arange(32), 8), np.repeat(np.arange(8), 32)
    offset = rng.permutation(8)[trip] * 100
    index = {"own offsets": 2 * thread + offset, "all the same": offset, "any": rng.integers(0, 800, 256)}[kind]
    assert low <= exact_by_visit(held(index, thread, trip), ("j",), ("j",)) <= high
