"""reference, eager, make_inputs, evaluate_attention: the spec and the value read from it, at any sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cubridge_engine.spec import Attention, SpecResult, eager, evaluate_attention, make_inputs, reference

from .conftest import GROUPED, SQUARE, spec_text
from .test_read_table import manual, masked

Reader = Callable[..., SpecResult]


def attention_of(result: SpecResult) -> Attention:
    assert result.attention is not None, [d.message for d in result.diagnostics]
    return result.attention


def numpy_of(tensors: list[Any]) -> list[Any]:
    return [(t.double() if t.dtype.is_floating_point else t).numpy() for t in tensors]


def test_reference_does_not_round_what_positions_give(read: Reader) -> None:
    """Integers times a number have torch's default dtype; a rounded cosine shows in rows of large scores."""
    text = spec_text(
        """
        def attention(q, k, v):
            d = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
            s = q @ k.mT * torch.cos(d * 0.1) * 10.0 + d / 7
            return torch.softmax(s, dim=-1) @ v
        """,
        dtype="float32",
    )
    result = read(text)
    assert result.program is not None
    sizes = {"B": 1, "H": 2, "Hkv": 2, "Sq": 33, "Sk": 65}
    inputs = make_inputs(attention_of(result), sizes, seed=3)
    (got,) = numpy_of(reference(result.program, inputs))
    q, k, v = numpy_of(inputs)
    d = np.arange(q.shape[-2])[:, None] - np.arange(k.shape[-2])
    s = q @ np.swapaxes(k, -1, -2) * np.cos(d * 0.1) * 10.0 + d / 7
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(got, p / p.sum(-1, keepdims=True) @ v, rtol=0, atol=1e-12)


def test_reference_does_not_round(read: Reader) -> None:
    """A spec full of narrow casts is evaluated as if it had none."""
    text = spec_text(
        """
        def attention(q, k, v):
            s = (q.half() @ k.half().mT).to(torch.bfloat16).float() * 0.125
            p = F.softmax(s, dim=-1, dtype=torch.float32).type_as(q).to(v.dtype)
            acc = torch.zeros(v.shape[-1], dtype=torch.float16)
            return (p @ v + acc).half()
        """,
        dtype="bfloat16",
    )
    result = read(text)
    attention = attention_of(result)
    assert result.program is not None
    inputs = make_inputs(attention, {"B": 1, "H": 2, "Hkv": 2, "Sq": 33, "Sk": 65}, seed=3)
    (got,) = reference(result.program, inputs)
    q, k, v = (t.double() for t in inputs)
    expected = torch.softmax(q @ k.mT * 0.125, -1) @ v
    assert got.dtype is torch.float64
    assert torch.allclose(got, expected, rtol=1e-13, atol=1e-13)
    (own,) = eager(result.program, inputs)
    assert own.dtype is torch.float16
    assert 1e-6 < (own.double() - expected).abs().max() < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_finfo_is_that_of_the_dtype(read: Reader, dtype: str) -> None:
    """finfo(q.dtype).min keeps the value of the user's dtype inside the float64 reference."""
    text = spec_text(manual("s = s.masked_fill(j > i, torch.finfo(q.dtype).min)"), dtype=dtype)
    attention = attention_of(read(text))
    assert getattr(attention.fill, "value", None) == torch.finfo(getattr(torch, dtype)).min


@pytest.mark.parametrize("sizes", [(1, 2, 2, 7, 90), (2, 6, 2, 64, 64), (3, 4, 1, 100, 31)])
def test_value_equals_spec(read: Reader, sizes: tuple[int, ...]) -> None:
    text = spec_text(
        """
        def attention(q, k, v, keep, bias):
            b, h, n, d = q.shape
            k, v = (x.repeat_interleave(h // k.shape[1], 1) for x in (k, v))
            s = 4 * torch.tanh(q @ k.mT / d ** 0.5 / 4) + bias
            s = s.masked_fill(~keep, -math.inf)
            return s.softmax(-1) @ v, s.logsumexp(-1)
        """,
        GROUPED,
        "torch.rand(2, 1, 48, 48) < 0.5, torch.randn(4, 48, 48)",
    )
    result = read(text)
    attention = attention_of(result)
    assert result.program is not None
    named: dict[str, int] = dict(zip(("B", "H", "Hkv", "Sq", "Sk"), sizes, strict=True))
    inputs = make_inputs(attention, named, seed=5, empty_rows=True)
    assert [tuple(t.shape) for t in inputs[3:]] == [(sizes[0], 1, sizes[3], sizes[4]), (sizes[1], sizes[3], sizes[4])]
    expected = numpy_of(reference(result.program, inputs))
    assert np.isnan(expected[0]).any()
    assert np.isneginf(expected[1]).any()
    for x, y in zip(evaluate_attention(attention, numpy_of(inputs)), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_a_wrong_value_differs(read: Reader) -> None:
    """The comparison has teeth: one key more in the window is seen."""
    from dataclasses import replace

    from cubridge_engine.ir.text_expr import parse_expr

    result = read(spec_text(masked("(j <= i) & (i - j < 16)")))
    attention = attention_of(result)
    assert result.program is not None
    inputs = make_inputs(attention, {"B": 1, "H": 1, "Hkv": 1, "Sq": 40, "Sk": 40})
    (expected,) = numpy_of(reference(result.program, inputs))
    wrong = replace(attention, mask=parse_expr("j <= i & i - j <= 16"))
    (right_value,), (wrong_value,) = (evaluate_attention(a, numpy_of(inputs)) for a in (attention, wrong))
    np.testing.assert_allclose(right_value, expected, atol=1e-12)
    assert np.abs(wrong_value - expected).max() > 1e-3


def test_inputs_keep_their_kind(read: Reader) -> None:
    text = spec_text(
        manual(
            "s = (s + slopes[:, None, None] * (j - i)).masked_fill(j >= n.view(-1, 1, 1, 1), -1e9).half()",
            ", slopes, n",
        ),
        SQUARE,
        "torch.rand(4) + 0.1, torch.tensor([48, 20])",
        dtype="float16",
    )
    attention = attention_of(read(text))
    sizes = {"B": 3, "H": 8, "Hkv": 8, "Sq": 16, "Sk": 32}
    q, _, _, slopes, lengths = make_inputs(attention, sizes, "bfloat16", seed=1, scale=2.0)
    assert (q.dtype, slopes.dtype, lengths.dtype) == (torch.bfloat16, torch.float32, torch.int64)
    assert slopes.shape == (8,)
    assert bool((slopes > 0).all())
    assert lengths.shape == (3,)
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 32
    assert 1.7 < float(q.float().std()) < 2.3
    again = make_inputs(attention, sizes, "bfloat16", seed=1, scale=2.0)
    assert torch.equal(again[0], q)
    assert torch.equal(again[4], lengths)


def test_sizes_fixed_by_the_code_are_reported(read: Reader) -> None:
    """Four numbers written into the spec fix the number of heads."""
    result = read(spec_text(manual("s = s + torch.cat([torch.full((1, 1, 1), x) for x in (0.5, 0.1, 0.7, 0.3)]) * j")))
    attention = attention_of(result)
    assert attention.specialised["H"] == 4
    assert "CB240" in [d.code for d in result.diagnostics]
    assert not attention.allows({"H": 8})


def test_a_first_batch_only_spec_is_for_one_batch(read: Reader) -> None:
    text = "def attention(q, k, v):\n    return ((q[0] @ k[0].mT / 32 ** 0.5).softmax(-1) @ v[0])[None]\n"
    attention = attention_of(read(spec_text(text, ((1, 4, 48, 32),) * 3)))
    assert attention.specialised["B"] == 1
    assert attention.allows({"B": 1, "Sq": 9, "Sk": 30})
    assert not attention.allows({"B": 2})


def test_a_branch_on_the_length_is_not_read_as_general(read: Reader) -> None:
    """Both branches exist, so neither is the meaning at every length."""
    result = read(spec_text(manual("s = torch.tanh(s) if 500 < k.shape[2] < 600 else s")))
    attention = attention_of(result)
    assert attention.specialised["Sq"] == attention.specialised["Sk"] == 48
    note = next(d for d in result.diagnostics if d.code == "CB240")
    assert "it computes something else" in note.message


def test_a_window_that_a_branch_turns_on_is_not_read_as_general(read: Reader) -> None:
    """From 25 keys on the window would have an effect, but the branch comes at 41: between them all keys are kept."""
    change = "if q.shape[2] > 40:\n        s = s.masked_fill((i - j).abs() >= 25, -math.inf)"
    attention = attention_of(read(spec_text(manual(change))))
    assert not attention.allows({"B": 1, "H": 4, "Hkv": 4, "Sq": 33, "Sk": 33, "D": 32})


def test_equal_lengths_are_reported(read: Reader) -> None:
    text = spec_text(manual("s = s.masked_fill(torch.ones(q.shape[2], q.shape[2]).triu(1) > 0, -math.inf)"))
    result = read(text)
    attention = attention_of(result)
    assert ("Sq", "Sk") in attention.equal_sizes
    assert "CB241" in [d.code for d in result.diagnostics]
    assert not attention.allows({"Sq": 8, "Sk": 9})
    assert attention.allows({"Sq": 9, "Sk": 9, "H": 2, "Hkv": 2})


def test_another_head_dimension(read: Reader) -> None:
    attention = attention_of(read(spec_text(manual("pass")), head_dim=64))
    assert attention.specialised["D"] == 64
    from .test_read_table import same

    same(attention.score, "s / 8.0")
