"""What `check` finds of the faults is at least what tests/faults/table.json says, and clean twins are left alone.

Reading runs on a third, watching on a few; CUBRIDGE_FAULTS=all takes all. `python -m tests.faults --record`
renews the table.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.bases import BASES
from tests.faults.corpus import faults
from tests.faults.table import RANKS, by_reading, by_watching, false_alarms, judged, rank_of, recorded

ALL = os.environ.get("CUBRIDGE_FAULTS") == "all"
FAULTS = faults()
TABLE = recorded()
READ = FAULTS if ALL else FAULTS[::3]
WATCHED = FAULTS if ALL else FAULTS[::30]


def test_the_table_has_every_fault():
    assert list(TABLE) == [f.id for f in FAULTS]
    for row in TABLE.values():
        assert rank_of(row["reading"]) in RANKS
        assert rank_of(row["watching"]) in RANKS


@pytest.mark.parametrize("name", BASES)
def test_reading_leaves_the_clean_twin_alone(name):
    base = BASES[name]
    assert not false_alarms(by_reading(base, base.text))


@pytest.mark.parametrize("name", BASES if ALL else ("block2d", "vector_ring"))
def test_watching_leaves_the_clean_twin_alone(name):
    base = BASES[name]
    assert not false_alarms(by_watching(base, base.text))


@pytest.mark.parametrize("name", BASES)
def test_reading_finds_what_it_found(name):
    lost = {}
    for fault in READ:
        if fault.base.name == name:
            answer = judged(fault, by_reading(fault.base, fault.text))
            if answer.worse_than(TABLE[fault.id]["reading"]):
                lost[fault.id] = f"{answer.text}, was {TABLE[fault.id]['reading']}"
    assert not lost


@pytest.mark.parametrize("fault", WATCHED, ids=lambda f: f.id)
def test_watching_finds_what_it_found(fault):
    answer = judged(fault, by_watching(fault.base, fault.text))
    assert not answer.worse_than(TABLE[fault.id]["watching"]), f"{answer.text}, was {TABLE[fault.id]['watching']}"


def test_most_faults_are_found_on_their_line():
    pairs = [(rank_of(row["reading"]), rank_of(row["watching"])) for row in TABLE.values()]
    best = [max(pair, key=RANKS.index) for pair in pairs]
    assert sum(rank in RANKS[2:] for rank in best) >= 0.78 * len(best)
    assert sum(rank == "explained" for rank in best) >= 0.75 * len(best)
