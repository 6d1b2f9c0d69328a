"""Near misses of forms of the corpus, generated from what was read, are told apart on a kernel; and the generator's own
behaviour.
"""

from __future__ import annotations

import os

import pytest

from cubridge_engine.ir.expr import Const
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec import Attention, TensorInput, TensorOutput, read_spec
from tests.examples.adapted import adapt_to

from .forms import all_forms
from .near_misses import difference, near_misses
from .outcome import spec_path
from .tell_apart import SAME, survivors

# Forms of ours (nothing to fetch) whose expressions have what the examples do not.
NAMES = (
    "own alibi by distance",
    "own clipped relative table",
    "own softcap and bias",
    "own key lengths",
    "own heads by modulo",
    "own sink zero column",
    "own random eviction",
    "own shaw",
)


# Half of them where nothing else is asked for.
CHOSEN = NAMES if os.environ.get("CUBRIDGE_NEAR_MISSES") == "all" else NAMES[1::2]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_generated_near_misses_are_told_apart(name: str) -> None:
    form = next(form for form in all_forms() if form.name == name)
    result = read_spec(str(spec_path(form)), time_limit=120.0)
    assert result.attention is not None
    passed, rejected = survivors(adapt_to(result.attention, result.program, "flash_fwd_scalar"))
    assert not passed, passed
    assert rejected >= 1


def value(score: str, mask: str | None, operands: tuple[TensorInput, ...] = (), head_map: str = "h") -> Attention:
    tensors = (
        TensorInput("q", "q", ("b", "h", "i", "d"), "float32", 0),
        TensorInput("k", "k", ("b", "hk", "j", "d"), "float32", 1),
        TensorInput("v", "v", ("b", "hk", "j", "d"), "float32", 2),
    )
    return Attention(
        name="attention",
        path="spec.py",
        inputs=(*tensors, *operands),
        outputs=(TensorOutput("o", ("b", "h", "i", "d"), "float32", 0),),
        head_map=parse_expr(head_map),
        score=parse_expr(score),
        mask=None if mask is None else parse_expr(mask),
        fill=Const(float("-inf")),
        sink=None,
        normaliser="softmax",
        empty_rows="nan",
        specialised={"D": 16},
        equal_sizes=(("H", "Hkv"),) if head_map == "h" else (),
    )


BIAS = TensorInput("bias", "operand", ("H", "Sq", "Sk"), "float32", 3)
SLOPES = TensorInput("slopes", "operand", ("H",), "float32", 3)


def test_every_kind_is_generated() -> None:
    spec = value("tanh(s / 8.0) * 8.0 + bias[h, i, j]", "j <= i & i - j < 64", (BIAS,), "h // (H // Hkv)")
    names = {miss.name for miss in near_misses(spec)}
    assert {
        "comparison shifted by one: mask: j <= i -> j <= i + 1",
        "strict for non-strict: mask: i - j < 64 -> i - j <= 64",
        "and for or: mask: j <= i & i - j < 64 -> j <= i | i - j < 64",
        "alignment: mask: i -> i + (Sk - Sq)",
        "operand axes swapped: score: bias[h, i, j] -> bias[h, j, i]",
        "head of an operand: score: bias[h, i, j] -> bias[h % 2, i, j]",
        "head map: h % Hkv",
        "order: softcap after the mask",
        "order: bias before the softcap",
        "term dropped: no mask",
    } <= names
    assert any(name.startswith("sign flipped: score") for name in names)


def test_what_softmax_cancels_is_found_equal_by_computing() -> None:
    spec = value("s * 0.25 + slopes[h] * (j - i)", "j <= i", (SLOPES,))
    by_name = {miss.name: difference(spec, miss.attention) for miss in near_misses(spec)}
    assert by_name["term dropped: score: j - i -> j"] <= SAME
    assert by_name["alignment: score: i -> i + (Sk - Sq)"] <= SAME
    assert by_name["distance: score: j - i -> abs(j - i)"] > SAME
    assert by_name["strict for non-strict: mask: j <= i -> j < i"] == float("inf")
    assert by_name["head of an operand: score: slopes[h] -> slopes[h % 2]"] > SAME
