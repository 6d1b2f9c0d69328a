"""The sentence that says how much of a kernel was understood."""

from __future__ import annotations

import pytest

from cubridge_engine.diagnostics import Span
from cubridge_engine.lift.coverage import Coverage, Landmark

SPAN = Span("k.cu", 0, 1, 0, 0, 0, 1)
FOUND, MISSING = Landmark("qk", "S = QK^T", SPAN), Landmark("row_sum", "the row sum", None)


@pytest.mark.parametrize(
    ("coverage", "sentence"),
    [
        (Coverage((FOUND, FOUND), 9, 0, 0, True), "2 of 2 steps"),
        (Coverage((FOUND, MISSING), 9, 0, 0, True), "1 of 2 steps; missing: the row sum"),
        (Coverage((FOUND, FOUND), 9, 1, 32, True), "2 of 2 steps; 1 statement not understood"),
        (Coverage((FOUND, MISSING), 9, 2, 2, True), "1 of 2 steps; missing: the row sum; 2 statements not understood"),
    ],
)
def test_a_part_that_was_not_understood_is_counted(coverage: Coverage, sentence: str) -> None:
    assert coverage.sentence() == sentence
