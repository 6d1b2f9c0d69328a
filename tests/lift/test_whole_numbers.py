"""A position kept as a float, with offsets added element by element, is read as the position it is."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.nodes import Score
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift.units import operations
from cubridge_engine.lift.values import Store
from cubridge_engine.lift.whole_numbers import scaled_all, whole, whole_all
from tests.lift.conftest import SM80, lift_text

STORE = Store(32)
N = STORE.node("param", (), 3, "int")
AS_FLOAT = STORE.node("float", (N,))
HALF = STORE.node("param", (), 4, "float")


def plus(a, b, op="add"):
    return STORE.node(op, (a, b))


def test_a_sum_of_conversions_and_constants_is_an_integer():
    value = whole(STORE, plus(STORE.node("ver", (plus(AS_FLOAT, 8.0),), "x"), AS_FLOAT, "sub"))
    assert value == 8
    (terms,) = [STORE.poly(whole(STORE, plus(AS_FLOAT, -3.0))).terms]
    assert terms == {(N,): 1, (): -3}


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        float("inf"),
        float("nan"),
        2.0**25,
        HALF,
        plus(AS_FLOAT, HALF),
        plus(AS_FLOAT, 0.5),
        plus(AS_FLOAT, 2.0, "mul"),
    ],
)
def test_anything_else_is_none(value):
    assert whole(STORE, value) is None
    assert whole_all(STORE, [plus(AS_FLOAT, 1.0), value]) is None


def test_constants_alone_need_no_sum():
    assert whole_all(STORE, [1.0, 1.0]) is None
    assert whole_all(STORE, [AS_FLOAT, AS_FLOAT]) is None
    found = whole_all(STORE, [AS_FLOAT, plus(AS_FLOAT, 1.0)])
    assert [STORE.poly(v).terms for v in found] == [{(N,): 1}, {(N,): 1, (): 1}]


def times(number, factor=HALF):
    return STORE.node("mul", (number, factor))


def test_a_factor_in_every_term():
    integers, factors = scaled_all(STORE, [times(AS_FLOAT), plus(times(AS_FLOAT), times(-3.0))])
    assert [STORE.poly(v).terms for v in integers] == [{(N,): 1}, {(N,): 1, (): -3}]
    assert factors == [HALF, HALF]
    other = STORE.node("param", (), 5, "float")
    for value in (plus(times(AS_FLOAT), times(2.0, other)), plus(times(AS_FLOAT), 2.0), plus(times(0.5), times(2.0))):
        assert scaled_all(STORE, [plus(times(AS_FLOAT), times(1.0)), value]) is None
    assert scaled_all(STORE, [times(AS_FLOAT)]) is None


NEST = """
    const float distance = static_cast<float>(kv0 + 2 * (lane % 4) - q0 - warp * 16 - lane / 4);
#pragma unroll
    for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[nb][e] += (distance + (OFFSET)) * 0.5f;
      }
    }
"""
RIGHT = "nb * 8 + (e & 1) - 8 * (e / 2)"


@pytest.mark.parametrize(
    ("offset", "read"),
    [
        (RIGHT, "s + (j - i) * 0.5"),
        (RIGHT + " + 1", "s + (j - i + 1) * 0.5"),  # off by one: seen, and another score than ALiBi's
        # The second row of a thread has the first one's distance: seen too, as what it is.
        ("nb * 8 + (e & 1)", "s + (j - i % 8 - i // 16 * 16) * 0.5"),
    ],
)
def test_in_a_kernel(offset, read):
    mark = "    // S = -inf where j >= Sk"
    assert SM80.count(mark) == 1
    lifted = lift_text(SM80.replace(mark, NEST.replace("OFFSET", offset).lstrip("\n") + "\n" + mark))
    scores = [print_expr(op.expr) for op in operations(lifted.kernel.body) if isinstance(op, Score)]
    assert read in scores
    assert "CB123" not in {d.code for d in lifted.diagnostics}
