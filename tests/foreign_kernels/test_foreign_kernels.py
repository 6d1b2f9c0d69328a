"""Attention kernels that nobody here wrote: the recorded table in every run, two kernels looked at again where their
packages can be had, all of them with CUBRIDGE_FOREIGN=all. ``python -m tests.foreign_kernels`` makes the table.
"""

from __future__ import annotations

import os

import pytest

from cubridge_engine.compile.toolchain import find_nvcc
from tests.simulate.foreign.wheels import Missing

from .corpus import kernels
from .outcome import outcome_of
from .packages import PINS
from .table import STAGES, false_alarms, keyed, recorded, stages_of, summary

ALL = os.environ.get("CUBRIDGE_FOREIGN") == "all"
QUICK = ("fusedtok_mma", "fusedtok_decode")
TUNED = [name for name, one in kernels().items() if one.contract is not None]
HELD_OUT = [name for name, one in kernels().items() if one.held_out]


def test_the_corpus_is_large_and_recorded():
    rows = recorded()
    assert set(rows) == set(kernels())
    assert len(rows) >= 30
    assert len(HELD_OUT) >= 15
    assert len(TUNED) >= 20
    assert all(one.contract is None and not one.key for one in kernels().values() if one.held_out)
    assert {PINS.get(one.table["package"], ("wheel",))[0] for one in kernels().values()}  # every package is pinned


def test_no_correct_kernel_has_a_finding_of_level_error():
    compiled = [row for row in recorded().values() if stages_of(row)[STAGES.index("compiled")]]
    assert len(compiled) >= 15
    assert {name: false_alarms(row) for name, row in recorded().items() if false_alarms(row)} == {}


def test_labels_agree_with_the_keys():
    scores = [keyed(recorded()[name]) for name in TUNED]
    right, judged, found, wanted = (sum(column) for column in zip(*scores, strict=True))
    assert judged >= 200
    assert right >= 0.99 * judged
    assert found >= 0.85 * wanted


def test_every_kernel_with_a_contract_is_understood_as_a_function():
    assert [name for name in TUNED if recorded()[name].get("function", "-") == "-"] == []
    assert "tuned: all" in summary(recorded())


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in kernels() if ALL or n in QUICK])
def test_a_kernel_is_understood_as_the_table_says(name):
    if find_nvcc() is None:
        pytest.skip("foreign kernels need nvcc")
    try:
        found = outcome_of(kernels()[name], binding=kernels()[name].contract is None)
    except Missing as reason:
        pytest.skip(str(reason))
    row = recorded()[name]
    for column in ("function", "reading", "watching", "key"):
        assert found.row.get(column) == row.get(column), (column, found.row, found.score)
