"""What was seen when a kernel ran: said with its problem, compared with the text, and never said where nothing ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.pipeline.explain import explain_kernel
from cubridge_engine.understand.functions import function_of_kernel
from cubridge_engine.understand.observed import disagreements, with_watched
from cubridge_engine.watch import Watched, watch_contract
from tests.lift.conftest import ROOT
from tests.understand.kernels import SCALAR, edited, explained, kernel

CONTRACT = ROOT / "expert_kernels" / "flash_fwd_scalar" / "contract.toml"


@pytest.fixture(scope="module")
def watched() -> Watched:
    contract, _ = read_contract(CONTRACT)
    assert contract is not None
    found = watch_contract(contract)
    if not found.ran:
        pytest.skip("; ".join(d.message for d in found.diagnostics))
    return found


def test_what_ran_is_said_with_the_problem_it_ran_on(watched: Watched) -> None:
    found, _ = with_watched(explained(SCALAR), watched, kernel(SCALAR))
    text, limit = [s.text for s in found.sentences if s.evidence == "observed" and s.topic == "function"]
    assert "full softmax attention, scale 1/sqrt(D)" in text
    assert watched.problem is not None
    assert f"Sk = {watched.problem.Sk}" in text
    assert f"A window of {watched.problem.Sk} keys" in limit
    assert not [s for s in found.sentences if s.topic == "disagreement"]
    assert {f.key for f in found.facts if f.evidence == "observed"} >= {"site:S", "site:O"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("if (col >= sk) {", "if (col >= sk || col > row) {"), "disagree on the mask, first at b=0 h=0 i=0 j=1"),
        (("s[i] *= scale;", "s[i] *= 0.5f * scale;"), "disagree on the score"),
        (("m + logf(l)", "(m + logf(l)) * 1.4426950408889634f"), "disagree on LSE: log2 by the text, natural"),
    ],
)
def test_a_text_that_is_not_what_ran_is_said_to_disagree(watched: Watched, change: tuple[str, str], words: str) -> None:
    wrong = edited(SCALAR, change)
    found, _ = with_watched(explained(wrong), watched, kernel(wrong))
    first = found.sentences[0]
    assert first.topic == "disagreement"
    assert words in first.text
    assert first.spans
    assert tuple(disagreements(function_of_kernel(kernel(SCALAR)), watched, ())) == ()


def test_a_kernel_that_was_not_read_is_told_by_what_ran(watched: Watched) -> None:
    unread = explained(edited(SCALAR, ("s[i] *= scale;", "s[i] = mystery(s[i], scale);")))
    found, _ = with_watched(unread, watched, None)
    assert "run, it computes full softmax attention" in found.title
    assert found.equations == ()


def test_nothing_is_said_of_what_did_not_run(watched: Watched) -> None:
    nothing = Watched("k", "k.cu", "", None, False, None)
    found, _ = with_watched(explained(SCALAR), nothing, kernel(SCALAR))
    assert not [s for s in found.sentences if s.evidence == "observed"]
    assert not [f for f in found.facts if f.evidence == "observed"]
    assert any("was not run in the simulator" in s.text for s in found.unknown)
    other = replace(watched, function=None)
    found, _ = with_watched(explained(SCALAR), other, kernel(SCALAR))
    assert not [s for s in found.sentences if s.evidence == "observed" and s.topic == "function"]
    assert any("none of the attention functions" in s.text for s in found.unknown)


def test_the_watched_problem_is_the_one_that_is_compared(watched: Watched) -> None:
    """A mask of the run that differs in one place only is found at that place."""
    assert watched.function is not None
    assert watched.function.meaning is not None
    mask = np.array(np.broadcast_to(watched.function.meaning.mask, watched.function.meaning.scores.shape))
    mask[0, 1, 5, 7] = False
    other = replace(watched, function=replace(watched.function, meaning=replace(watched.function.meaning, mask=mask)))
    (found,) = disagreements(function_of_kernel(kernel(SCALAR)), other, ())
    assert "b=0 h=1 i=5 j=7" in found.text
    assert Path(found.spans[0].path).name == "kernel.cu"


def test_the_side_of_an_if_that_the_compiler_takes_is_told(tmp_path: Path) -> None:
    """Reading takes sm_80, the kernel is compiled for sm_75: the text says causal, the run says full."""
    both = "#if __CUDA_ARCH__ >= 800\n      if (col >= sk || col > row) {\n#else\n      if (col >= sk) {\n#endif"
    path = tmp_path / "kernel.cu"
    path.write_text(CONTRACT.with_name("kernel.cu").read_text().replace("      if (col >= sk) {", both))
    found = explain_kernel(str(path), watch=True)
    (told,) = [d for d in found.diagnostics if d["code"] == "CB132"]
    assert "the mask, first at b=0 h=0 i=0 j=1: masked by the text, attended when it ran" in told["message"]
    assert told["help"]
    assert path.read_text().splitlines()[told["span"]["line"]].strip() == "if (col >= sk || col > row) {"
    assert found.agrees is False
    assert found.sentences[0].topic == "disagreement"
