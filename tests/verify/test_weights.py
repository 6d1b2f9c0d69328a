"""Weights that are no softmax in verification: how far inputs go, what rounding may move, what is still rejected."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cubridge_engine.ir.expr import Const
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec.formula import evaluate_attention
from cubridge_engine.transfer import transfer
from cubridge_engine.verify.derive import natural_scale, tile_for
from cubridge_engine.verify.explain import Binding, explain
from cubridge_engine.verify.measure import measure_o
from cubridge_engine.verify.weights import score_slack
from tests.verify.conftest import attention

CAUSAL = "j <= i + (Sk - Sq)"


@pytest.fixture
def program(flash):
    return parse_kernel(flash)


def weights(score, mask=None, divisor=None, normaliser="none"):
    made = attention(score, mask, fill=Const(0.0))
    by = parse_expr(divisor) if divisor else None
    return replace(made, normaliser=normaliser, divisor=by, empty_rows="computed")


def arrays_of(sq=40, sk=40, heads=2, d=8, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = ((1, heads, sq, d), (1, heads, sk, d), (1, heads, sk, d))
    return [rng.standard_normal(s).astype(dtype).astype(np.float64) for s in shapes]


@pytest.mark.parametrize(
    ("score", "scale", "reach"),
    [
        ("sigmoid(s * 0.125 - log(float(Sk)))", 0.125, math.inf),
        ("relu(s * 0.25) * relu(s * 0.25)", 0.25, 25.0),
        ("exp(s * 0.125)", 0.125, 2.0),
        ("s * 0.125 * pow(0.96875, float(i - j))", 0.125, math.inf),
        ("1.0 + s * 0.125 + s * 0.125 * (s * 0.125) * 0.5", 0.125, 25.0),
    ],
)
def test_inputs_go_as_far_as_half_precision_does(program, score, scale, reach):
    spec = weights(score)
    assert natural_scale(spec, 64) == pytest.approx(scale)
    assert tile_for(spec, program).reach == reach


def test_a_softmax_has_no_limit(program):
    assert tile_for(attention(), program).reach == math.inf


def in_float32(spec, arrays):
    """O with the raw products summed in fp32, one step after another, and everything else exact."""
    q, k, v = arrays
    s = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for d in range(q.shape[3]):
        s += (q[..., d, None] * k[:, :, None, :, d]).astype(np.float32)
    # The formula takes its products from q and k, so hand it one-hot queries that pick the rounded scores.
    eye = np.broadcast_to(np.eye(q.shape[2]), (*q.shape[:2], q.shape[2], q.shape[2]))
    return evaluate_attention(spec, [eye, np.swapaxes(s.astype(np.float64), 2, 3), v])[0]


SPECS = {
    "linear, one key a row": weights("s * 0.125", "j == i"),
    "relu": weights("relu(s * 0.125)", CAUSAL),
    "retention": weights("s * 0.125 * pow(0.96875, float(i - j))", "j <= i", "max(abs(l), 1.0)", "sum"),
}


@pytest.mark.parametrize("name", SPECS)
def test_rounding_of_the_products_is_within_the_slack(name):
    spec = SPECS[name]
    for seed in range(6):
        arrays = arrays_of(seed=seed)
        want = evaluate_attention(spec, arrays)[0]
        slack = score_slack(spec, arrays, dict(zip("qkv", arrays, strict=True)))
        got = in_float32(spec, arrays)
        assert (np.abs(got - want) <= slack + 1e-15).all()
        # It excuses rounding only: far below what a wrong weight moves.
        assert slack.max() < 1e-4 * np.abs(want).max()


def test_rounding_alone_would_fail_a_row_of_one_cancelled_key():
    spec = SPECS["linear, one key a row"]
    q, k, v = arrays_of(seed=3)
    # One product that nearly cancels: its fp32 sum keeps few digits, and the row has no other weight.
    q[0, 0, 5], k[0, 0, 5] = 1.0, 0.0
    k[0, 0, 5, :3] = (1.0, 3e-8, -1.0)
    arrays = [q, k, v]
    want = evaluate_attention(spec, arrays)[0]
    got = in_float32(spec, arrays)
    slack = score_slack(spec, arrays, dict(zip("qkv", arrays, strict=True)))
    assert not measure_o(got, want, "float32", None, "keep").passed
    assert measure_o(got, want, "float32", None, "keep", slack).passed


NEAR_MISSES = {
    "sigmoid: another bias": ("sigmoid(s * 0.125 - log(float(Sk)))", "sigmoid(s * 0.125 - log(float(Sk + 1)))", None),
    "sigmoid: no bias": ("sigmoid(s * 0.125 - log(float(Sk)))", "sigmoid(s * 0.125)", None),
    "retention: the decay one step further": (
        "s * 0.125 * pow(0.96875, float(i - j))",
        "s * 0.125 * pow(0.96875, float(i - j + 1))",
        "j <= i",
    ),
    "relu: leaky": ("relu(s * 0.125)", "max(s * 0.125, s * 0.00125)", None),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_near_misses_are_beyond_tolerance_and_slack(name, dtype):
    right, wrong, mask = NEAR_MISSES[name]
    arrays = arrays_of(70, 70, dtype=np.float16)
    spec = weights(right, mask)
    want = evaluate_attention(spec, arrays)[0]
    got = evaluate_attention(weights(wrong, mask), arrays)[0]
    slack = score_slack(spec, arrays, dict(zip("qkv", arrays, strict=True)))
    assert not measure_o(got, want, dtype, None, "keep", slack).passed


@pytest.mark.parametrize(
    ("divisor", "wrong"), [("max(abs(l), 1.0)", "max(l, 1.0)"), ("max(abs(l), 1.0)", None), ("l + 1.0e-6", "l + 1.0")]
)
def test_a_missing_or_other_divisor_is_rejected_and_explained(program, divisor, wrong):
    score = "s * 0.125" if "max" in divisor else "relu(s * 0.125)"
    want = weights(score, "j <= i", divisor, "sum")
    other = weights(score, "j <= i", wrong, "sum" if wrong else "none")
    arrays = arrays_of()
    a, b = (evaluate_attention(spec, arrays)[0] for spec in (want, other))
    slack = score_slack(want, arrays, dict(zip("qkv", arrays, strict=True)))
    assert not measure_o(b, a, "float16", None, "keep", slack).passed
    made = transfer(program, other)
    assert made.target is not None, made.diagnostics
    codes = [d.code for d in explain(made.target, Binding(made.bindings), want)]
    assert codes == ["CB707"]
    right = transfer(program, want)
    assert explain(right.target, Binding(right.bindings), want) == ()


def test_a_row_constant_is_no_difference_only_for_a_softmax(program):
    spec = weights("exp(s * 0.125)")
    made = transfer(program, weights("exp(s * 0.125 + 1.0)"))
    assert [d.code for d in explain(made.target, Binding(made.bindings), spec)] == ["CB703"]
    soft = transfer(program, attention("s * 0.125 + 1.0"))
    assert explain(soft.target, Binding(soft.bindings), attention("s * 0.125")) == ()
