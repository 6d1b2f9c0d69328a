"""What was watched, in what was read: steps that move with the text, and an exchange that is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cubridge_engine.lift import Lifted, lift
from cubridge_engine.source import parse
from cubridge_engine.watch import Watched, watch_contract
from cubridge_engine.watch.merge import merged
from tests.watch.test_watch import EXPERT, contract_at

CONTRACT = EXPERT / "flash_fwd_scalar" / "contract.toml"
EXP = "const float p = expf(s[i] - m_safe);"
HIDDEN = "const float p = hidden(s[i] - m_safe);"
FUNCTION = """__device__ __forceinline__ float hidden(float x) {
  float y;
  asm("{ .reg .f32 t; mov.f32 t, %1; abs.f32 %0, t; }" : "=f"(y) : "f"(expf(x)));
  return y;
}
"""


def text_with(*changes: tuple[str, str]) -> str:
    text = contract_at(CONTRACT).source_path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def both(text: str) -> tuple[Lifted, Watched]:
    contract = contract_at(CONTRACT)
    path = str(contract.source_path)
    read = lift(parse(path, text.encode()), anchors=False)
    watched = watch_contract(contract, source=text.encode())
    assert watched.ran, watched.diagnostics
    return merged(read, watched), watched


def line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines()) if line.strip().startswith(start))


@pytest.fixture(scope="module")
def whole() -> tuple[Lifted, Watched]:
    return both(text_with())


def test_a_reading_that_is_whole_stays_as_it_was_and_is_confirmed(whole):
    found, _ = whole
    assert found.coverage.complete
    assert found.coverage.observed == 0
    assert {one.name for one in found.seen} >= {"qk", "row_max", "exp", "row_sum", "rescale", "pv", "normalise", "lse"}
    assert {one.read for one in found.seen} <= {"agrees", "beside", ""}
    assert sum(one.read == "agrees" for one in found.seen) >= 4


def test_steps_that_reading_lost_stand_as_observed_and_move_with_the_text(whole):
    kernel = "template <int D, int DV"
    at = text_with().index(kernel)
    text = text_with((EXP, f"\n\n\n{HIDDEN}"))
    text = text[:at] + FUNCTION + text[at:]
    found, _ = both(text)
    assert not found.coverage.complete
    assert found.coverage.observed >= 3
    assert "observed)" in found.coverage.sentence()
    exp = next(one for one in found.seen if one.name == "exp")
    assert exp.span.line == line_of(text, HIDDEN)
    assert exp.read == ""
    assert "Sk = 128" in exp.problem
    mark = next(m for m in found.coverage.landmarks if m.name == "exp")
    assert (mark.provenance, mark.span) == ("observed", exp.span)
    before = next(one for one in whole[0].seen if one.name == "exp")
    assert exp.span.line == before.span.line + len(FUNCTION.splitlines()) + 3


def test_an_exchange_of_two_steps_is_a_conflict_and_neighbours_are_none(whole):
    found, watched = whole
    marks = {m.name: m for m in found.coverage.landmarks}
    swapped = {"rescale": marks["pv"].span, "pv": marks["rescale"].span}
    wrong = tuple(replace(m, span=swapped.get(m.name, m.span)) for m in found.coverage.landmarks)
    read = replace(found, coverage=replace(found.coverage, landmarks=wrong), seen=())
    relations = {one.name: one.read for one in merged(read, watched).seen}
    assert relations["rescale"] == relations["pv"] == "conflicts"
    assert relations["normalise"] == "agrees"


def test_nothing_is_merged_of_a_run_without_a_function(whole):
    found, watched = whole
    read = replace(found, seen=())
    assert merged(read, replace(watched, function=None)) == read
    assert Path(watched.path).name == "kernel.cu"
