"""What watching says of each rung, against the hand-made key: two rungs in every run, all with CUBRIDGE_LADDER=all."""

from __future__ import annotations

import os
from functools import cache

import pytest

from cubridge_engine.compile.toolchain import find_nvcc, find_nvrtc
from cubridge_engine.watch import Watched
from tests.ladder.changes import in_macros, reformatted
from tests.ladder.labelling import by_family, key, row_of, table, watched
from tests.ladder.rungs import PATHS, ROOT, contract_of
from tests.lift.renamer import renamed

ALL = os.environ.get("CUBRIDGE_LADDER") == "all"
LABELLED = list(key()) if ALL else ["block_of_elements", "tma_wgmma"]
CHANGED = ["block_of_elements", "mma_padded", "wmma"] if ALL else ["block_of_elements"]

compiled = pytest.mark.skipif(find_nvrtc() is None and find_nvcc() is None, reason="no compiler")


@cache
def _watched(rung: str) -> Watched:
    return watched(rung)


@compiled
@pytest.mark.parametrize("rung", LABELLED)
def test_the_labels_of_a_rung_are_those_of_the_table(rung):
    assert row_of(rung, _watched(rung)) == table()[rung]


def test_every_rung_has_a_key_and_a_row_and_no_label_is_wrong():
    assert set(PATHS) <= set(key())
    assert set(table()) == set(key())
    rows = table()
    assert {name: row["wrong"] for name, row in rows.items() if row["wrong"]} == {}
    assert all(row["right"] == row["labels"] > 0 for row in rows.values())
    assert sum(total["rungs"] for total in by_family(rows).values()) == len(rows)


def test_a_label_that_the_key_does_not_have_counts_as_wrong(monkeypatch):
    found = _watched("block_of_elements")
    whole = row_of("block_of_elements", found)
    short = {name: row | {"P": [], "m": ["!acc[c] = t"]} for name, row in key().items()}
    monkeypatch.setattr("tests.ladder.labelling.key", lambda: short)
    row = row_of("block_of_elements", found)
    assert row["right"] < whole["right"]
    assert {what.split(":")[0] for what in row["wrong"]} == {"P", "m"}
    assert "m: acc[c] = t" in row["missed"]


def _roles(found: Watched) -> list[tuple[str, str, str]]:
    return sorted({(site.role, site.units, site.rounded) for site in found.sites})


def _lines(found: Watched, shift: int = 0) -> set[tuple[str, int]]:
    return {(site.role, site.line - shift) for site in found.sites}


def _text(rung: str) -> str:
    return contract_of(rung).source_path.read_text()


@compiled
@pytest.mark.parametrize("rung", CHANGED)
def test_names_spaces_and_macros_change_no_label(rung):
    text, found = _text(rung), _watched(rung)
    names = renamed(text)[1]
    # The kernel itself and what the contract instantiates keep their names.
    kept = {word for word in names if word in contract_of(rung).instances[0].expression}
    swapped = renamed(text)[0]
    for word in kept:
        swapped = swapped.replace(names[word], word)
    again = watched(rung, swapped.encode())
    assert _roles(again) == _roles(found)
    if swapped.count("\n") == text.count("\n"):
        assert _lines(again) == _lines(found)
    assert _roles(watched(rung, reformatted(text).encode())) == _roles(found)
    macros = in_macros(text)
    more = macros.count("\n") - text.count("\n")
    again = watched(rung, macros.encode())
    assert _roles(again) == _roles(found)
    assert _lines(again, more) == _lines(found)


def test_the_page_has_the_figures_of_the_table():
    page = (ROOT / "docs" / "explain.md").read_text()
    totals = list(by_family(table()).values())
    for total in totals:
        row = f"| {total['rungs']} | {total['right']} of {total['labels']} | {total['found']} of {total['lines']} |"
        assert row in page
    assert f"**{sum(t['found'] for t in totals)} of {sum(t['lines'] for t in totals)}**" in page
