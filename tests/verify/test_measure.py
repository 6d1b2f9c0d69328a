"""Errors are relative to the row, NaN and infinity exact, empty rows a stated policy."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.verify.measure import TOLERANCES, measure_lse, measure_o

RNG = np.random.default_rng(0)


def _want() -> np.ndarray:
    return RNG.standard_normal((2, 3, 5, 8))


def test_equal_outputs_pass_and_report_zero() -> None:
    want = _want()
    measure = measure_o(want.copy(), want, "float16", None, "keep")
    assert measure.passed
    assert measure.worst == 0.0


def test_one_wrong_element_is_the_counterexample() -> None:
    want = _want()
    got = want.copy()
    got[1, 2, 3, 4] += 1.0
    example = measure_o(got, want, "float16", None, "keep").counterexample
    assert example is not None
    assert (example.b, example.h, example.i, example.d) == (1, 2, 3, 4)
    assert example.got == pytest.approx(example.want + 1.0)


def test_error_is_relative_to_the_row_not_to_the_tensor() -> None:
    want = np.ones((1, 1, 2, 4))
    want[0, 0, 1] = 1e-2
    got = want.copy()
    got[0, 0, 1, 0] += 1e-4  # 1 % of its row, 0.01 % of the tensor
    assert not measure_o(got, want, "float16", None, "keep").passed


def test_fp16_floor_spares_rows_a_sink_has_swallowed_but_bf16_has_none() -> None:
    want = np.full((1, 1, 1, 4), 4e-7)
    got = want * 1.6
    assert measure_o(got, want, "float16", None, "keep").passed
    assert not measure_o(got, want, "bfloat16", None, "keep").passed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_never_pass(bad: float) -> None:
    want = _want()
    got = want.copy()
    got[0, 0, 0, 0] = bad
    measure = measure_o(got, want, "bfloat16", None, "keep")
    assert not measure.passed
    assert measure.worst == np.inf


def test_dead_rows_keep_zero_only_under_keep_and_only_where_the_spec_is_nan() -> None:
    want = _want()
    want[0, 0, 1] = np.nan
    got = want.copy()
    got[0, 0, 1] = 0.0
    dead = np.zeros((2, 3, 5), dtype=bool)
    dead[0, 0, 1] = True
    kept = measure_o(got, want, "float16", dead, "keep")
    assert kept.passed
    assert kept.kept_rows == 1
    assert not measure_o(got, want, "float16", dead, "exact").passed
    assert not measure_o(got, want, "float16", None, "keep").passed  # a NaN of the spec that is no empty row
    got[0, 0, 1, 2] = 0.5  # not zero: never accepted
    assert not measure_o(got, want, "float16", dead, "keep").passed


def test_lse_is_absolute_below_one_and_relative_above() -> None:
    want = np.array([[[0.0, 1000.0, -np.inf]]])
    assert measure_lse(want + np.array([1e-4, 0.1, 0.0]), want, "float16", None, "keep").passed
    assert not measure_lse(want + np.array([1e-3, 0.0, 0.0]), want, "float16", None, "keep").passed
    assert not measure_lse(want + np.array([0.0, 1.0, 0.0]), want, "float16", None, "keep").passed


def test_tolerances_are_the_stated_ones() -> None:
    stated = {name: (t.relative, t.floor) for name, t in TOLERANCES.items()}
    assert stated == {
        "float64": (1e-6, 1e-12),
        "float32": (2e-4, 1e-12),
        "float16": (4e-3, 1e-3),
        "bfloat16": (2.5e-2, 1e-12),
    }


def test_empty_outputs_pass() -> None:
    empty = np.zeros((1, 2, 0, 8))
    assert measure_o(empty, empty, "float16", None, "keep").passed
