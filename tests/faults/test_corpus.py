"""The corpus itself: every fault is one, every twin is clean. All of it with CUBRIDGE_FAULTS=all, a part otherwise."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from cubridge_engine.simulate import SCHEDULES
from tests.faults.bases import BASES
from tests.faults.corpus import Fault, faults
from tests.faults.launching import first_shown, run
from tests.faults.mutate import mutants

ALL = os.environ.get("CUBRIDGE_FAULTS") == "all"
FAULTS = faults()
# Faults that no problem of test size can show: what they overflow takes gigabytes.
BY_SIZE = [f for f in FAULTS if f.witness == "sizes"]


def part(every: int) -> list[Fault]:
    """Every n-th fault that a launch can show; all of them where that is asked for."""
    shown = [f for f in FAULTS if f.witness == "launch"]
    return shown if ALL else shown[::every]


def test_there_are_many_of_many_kinds():
    assert len(FAULTS) >= 150
    assert len({f.id for f in FAULTS}) == len(FAULTS)
    assert len({f.kind for f in FAULTS}) >= 40
    made = Counter(f.made for f in FAULTS)
    assert made["hand"] >= 100
    assert made["tool"] >= 40
    assert set(Counter(f.base.name for f in FAULTS)) == set(BASES)
    assert len({f.text for f in FAULTS}) == len(FAULTS), "two faults are the same text"


@pytest.mark.parametrize("name", BASES)
def test_the_clean_twin_is_right_in_the_simulator(name):
    base = BASES[name]
    schedules = SCHEDULES if ALL else SCHEDULES[:1]
    for problem in base.problems if ALL else base.problems[:1]:
        for schedule in schedules:
            shown = run(base, base.text, problem, schedule)
            assert not shown.findings, [f.message for f in shown.findings]
            assert not shown.wrong(base), (problem, shown.o, shown.lse)


@pytest.mark.parametrize("fault", part(18), ids=lambda f: f.id)
def test_a_launch_shows_the_fault(fault):
    assert first_shown(fault.base, fault.text) is not None


def test_a_fault_that_needs_size_shows_nothing_in_a_launch():
    """Else it would not have to be marked."""
    assert len(BY_SIZE) == 3
    fault = BY_SIZE[-1]
    assert first_shown(fault.base, fault.text, SCHEDULES[:1]) is None


def test_a_mutant_changes_one_line():
    text = BASES["mma_three_stages"].text
    seen = {m.text for m in mutants(text)}
    assert len(seen) > 15
    for mutant in mutants(text):
        pairs = zip(text.split("\n"), mutant.text.split("\n"), strict=True)
        assert [n for n, (old, new) in enumerate(pairs) if old != new] == [mutant.line]
