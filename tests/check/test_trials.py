"""One change that makes a kernel right: what is tried, how, and that it is only said where it was seen."""

from __future__ import annotations

import pytest

from cubridge_engine.check.fixes import apply_fix, fix_from_json, fix_to_json
from cubridge_engine.check.trials import candidates_of
from cubridge_engine.check.variants import SWITCH, with_variants
from cubridge_engine.compile import compile_contract
from cubridge_engine.source import parse
from tests.faults.bases import BASES
from tests.faults.corpus import faults
from tests.faults.table import by_watching

BASE = BASES["split_warps"]
# Fault -> a text of the changed line after the fix.
MENDED = {
    "running sum not rescaled": "l = l * fade + p;",
    "keys of the rest in no slice": "(cache_len + kSlices - 1) / kSlices",
    "no key gives NaN": "top == -INFINITY ? 0.f : top",
}


@pytest.mark.parametrize("name", MENDED)
def test_wrong_numbers_without_a_step_get_a_line_and_a_fix_that_was_executed(name: str) -> None:
    fault = next(f for f in faults() if f.id == f"split_warps: {name}")
    found = by_watching(BASE, fault.text)
    assert [f.code for f in found] == ["CB883"], [f.diagnostic.message for f in found]
    only = found[0]
    assert only.span is not None
    assert only.span.line in fault.lines
    assert only.fix is not None
    text = apply_fix(fault.text.encode(), only.fix).decode()
    assert MENDED[name] in text
    assert len(text.split("\n")) == len(fault.text.split("\n"))
    assert not by_watching(BASE, text)
    assert fix_from_json(fix_to_json(only.fix)) == only.fix


def test_two_faults_have_no_single_change() -> None:
    text = BASE.text.replace("l = l * fade + p;", "l = l + p;").replace("o1 = o1 * fade", "o1 = o1")
    assert text.count("* fade") == BASE.text.count("* fade") - 2
    found = by_watching(BASE, text)
    assert [f.code for f in found] == ["CB881"], [f.diagnostic.message for f in found]
    assert found[0].fix is None


@pytest.mark.parametrize("name", ["split_warps", "warp_per_row"])
def test_the_text_with_all_candidates_compiles_and_keeps_its_lines(name: str) -> None:
    base = BASES[name]
    source = parse(str(base.path), base.text.encode())
    candidates = candidates_of(source, base.contract)
    assert len(candidates) > 30
    assert len({c.family for c in candidates}) > 6
    text = with_variants(source, candidates)
    assert text.decode().split("#line 1\n")[1].count("\n") == base.text.count("\n")
    assert text.count(f"{SWITCH} == {len(candidates)} ".encode()) >= 1
    made = compile_contract(
        base.contract, text, arch=base.arch, instances=(base.chosen,), path=str(base.path), want=("ptx",)
    )
    assert made.ptx is not None, [d.message for d in made.diagnostics]


def test_no_candidate_stands_in_the_end_of_a_loop_that_the_text_fixes() -> None:
    source = parse("kernel.cu", BASES["kv_outer"].text.encode())
    titles = [c.title for c in candidates_of(source, BASES["kv_outer"].contract)]
    assert not any("x <= DIM" in title for title in titles)
    assert any("j0 <= len_k" in title for title in titles)
