"""CuTe by reading, held against the keys: the recorded table in every run, the texts themselves with
CUBRIDGE_FOREIGN=all. ``python -m tests.foreign_kernels.reading --record`` makes the table.
"""

from __future__ import annotations

import os

import pytest

from cubridge_engine.lift.coverage import LANDMARKS
from tests.simulate.foreign.wheels import Missing

from .reading import TEXTS, recorded, row_of

ALL = os.environ.get("CUBRIDGE_FOREIGN") == "all"
KEYED = [name for name, text in TEXTS.items() if text.keys]


def test_every_text_is_recorded():
    assert set(recorded()) == set(TEXTS)


def test_no_label_is_wrong():
    assert {name: recorded()[name]["wrong"] for name in KEYED if recorded()[name]["wrong"]} == {}
    assert recorded()["fa2"]["right"] == recorded()["fa2"]["judged"] != 0


def test_flash_attention_2_has_every_step():
    row = recorded()["fa2"]
    steps = row["steps"]
    assert isinstance(steps, list)
    assert set(LANDMARKS) <= set(steps)
    assert {"scale", "softcap", "mask", "lse", "correction", "load_q", "load_k", "load_v", "wait"} <= set(steps)
    found, wanted = row["found"], row["wanted"]
    assert isinstance(found, int)
    assert isinstance(wanted, int)
    assert found >= 0.85 * wanted


def test_what_is_no_forward_pass_or_is_not_known_has_no_label_and_a_reason():
    silent = {name: row for name, row in recorded().items() if not row["steps"]}
    assert "fa2_backward" in silent
    assert all(row["why"] for row in silent.values())


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="reads fetched packages: CUBRIDGE_FOREIGN=all")
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read_as_the_table_says(name: str):
    try:
        row = row_of(name)
    except Missing as reason:
        pytest.skip(str(reason))
    assert row == recorded()[name]
