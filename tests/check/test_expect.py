"""Expectations in words, and what a kernel computes against them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cubridge_engine.check.expect import parse_expect, promised
from cubridge_engine.check.expectation import expected_findings
from cubridge_engine.check.numbers import reference
from cubridge_engine.check.watch_cases import meant, watch_cases
from cubridge_engine.spec.attention import Attention
from cubridge_engine.spec.formula import keep_mask

from .planted import SCALAR, SM80, contract_of, read, text_of


def _expect(text: str) -> Attention:
    found, problems = parse_expect(text, 64)
    assert found is not None, problems
    return found


def _keep(text: str, sq: int, sk: int) -> np.ndarray:
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": sq, "Sk": sk}
    return keep_mask(_expect(text), [np.zeros(1)] * 3, sizes)[0, 0]


def test_masks_are_those_of_their_words() -> None:
    i, j = np.indices((5, 9))
    assert _keep("full", 5, 9).all()
    assert (_keep("causal", 5, 9) == (j <= i + 4)).all()
    assert (_keep("causal_top_left", 5, 9) == (j <= i)).all()
    assert (_keep("strict", 5, 9) == (j < i + 4)).all()
    assert (_keep("window=2", 5, 9) == (abs(j - i - 4) <= 2)).all()
    assert (_keep("causal, window=2:1", 5, 9) == ((j <= i + 4) & (j >= i + 2))).all()


def test_softcap_and_scale_change_the_score() -> None:
    tensors = {role: np.full((1, 1, 1, 64), 0.5) for role in "qkv"}
    plain = reference(_expect("full"), tensors)[1]
    assert plain[0, 0, 0] == pytest.approx(16 / 8)
    assert reference(_expect("scale=0.5"), tensors)[1][0, 0, 0] == pytest.approx(8)
    assert reference(_expect("softcap=3"), tensors)[1][0, 0, 0] == pytest.approx(3 * math.tanh(2 / 3))


@pytest.mark.parametrize("word", ["causl", "window=-1", "window=x", "softcap=0", "scale=nan", "causal=1", "gqa=2"])
def test_a_word_that_means_nothing_is_refused_by_name(word: str) -> None:
    found, problems = parse_expect(f"full,{word}", 64)
    assert found is None
    assert [p.code for p in problems] == ["CB875"]
    assert f"'{word}'" in problems[0].message


def test_a_contract_promises_a_mask_for_each_value_of_its_flag() -> None:
    assert [flag for flag, _ in promised(contract_of(SM80), 64)] == [0, 1]
    full, causal = (meaning for _, meaning in promised(contract_of(SM80), 64))
    assert full.mask is None
    assert causal.mask == _expect("causal").mask
    assert [flag for flag, _ in promised(contract_of(SCALAR), 64)] == [0]


# (kernel, edit or None, expectation) -> words of the one finding and a text on its line; None: no finding.
DIFFERENCES = {
    "right": (SM80, None, "causal,gqa", None, ""),
    "right with the switch off": (SM80, None, "full,gqa", None, ""),
    "fewer heads than asked": (SCALAR, None, "full", None, ""),
    "mask off by one": (
        SM80, ("col > row + sk - sq", "col >= row + sk - sq"), "causal,gqa",
        ("first differs at b=0 h=0 i=0 j=0", "masked, expected attended"), "col >= row",
    ),
    "no mask at all": (SCALAR, None, "causal", ("every key", "expected causal"), "if (col >= sk)"),
    "another alignment": (SM80, None, "causal_top_left", ("attended, expected masked",), "col > row + sk - sq"),
    "scale twice": (SCALAR, ("s[i] *= scale;", "s[i] *= scale * scale;"), "full", ("score is",), "scale * scale"),
    "no softcap": (SCALAR, None, "softcap=30", ("tanh",), "s[i] *= scale"),
    "another head map": (SCALAR, ("h / (heads / kv_heads)", "h % kv_heads"), "gqa", ("h % Hkv",), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_said_as_mathematics_at_its_line(name: str) -> None:
    kernel, edit, expectation, words, marker = DIFFERENCES[name]
    text = text_of(kernel, *([edit] if edit else []))
    subject = read(kernel, text)
    assert subject.kernel is not None
    found, blind = expected_findings(subject.kernel, _expect(expectation), contract_of(kernel))
    assert blind == ()
    if words is None:
        assert found == ()
        return
    assert [f.code for f in found] == ["CB882"], [f.diagnostic.message for f in found]
    said = found[0].diagnostic.message
    for part in words:
        assert part.lower() in said.lower(), said
    assert found[0].span is not None
    assert marker in text.split("\n")[found[0].span.line]


def test_a_program_that_is_no_attention_is_said_to_be_not_compared() -> None:
    subject = read(SM80, text_of(SM80, ("pack2<T>(s[2 * kk][0], s[2 * kk][1])", "pack2<T>(s[2 * kk][1], 0.f)")))
    if subject.kernel is None:
        pytest.skip("nothing was read")
    found, blind = expected_findings(subject.kernel, _expect("full"), contract_of(SM80))
    assert found == ()
    assert blind


def test_an_expectation_without_gqa_says_nothing_of_heads_that_share_one() -> None:
    """So that `--watch --expect causal` leaves them out, where the contract takes them."""
    contract = contract_of(SM80)
    cases = watch_cases(contract, contract.instances[0], (1,))
    assert {meant(case, _expect("causal")) for case in cases if case.case.Hkv == case.case.H} == {True}
    assert {meant(case, _expect("causal")) for case in cases if case.case.Hkv != case.case.H} == {False}
    assert all(meant(case, _expect("causal,gqa")) for case in cases)
