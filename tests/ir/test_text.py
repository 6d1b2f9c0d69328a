"""The text form: golden program, round trip, and errors with a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.expr import OPS, Call, Const, Expr, Read, Var
from cubridge_engine.ir.text import CuirSyntaxError, parse_kernel, print_kernel
from cubridge_engine.ir.text_expr import ExprSyntaxError, parse_expr, print_expr

FLASH = (Path(__file__).parent / "flash.cuir").read_text()


def test_the_golden_program_round_trips_to_the_same_text():
    kernel = parse_kernel(FLASH)
    assert print_kernel(kernel) == FLASH
    assert parse_kernel(print_kernel(kernel)) == kernel


_leaf = st.one_of(
    st.integers(-1000, 1000).map(Const),
    st.floats(allow_nan=False, width=32).map(lambda x: Const(float(x))),
    st.booleans().map(Const),
    st.sampled_from(["s", "i", "j", "Sq", "m_new"]).map(Var),
)


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    calls = st.sampled_from(sorted(OPS)).flatmap(
        lambda op: st.tuples(*[inner] * OPS[op].arity).map(lambda a: Call(op, a))
    )
    return st.one_of(calls, st.lists(inner, max_size=3).map(lambda xs: Read("bias", tuple(xs))))


@settings(max_examples=300, deadline=None)
@given(st.recursive(_leaf, _grow, max_leaves=12))
def test_expressions_round_trip(expr):
    assert parse_expr(print_expr(expr)) == expr


@pytest.mark.parametrize(
    ("text", "column"),
    [("i + ", 4), ("foo(i)", 1), ("(i", 2), ("i $ j", 2), ("i j", 3)],
)
def test_bad_expressions_name_the_column(text, column):
    with pytest.raises(ExprSyntaxError, match=f"column {column}|column {column + 1}"):
        parse_expr(text)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("cp_commit\n  let n", "cp_comit\n  let n", "unknown operation 'cp_comit'"),
        ("; atom=mma.m16n8k16", "; atmo=mma.m16n8k16", "no field 'atmo'"),
        ("fill S = 0.0", "fill S", "expected 'fill"),
        ("cuir 1", "cuir 9", "version"),
        ("keep j < Sk", "keep j <> Sk", "keep"),
    ],
)
def test_bad_programs_name_the_line(old, new, why):
    bad = FLASH.replace(old, new, 1)
    assert bad != FLASH
    with pytest.raises(CuirSyntaxError, match=why) as caught:
        parse_kernel(bad)
    assert (
        bad.splitlines()[caught.value.line - 1].strip() in new
        or new.splitlines()[0] in bad.splitlines()[caught.value.line - 1]
    )
