"""The CUDA printer: precedence, literals, integer division, and values equal to those of the scalar language."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import Call, Const, Var
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.lower.cuda_expr import NotInScope, Scope, print_cuda, text_precedence

SCOPE = Scope(
    {"i": "row", "j": "col", "s": "s[nb][e]", "h": "h", "Sq": "sq", "Sk": "sk", "q0": "(blockIdx.x * Br)"},
    {"q0": "int"},
)

TABLE = [
    ("50.0 * tanh(s / 50.0)", "50.f * tanhf(s[nb][e] / 50.f)"),
    ("s * 0.125 + float(j - i)", "s[nb][e] * 0.125f + (col - row)"),
    ("j <= i + (Sk - Sq)", "col <= row + (sk - sq)"),
    ("j < 3 & i < 4 | j > 9", "(col < 3 && row < 4) || col > 9"),
    ("i // 32 == j // 32", "row / 32 == col / 32"),
    ("(i - j) // 8", "(row - col) >> 3"),
    ("(i - j) % 8", "(row - col) & 7"),
    ("(i - j) % 3", "((row - col) % 3 + 3) % 3"),
    ("32 * (i // 32)", "32 * (row / 32)"),
    ("i - (j - h)", "row - (col - h)"),
    ("float(i) / float(j)", "static_cast<float>(row) / static_cast<float>(col)"),
    ("i / j", "static_cast<float>(row) / static_cast<float>(col)"),
    ("q0 * 2", "blockIdx.x * Br * 2"),
    ("(q0 + 1) * 2", "(blockIdx.x * Br + 1) * 2"),
    ("where(j < i, s, -10000.0)", "col < row ? s[nb][e] : -10000.f"),
    ("max(s, 0)", "fmaxf(s[nb][e], 0)"),
    ("max(i, j)", "max(row, col)"),
    ("sigmoid(s)", "1.f / (1.f + expf(-s[nb][e]))"),
    ("-inf", "-INFINITY"),
    ("!(j < i)", "!(col < row)"),
    ("pow(s, 2)", "s[nb][e] * s[nb][e]"),
    ("abs(i - j)", "abs(row - col)"),
    ("abs(s)", "fabsf(s[nb][e])"),
    ("1.0e-9", "1e-09f"),
    ("exp(h)", "expf(static_cast<float>(h))"),
]


@pytest.mark.parametrize(("text", "cuda"), TABLE)
def test_print(text, cuda):
    assert print_cuda(parse_expr(text), SCOPE) == cuda


def test_missing_names_raise():
    with pytest.raises(NotInScope):
        print_cuda(parse_expr("b + 1"), SCOPE)


@pytest.mark.parametrize(
    ("text", "precedence"),
    [("a", 100), ("a + b", 60), ("a * b", 70), ("f(a + b)", 100), ("-a", 90), ("a ? b : c", 10), ("p->q", 100)],
)
def test_text_precedence(text, precedence):
    assert text_precedence(text) == precedence


def c_value(text, env):
    """A C integer expression as C evaluates it: truncating division, bits, logic."""
    import re

    class Int(int):
        def __truediv__(self, other):
            return Int(math.trunc(int(self) / int(other)))

        def __mod__(self, other):
            return Int(math.fmod(int(self), int(other)))

    for op in ("add", "sub", "mul", "and", "rshift", "neg", "radd", "rmul", "rsub"):
        plain = getattr(int, f"__{op}__")
        setattr(Int, f"__{op}__", lambda *a, plain=plain: Int(plain(*map(int, a))))
    text = re.sub(r"\b\d+\b", lambda m: f"Int({m[0]})", text)
    return int(
        eval(
            text,
            {
                "Int": Int,
                "min": min,
                "max": max,
                "abs": lambda x: Int(abs(int(x))),
                **{k: Int(v) for k, v in env.items()},
            },
        )
    )


leaves = st.one_of(st.sampled_from([Var("i"), Var("j")]), st.integers(-9, 9).map(Const))
integers = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner).map(lambda t: Call(t[0], t[1:])),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, st.integers(1, 9).map(Const)).map(
            lambda t: Call(t[0], t[1:])
        ),
        inner.map(lambda x: Call("neg", (x,))),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(integers, st.integers(0, 40), st.integers(0, 40))
def test_integer_expressions_mean_the_same_in_c(expr, i, j):
    text = print_cuda(expr, Scope({"i": "i", "j": "j"}))
    assert c_value(text, {"i": i, "j": j}) == int(evaluate(expr, {"i": i, "j": j}))


def test_comparisons_that_look_like_a_template_get_parentheses():
    assert print_cuda(parse_expr("j < 3 & i > 4"), SCOPE) == "(col < 3) && (row > 4)"
    assert print_cuda(parse_expr("j < 3 & i < 4"), SCOPE) == "col < 3 && row < 4"
    assert print_cuda(parse_expr("j < 3 & i < 4 & j >= 1"), SCOPE) == "(col < 3 && row < 4) && (col >= 1)"
    # col<...>(...) would be a call
    assert print_cuda(parse_expr("j < i - (i < 1) | j > (i < 2) + i"), SCOPE).count("(col") == 2


def test_the_constants_of_the_file_are_used():
    scope = Scope({"s": "s"}, constants={"kLn2": 0.6931471805599453})
    assert print_cuda(parse_expr("s * 0.6931471805599453"), scope) == "s * kLn2"
    assert print_cuda(parse_expr("s * 0.69"), scope) == "s * 0.69f"
