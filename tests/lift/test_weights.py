"""Kernels without a softmax: their weights, row sum and divisor are read, and the program executes to their formula."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.ir.expr import Const
from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.transfer.semantics import semantics_of
from tests.lift.conftest import SCALAR, STYLES, edited, lift_text


def test_weights_row_sum_and_divisor_are_read():
    lifted = lift_text(STYLES["relu_weights"])
    assert lifted.coverage.complete
    sem = semantics_of(lifted.kernel)
    assert (sem.normaliser, sem.tail, sem.fill, sem.lse, sem.issues) == ("sum", True, Const(0.0), "none", ())
    assert print_expr(sem.output) == "s / (l + 1.0e-06)"
    assert {p.name: p.role for p in lifted.kernel.params}["factor"] == "scale"


@pytest.mark.parametrize("shape", [(1, 2, 70, 40), (2, 1, 130, 17)])
def test_the_program_executes_to_the_formula(shape):
    kernel = lift_text(STYLES["relu_weights"]).kernel
    b, h, sq, sk = shape
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((b, h, n, kernel.D)) for n in (sq, sk, sk))
    sizes = {"B": b, "H": h, "Hkv": h, "Sq": sq, "Sk": sk}
    found = execute(kernel, {"q": q, "k": k, "v": v}, sizes, {"factor": 0.3})
    assert found.findings == ()
    weights = np.maximum(q @ np.swapaxes(k, 2, 3) * 0.3, 0.0) ** 2
    np.testing.assert_allclose(found.o, weights @ v / (weights.sum(-1, keepdims=True) + 1e-6), atol=1e-12)


CHANGES = {
    "absolute values": (("total += weight[c]", "total += fabsf(weight[c])"), "abs_sum", ()),
    "no divisor": (("sum[d] / (total + 1e-6f)", "sum[d]"), "sum", ()),
    "a sum of something else": (
        ("total += weight[c]", "total += 2.0f * weight[c]"),
        "sum",
        ("the row sum adds up something else than the weights",),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_row_sum_adds_up_is_told_apart(name):
    change, normaliser, issues = CHANGES[name]
    sem = semantics_of(lift_text(edited(STYLES["relu_weights"], change)).kernel)
    assert (sem.normaliser, sem.issues) == (normaliser, issues)


def test_a_relu_is_no_mask():
    relu = edited(SCALAR, ("s[i] *= scale;", "s[i] *= scale;\n      s[i] = s[i] < 0.f ? 0.f : s[i];"))
    sem = semantics_of(lift_text(relu).kernel)
    assert "s" in print_expr(sem.score)
    assert "where" in print_expr(sem.score) or "max" in print_expr(sem.score)
    assert print_expr(sem.keep) == "true"


def test_the_places_of_a_softmax_are_found():
    site = lift_text(SCALAR).anchors.softmax
    assert site is not None
    text = SCALAR.encode()
    assert [text[w.exponential.start : w.exponential.end] for w in site.weights] == [b"expf(s[i] - m_safe)"]
    assert [(w.element, w.op, w.function) for w in site.weights] == [("s[i]", "exp", "expf")]
    assert [text[c.start : c.end] for c in site.corrections] == [b"correction"]
    assert [text[c.start : c.end] for c in site.sums] == [b"p"]
    assert lift_text(STYLES["relu_weights"]).anchors.softmax is None
