"""The difference of two functions: the part, the words, the first place where it shows, and the line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cubridge_engine.ir.expr import Call, Const, S
from cubridge_engine.understand.differences import semantic_difference
from cubridge_engine.understand.functions import function_of_attention, function_of_kernel
from tests.transfer.builders import make_attention
from tests.understand.kernels import ADAPTED, CAUSAL, SCALAR, SM80, adapted, edited, kernel

CAUSAL_ON = {"causal": 1}


def of_kernel(text: str, values=None):
    return function_of_kernel(kernel(text), values)


def against(text: str, values=None, **spec):
    """Differences of a kernel from a spec."""
    return semantic_difference(of_kernel(text, values), function_of_attention(make_attention(**spec)))


def line_of(text: str, piece: str) -> int:
    return text[: text.index(piece)].count("\n")


def test_a_kernel_does_not_differ_from_its_own_spec() -> None:
    assert against(SM80, {**CAUSAL_ON, "scale_log2": 0.125 * 1.4426950408889634}, mask=CAUSAL) == ()
    assert against(SCALAR, {"scale": 0.125}) == ()


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapted_kernel_does_not_differ_from_what_it_was_adapted_to(name: str) -> None:
    values = {"causal": 1, "scale_log2": 0.125 * 1.4426950408889634}
    assert against(adapted(name), values, **ADAPTED[name]) == ()


def test_an_off_by_one_in_the_mask_is_shown_at_its_first_key() -> None:
    wrong = edited(SM80, ("col > row + sk - sq", "col >= row + sk - sq"))
    (found,) = against(wrong, {**CAUSAL_ON, "scale_log2": 0.18}, mask=CAUSAL, score="s * 0.18 / 1.4426950408889634")
    assert found.part == "mask"
    assert "j < Sk + i - Sq" in found.found
    assert "j <= " in found.expected
    w = found.witness
    assert w is not None
    assert (w.b, w.h, w.i) == (0, 0, 0)
    assert w.j == w.i + w.sizes["Sk"] - w.sizes["Sq"]
    assert (w.found, w.expected) == ("masked", "attended")
    assert found.span is not None
    assert found.span.line == line_of(wrong, "if (col >= sk")


def test_a_range_that_is_too_short_is_a_difference_though_the_mask_is_right() -> None:
    wrong = edited(SM80, ("kv_end = min(sk, q0 + Br + sk - sq);", "kv_end = min(sk, q0 + sk - sq);"))
    (found,) = against(wrong, {**CAUSAL_ON, "scale_log2": 0.18}, mask=CAUSAL, score="s * 0.18 / 1.4426950408889634")
    assert found.part == "mask"
    assert "the tiles that are visited or tested do not" in found.sentence


def test_a_guard_that_spares_a_tile_is_a_difference() -> None:
    wrong = edited(SM80, ("causal && kv0 + Bc - 1 > q0 + sk - sq", "causal && kv0 > q0 + sk - sq"))
    (found,) = against(wrong, {**CAUSAL_ON, "scale_log2": 0.18}, mask=CAUSAL, score="s * 0.18 / 1.4426950408889634")
    assert found.part == "mask"
    assert "the tiles that are visited or tested do not" in found.sentence


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        (("s[i] *= scale;", "s[i] *= scale * scale;"), "score", "scale"),
        (("const int hk = h / (heads / kv_heads);", "const int hk = h % kv_heads;"), "heads", "h % Hkv"),
        (("m + logf(l)", "(m + logf(l)) * 1.4426950408889634f"), "lse", "base-2"),
        (("float l = 0.f;", "float l = part == 0 ? 1.f : 0.f;"), "sink", ""),
        (("o[i] * inv_l;", "o[i] * inv_l * 2.f;"), "weights", "stored as"),
        (("s[i] = -INFINITY;", "s[i] = -5000.f;"), "fill", "-5000"),
    ],
)
def test_each_part_is_named(change: tuple[str, str], part: str, words: str) -> None:
    base = function_of_kernel(kernel(SCALAR))
    masked = edited(SCALAR, ("if (col >= sk) {", "if (col >= sk || col > row) {")) if part == "fill" else SCALAR
    if part == "fill":
        base = function_of_kernel(kernel(masked))
    wrong = function_of_kernel(kernel(edited(masked, change)))
    found = {d.part: d for d in semantic_difference(wrong, base)}
    assert part in found, list(found)
    assert words in found[part].found + found[part].sentence


def test_more_than_was_asked_for_is_no_difference_unless_it_is_strict() -> None:
    found = function_of_kernel(kernel(SCALAR), {"scale": 0.125})
    asked = function_of_attention(make_attention(head_map="h"))
    assert "lse" not in {d.part for d in semantic_difference(found, asked)}
    assert "heads" not in {d.part for d in semantic_difference(found, asked)}
    strict = {d.part for d in semantic_difference(found, asked, strict=True)}
    assert {"lse", "heads"} & strict


def test_what_cannot_be_evaluated_is_never_agreement() -> None:
    base = function_of_kernel(kernel(SCALAR), {"scale": 0.125})
    odd = replace(base, score=Call("shl", (S, Const(1))))  # bits of a float
    assert any(d.part == "undecided" for d in semantic_difference(odd, base))
