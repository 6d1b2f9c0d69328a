"""Remainders and quotients of rows and columns are read as written, also where a tile starts at a multiple."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.nodes import Mask
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift.units import operations
from cubridge_engine.lift.values import Poly, Store, non_negative
from tests.lift.conftest import ROOT, SCALAR, edited, lift_text
from tests.lift.test_edits import BASE, CONDITION, MASK, at_scores, element_ops, with_condition

SM90 = (ROOT / "expert_kernels" / "flash_fwd_sm90" / "kernel.cu").read_text()
PERSISTENT = (
    "kv0 + Bc > p.sk || (p.causal && kv0 + Bc - 1 > item.q0 + p.sk - p.sq)",
    "j < min(p.sk, i + ahead)",
)

CONDITIONS = {
    "col % 2 != 0": "j % 2 == 0",
    "col % 16 != 0": "j % 16 == 0",
    "(col & 15) != 0": "j % 16 == 0",
    "col % 64 < 3": "j % 64 >= 3",
    "col % 24 != 23": "j % 24 == 23",
    "col % 128 != 127": "j % 128 == 127",
    "(row + col) % 2 != 0": "(i + j) % 2 == 0",
    "(col + 3) % 8 >= 5": "(j + 3) % 8 < 5",
    "(row <= col && col % 2 == 0)": "i > j | j % 2 != 0",
    "row / 16 % 2 != col / 16 % 2": "i // 16 % 2 == j % 32 // 16",
    "row % 8 != col % 8": "i % 8 == j % 8",
    "row % 16 - col % 16 > 2": "i % 16 - j % 16 <= 2",
    "row / 24 < col / 24": "i // 24 >= j // 24",
    "(col * 5 + row) % 3 == 1": "(i + j * 5) % 3 != 1",
}


@pytest.mark.parametrize(("condition", "keep"), CONDITIONS.items())
def test_condition(condition, keep):
    kept = f"({keep})" if " | " in keep else keep
    assert element_ops(with_condition(f"{CONDITION} || {condition}")) == [f"mask {BASE} & {kept} : -inf"]


SCORES = {
    "if (col % 2 == 0) s[nb][e] *= 0.5f;": "where(j % 2 == 0, s * 0.5, s)",
    "s[nb][e] += xt[h] * (col % 8);": "s + xt[h] * (j % 8)",
    "s[nb][e] += xt[col % 2];": "s + xt[j % 2]",
}


@pytest.mark.parametrize(("statement", "meaning"), SCORES.items())
def test_score(statement, meaning):
    assert element_ops(at_scores(statement)) == [f"score {meaning}", MASK]


def test_other_kernels():
    scalar = edited(SCALAR, ("if (col >= sk) {", "if (col >= sk || col % 4 != 1) {"))
    assert [x for x in element_ops(scalar) if "mask" in x] == ["mask j < Sk & j % 4 == 1 : -inf"]
    guard, test = PERSISTENT
    # Every tile is tested, and the first one before the loop: the length of K is known from where the loop starts.
    lifted = lift_text(edited(SM90, (guard, "true"), (test, f"{test} && j % 2 == 0")))
    assert lifted.kernel is not None, [d.message for d in lifted.diagnostics]
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    masks = [print_expr(op.keep) for op in operations(lifted.kernel.body) if isinstance(op, Mask)]
    assert masks == ["j < min(Sk, i + where(causal, Sk - Sq + 1, Sk)) & j % 2 == 0"]


def test_what_is_not_negative():
    store = Store(32)
    tiles = store.node("max", (1, store.node("param", (), 0, "int")), kind="int")
    assert non_negative(Poly({(tiles,): 128, (): -128}))
    assert not non_negative(Poly({(tiles,): 128, (): -129}))
    assert not non_negative(Poly({(tiles,): -1, (): 5}))
    assert not non_negative(Poly({(store.node("param", (), 1, "int"),): 128, (): -128}))


def test_a_number_is_there_for_an_address():
    assert element_ops(at_scores("s[nb][e] += xt[(row % 16) * 16 + col % 16];")) == [
        "score s + xt[i % 16 * 16 + j % 16]",
        MASK,
    ]
