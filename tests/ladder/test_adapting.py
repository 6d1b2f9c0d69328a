"""Rungs adapted: one row of the table is made again, and with CUBRIDGE_LADDER=all every row that was recorded."""

from __future__ import annotations

import os

import pytest

from cubridge_engine.compile.toolchain import find_nvcc, find_nvrtc
from tests.ladder.adapting import NAMES, adapted, row_of, table
from tests.ladder.rungs import PATHS

ALL = os.environ.get("CUBRIDGE_LADDER") == "all"
FAST = [("warp_per_row", "dense_bias")]  # a refusal, and quick
PAIRS = [(rung, spec) for rung, rows in table().items() for spec in rows] if ALL else FAST

pytestmark = pytest.mark.skipif(find_nvrtc() is None and find_nvcc() is None, reason="no compiler")


@pytest.mark.parametrize(("rung", "spec"), PAIRS)
def test_a_row_of_the_table(rung, spec, tmp_path):
    assert row_of(adapted(rung, spec, tmp_path)) == table()[rung][spec]


def test_the_table_is_of_rungs_and_specs():
    assert set(table()) <= set(PATHS)
    assert {spec for rows in table().values() for spec in rows} <= set(NAMES)
