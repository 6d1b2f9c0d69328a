"""The simulator against an H200: golden/h200.npz holds what the GPU answered (made by golden/record.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.simulate.golden.cases import cases
from tests.simulate.golden.compare import differences, simulated

GOLDEN = Path(__file__).parent / "golden/h200.npz"
CASES = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, np.ndarray]]:
    """Case -> output -> what the GPU gave."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(GOLDEN) as stored:
        for key in stored.files:
            case, output = key.split("|")
            found.setdefault(case, {})[output] = stored[key]
    return found


def test_every_case_was_recorded(answers):
    assert answers.keys() == CASES.keys()
    assert len(CASES) > 190


@pytest.mark.parametrize("name", CASES)
def test_against_the_gpu(answers, name):
    case = CASES[name]
    ours = simulated(case)
    assert ours.keys() == answers[name].keys()
    for output, theirs in answers[name].items():
        assert ours[output].shape == theirs.shape
        assert not differences(case, ours[output], theirs), output


def test_the_comparison_can_fail(answers):
    """One bit off in an exact case, and one part in a thousand in an approximate one, are differences."""
    exact = next(iter(answers["int 0 add.s32"].values()))
    assert differences(CASES["int 0 add.s32"], exact ^ np.uint32(1), exact) == exact.size
    close = next(iter(answers["ex2.approx.ftz.f32"].values())).view(np.float32)
    usable = np.isfinite(close) & (close > 1e-3)
    off = np.where(usable, close * np.float32(1.001), close).astype(np.float32)
    assert differences(CASES["ex2.approx.ftz.f32"], off.view(np.uint32), close.view(np.uint32)) == usable.sum()
