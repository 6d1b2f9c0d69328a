"""A kernel in CuTe explained by its library's calls: labels with lines, no formula, and what is not known."""

from __future__ import annotations

from pathlib import Path

from cubridge_engine.lift import lift
from cubridge_engine.lift.coverage import LANDMARKS
from cubridge_engine.source import parse
from cubridge_engine.understand.explain import explain

OWN = (Path(__file__).parents[1] / "lift" / "cute" / "cute_own.cu").read_text()


def test_labels_are_told_with_their_lines_and_no_formula():
    lifted = lift(parse("own.cu", OWN.encode()))
    told = explain(lifted)
    assert told.title == "attend: 9 of 9 steps of attention labelled by its library's calls"
    assert told.equations == ()
    facts = {fact.key: fact for fact in told.facts}
    assert {f"cute:{name}" for name in (*LANDMARKS, "mask", "softcap", "scale", "lse", "wait")} <= set(facts)
    lines = OWN.splitlines()
    assert all(facts[f"cute:{step}"].evidence == "read" for step in LANDMARKS)
    assert all("= mask" in lines[span.line] for span in facts["cute:mask"].spans)
    assert any("Its formula is not stated" in s.text for s in told.unknown)


def test_labels_are_no_program():
    lifted = lift(parse("own.cu", OWN.encode()))
    assert lifted.coverage.labelled == lifted.coverage.found == len(LANDMARKS)
    assert not lifted.coverage.complete
    assert {mark.provenance for mark in lifted.coverage.landmarks} == {"read"}
    assert not any("make_tensor" in d.message or "local_tile" in d.message for d in lifted.diagnostics)


def test_what_stands_in_the_way_is_told_with_its_line():
    text = OWN.replace("Tensor grid = by_rows(dots);", "stir(dots); Tensor grid = by_rows(dots);")
    told = explain(lift(parse("own.cu", text.encode())))
    assert not any(fact.key.startswith("cute:") for fact in told.facts)
    assert "labelled" not in told.title
    (said,) = [s for s in told.unknown if s.text.startswith("What stir does")]
    assert "stir(dots)" in text.splitlines()[said.spans[0].line]
