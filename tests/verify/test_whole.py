"""The whole function with a kernel in its drop-in: right kernels pass, kernels that are a little wrong do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec import evaluate_attention, read_spec
from cubridge_engine.spec.attention import Attention
from cubridge_engine.spec.dropin import DropIn, drop_in
from cubridge_engine.verify.whole import whole_case, with_four_axes

EXAMPLE = Path(__file__).parents[2] / "examples" / "gated_window.py"


@cache
def made() -> DropIn:
    result = read_spec(str(EXAMPLE))
    assert result.attention is not None
    return drop_in(result.core, result.attention)


def kernel_of(attention: Attention, dtype: str, change: Callable[[Any], Any] = lambda o: o) -> Callable[..., Any]:
    """A kernel that computes `attention` in float64 on inputs rounded to `dtype`."""
    four = with_four_axes(attention)

    def kernel(*tensors: Any) -> Any:
        rounded = [t.detach().to(getattr(torch, dtype)).double().numpy() for t in tensors]
        out = torch.from_numpy(evaluate_attention(four, rounded)[0])
        return change(out).to(getattr(torch, dtype)).to(tensors[0].dtype)

    return kernel


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_kernel_passes(dtype: str) -> None:
    case, found = whole_case(made(), kernel_of(made().attention, dtype), dtype)
    assert case.passed
    assert found == ()
    assert case.name == "whole module"
    assert case.sizes["D"] == 64
    assert float(case.worst_o) < case.tolerance


WRONG: dict[str, tuple[dict[str, str], Callable[[Any], Any]]] = {
    "a window of one key more": ({"mask": "j <= i & i - j <= 24"}, lambda o: o),
    "a strict mask": ({"mask": "j < i & i - j < 24 | i == 0"}, lambda o: o),
    "another scale": ({"score": "s * 0.11"}, lambda o: o),
    "heads exchanged": ({}, lambda o: o.flip(1)),
    "rows exchanged": ({}, lambda o: o.flip(2)),
    "not written": ({}, lambda o: o * float("nan")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_fails(name: str) -> None:
    parts, change = WRONG[name]
    wrong = replace(made().attention, **{part: parse_expr(text) for part, text in parts.items()})
    case, found = whole_case(made(), kernel_of(wrong, "float32", change), "float32")
    assert not case.passed
    assert [d.code for d in found] == ["CB725"]


def test_a_wrong_drop_in_is_no_rounding() -> None:
    text = made().text.replace("torch.sigmoid", "torch.tanh").replace(".sigmoid()", ".tanh()")
    assert text != made().text
    spoiled = replace(made(), text=text)
    case, found = whole_case(spoiled, kernel_of(made().attention, "float32"), "float32")
    assert not case.passed
    assert "exact kernel" in found[0].message
