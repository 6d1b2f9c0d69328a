# ruff: noqa: E501 - a spec text reads best as one string
"""Weights that are no softmax: what they are read as, and what must not be taken for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cubridge_engine.ir.expr import Const
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.spec import SpecResult, evaluate_attention
from cubridge_engine.spec.nodes import Algebra
from cubridge_engine.spec.normalisers import peel_weight

from .conftest import CROSS, SQUARE, spec_text
from .test_read_table import same

BODY = """
def attention(q, k, v{args}):
    S, T = q.shape[-2], k.shape[-2]
    i, j = torch.arange(S)[:, None], torch.arange(T)[None, :]
    causal = j <= i + (T - S)
    s = q @ k.transpose(-1, -2) * 0.125
    {change}
    return w @ v
"""
CAUSAL = "j <= i + Sk - Sq"
GAMMA = "pow(1.0 - pow(2.0, -5 - h), i - j)"


def weights(change: str, shapes: tuple[tuple[int, ...], ...] = CROSS, args: str = "", extra: str = "") -> str:
    return spec_text(BODY.format(change=change, args=args), shapes, extra)


DECAY = "g = (1 - 2.0 ** (-5 - torch.arange(q.shape[1], dtype=torch.float32)))[:, None, None]; w = s * torch.where(j <= i, g ** (i - j), 0.0)"

# name: (spec text, score, mask, normaliser, divisor)
CASES: dict[str, tuple[str, str, str | None, str, str | None]] = {
    "sigmoid": (weights("w = torch.sigmoid(s)"), "sigmoid(s * 0.125)", None, "none", None),
    "sigmoid with -log n, masked by -inf": (
        weights("w = torch.sigmoid((s - math.log(T)).masked_fill(~causal, float('-inf')))"),
        "sigmoid(s * 0.125 - log(float(Sk)))",
        CAUSAL,
        "none",
        None,
    ),
    "sigmoid, masked by -1e9": (
        weights("w = torch.sigmoid(s.masked_fill(~causal, -1e9))"),
        "sigmoid(s * 0.125)",
        CAUSAL,
        "none",
        None,
    ),
    "a fill that weighs something": (
        weights("w = torch.sigmoid(s.masked_fill(~causal, -3.0))"),
        f"sigmoid(where({CAUSAL}, s * 0.125, -3.0))",
        None,
        "none",
        None,
    ),
    "relu over the length": (weights("w = F.relu(s) / T"), "relu(s * 0.125)", None, "none", "float(Sk)"),
    "relu squared": (weights("w = F.relu(s) ** 2 * causal"), "relu(s * 0.125) * relu(s * 0.125)", CAUSAL, "none", None),
    "relu over its sum": (
        weights("w = F.relu(s) * causal; w = w / (w.sum(-1, keepdim=True) + 1e-6)"),
        "relu(s * 0.125)",
        CAUSAL,
        "sum",
        "l + 1e-6",
    ),
    "linear": (weights("w = torch.where(causal, s, 0.0)"), "s * 0.125", CAUSAL, "none", None),
    "polynomial": (
        weights("w = (1 + s + s * s / 2) * causal"),
        "1.0 + s * 0.125 + s * s * 0.0078125",
        CAUSAL,
        "none",
        None,
    ),
    "exp": (weights("w = s.exp().masked_fill(~causal, 0)"), "exp(s * 0.125)", CAUSAL, "none", None),
    "elu + 1": (
        weights("w = (F.elu(s) + 1) * causal"),
        "where(s > 0.0, s * 0.125, exp(s * 0.125) - 1.0) + 1.0",
        CAUSAL,
        "none",
        None,
    ),
    "gelu": (weights("w = F.gelu(s)"), "s * 0.0625 * (erf(s * 0.125 * sqrt(0.5)) + 1.0)", None, "none", None),
    "retention": (weights(DECAY, SQUARE), f"s * 0.125 * {GAMMA}", "j <= i", "none", None),
    "retention over max(|sum|, 1)": (
        weights(DECAY + "; w = w / w.detach().sum(-1, keepdim=True).abs().clamp(min=1)", SQUARE),
        f"s * 0.125 * {GAMMA}",
        "j <= i",
        "sum",
        "max(abs(l), 1.0)",
    ),
    "retention over the absolute sum": (
        weights(DECAY + "; w = w / w.detach().abs().sum(-1, keepdim=True).clamp(min=1, max=5e4)", SQUARE),
        f"s * 0.125 * {GAMMA}",
        "j <= i",
        "abs_sum",
        "min(max(l, 1.0), 50000.0)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reads(name: str, read: Callable[..., SpecResult]) -> None:
    text, score, mask, normaliser, divisor = CASES[name]
    result = read(text)
    assert result.attention is not None, [d.message for d in result.diagnostics]
    attention = result.attention
    assert attention.normaliser == normaliser
    assert (attention.divisor is None) == (divisor is None)
    if divisor is not None and attention.divisor is not None:
        for total in (-3.0, -0.25, 0.5, 7.0, 1e6):
            env = {"l": Const(total)}
            a, b = (_at(e, env) for e in (attention.divisor, parse_expr(divisor)))
            assert a == pytest.approx(b), print_expr(attention.divisor)
    assert (attention.mask is None) == (mask is None)
    if mask is None:
        same(attention.score, score)
        return
    assert attention.mask is not None
    same(attention.mask, mask)
    assert attention.fill == Const(0.0)
    # Masked elements weigh 0 whatever the score says, so the two need agree on the others only.
    same(*_where(attention, score, mask))


def _at(expr, env):
    from cubridge_engine.ir.evaluate import evaluate
    from cubridge_engine.ir.expr import Var, substitute

    values = {Var(n): v for n, v in env.items()} | {Var("Sk"): Const(61)}
    return float(np.asarray(evaluate(substitute(expr, values), {})))


def _where(attention, score, mask):
    from cubridge_engine.ir.expr import Call

    kept = Call("where", (parse_expr(mask), attention.score, Const(0.0)))
    return kept, f"where({mask}, {score}, 0.0)"


REFUSED = {
    "normalised over the queries": ("w = torch.softmax(s, -2)", "CB225"),
    "exp over its sum and something": ("e = s.exp(); w = e / (e.sum(-1, keepdim=True) + 1e-6)", "CB229"),
    "relu over the sum of other weights": ("w = F.relu(s) / s.sum(-1, keepdim=True)", "CB227"),
    "relu over its sum along the queries": ("w = F.relu(s); w = w / (w.sum(-2, keepdim=True) + 1)", "CB227"),
    "sigmoid of a row maximum": ("w = torch.sigmoid(s - s.amax(-1, keepdim=True))", "CB227"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_one_score_is_refused(name: str, read: Callable[..., SpecResult]) -> None:
    change, code = REFUSED[name]
    result = read(weights(change))
    assert result.attention is None
    assert result.diagnostics[0].code == code
    assert result.diagnostics[0].help


def test_only_exact_zeros_become_a_mask() -> None:
    algebra = Algebra({"i": 40, "j": 40, "h": 4, "b": 2})
    for text, masked in (
        ("sigmoid(where(j <= i, s, -1e9))", True),
        ("sigmoid(where(j <= i, s, -30.0))", False),
        ("exp(where(j <= i, s, -inf)) * 0.5", True),
        ("relu(where(j <= i, s, -1.0))", True),
        ("relu(where(j <= i, s, 1.0))", False),
        ("where(j <= i, s, 0.0) + 1.0", False),
        ("where(j <= i, s, 0.0) * exp(s)", True),
        ("exp(where(j <= i, float(i - j), inf) * (0.0 - 0.5 - float(h)))", True),
        ("exp(where(j <= i, float(i - j), inf) * (float(h) - 1.0))", False),
    ):
        found = peel_weight(algebra, parse_expr(text))
        assert (found.mask is not None) == masked, text


@pytest.mark.parametrize("change", ["w = F.relu(s) / T", "w = (1 + s) ** 2; w = w / w.sum(-1, keepdim=True)"])
def test_without_any_key_there_is_nothing_to_divide(change: str, read: Callable[..., SpecResult]) -> None:
    """torch's product over no keys is 0; the sum over no keys by its divisor, 0 / 0, would not be."""
    attention = read(weights(change)).attention
    assert attention is not None
    arrays = [np.ones((1, 2, n, 4)) for n in (3, 0, 0)]
    assert np.array_equal(evaluate_attention(attention, arrays)[0], np.zeros((1, 2, 3, 4)))
