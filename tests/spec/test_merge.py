"""Scores and weights made of several products: one attention where they are one, a refusal with the line where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from cubridge_engine.ir.expr import Const, Var
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.spec import SpecResult
from cubridge_engine.spec.check_whole import check_whole
from cubridge_engine.spec.dropin import drop_in
from cubridge_engine.spec.dropin_sizes import Variants
from cubridge_engine.spec.formula import evaluate_attention
from cubridge_engine.spec.nodes import Algebra
from cubridge_engine.spec.unify import NotUnified

from .conftest import HEADER
from .test_read_table import same

INPUTS = """
def example_inputs():
    torch.manual_seed(0)
    return {tensors}
"""
Q, K = "torch.randn(2, 3, 14, 16)", "torch.randn(2, 3, 22, 16)"


def text(body: str, *more: str, first: str = f"{Q}, {K}, {K}") -> str:
    return HEADER + body + INPUTS.format(tensors=", ".join((first, *more)))


LATENT = text(
    """
def attention(q, q_rope, c, k_rope):
    s = torch.einsum("bhid,bjd->bhij", q, c) - 2 * torch.einsum("bhid,bjd->bhij", q_rope, k_rope)
    return torch.einsum("bhij,bjd->bhid", (s / 8).softmax(-1), c)
""",
    first=f"{Q}, torch.randn(2, 3, 14, 4), torch.randn(2, 22, 16), torch.randn(2, 22, 4)",
)
MEMORY = text(
    """
def attention(q, k, v, mk, mv):
    s = torch.cat([q @ mk.mT / 3, q @ k.mT / 4], -1)
    return s.softmax(-1) @ torch.cat([mv.expand(v.shape[0], -1, -1, -1), v], 2)
""",
    "torch.randn(3, 5, 16)",
    "torch.randn(3, 5, 16)",
)
DIFFERENTIAL = text(
    """
def attention(q1, q2, k1, k2, v, t):
    a, b = (x @ y.mT / 4 for x, y in ((q1, k1), (q2, k2)))
    return (a.softmax(-1) - t.exp()[:, None, None] * b.softmax(-1)) @ v
""",
    first=f"{Q}, {Q}, {K}, {K}, {K}, torch.randn(3)",
)
SHAW = text(
    """
def attention(q, k, v, r):
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    at = ((j - i).clamp(-4, 4) + 4).expand(*q.shape[:2], -1, -1)
    s = q @ k.mT / 4 + (q @ r.mT).gather(-1, at)
    return s.softmax(-1) @ v
""",
    "torch.randn(9, 16)",
)
# name: text, score, roles and axes of the inputs, calls of the kernel
READ: dict[str, tuple[str, str, list[tuple[str, ...]], int]] = {
    "a rope part of its own": (LATENT, "s / 8.0", [tuple("bhid"), ("b", "hk", "j", "d"), ("b", "hk", "j", "d")], 1),
    "keys of another tensor": (MEMORY, "s / 3.0", [tuple("bhid"), ("b", "hk", "j", "d"), ("b", "hk", "j", "d")], 1),
    "two weights over one V": (
        DIFFERENTIAL,
        "s / 4.0",
        [tuple("bhid"), ("b", "hk", "j", "d"), ("b", "hk", "j", "d")],
        2,
    ),
    "a table with a row per query": (
        SHAW,
        "s / 4.0 + operand[b, h, i, min(max(j - i, -4), 4) + 4]",
        [tuple("bhid"), ("b", "hk", "j", "d"), ("b", "hk", "j", "d"), ("B", "H", "Sq", "9")],
        1,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_reads_and_its_drop_in_is_the_function(name: str, read: Callable[..., SpecResult]) -> None:
    source, score, axes, calls = READ[name]
    result = read(source)
    attention, core = result.attention, result.core
    assert attention is not None, [d.message for d in result.diagnostics]
    assert core is not None
    if "operand" not in score:  # its columns are 9: `same` reads tables of 7
        same(attention.score, score)
    assert print_expr(attention.score).endswith(score.partition(" + ")[2])
    assert [item.axes for item in attention.inputs] == axes
    assert check_whole(core, attention) is None
    made = drop_in(core, attention)
    count = 0

    def kernel(*tensors: Any) -> Any:
        nonlocal count
        count += 1
        return torch.from_numpy(evaluate_attention(attention, [t.double().numpy() for t in tensors])[0])

    # A batch, heads and rows that the example does not have: sizes must be formulas of them.
    torch.manual_seed(1)
    inputs = [torch.randn(*_longer(t.shape)).double() for t in core.whole.program.example]
    want = core.whole.program.function(*inputs)
    got = made.run(inputs, kernel)[0]
    assert count == calls
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def _longer(shape: torch.Size) -> list[int]:
    """Batch 2 -> 5, heads 3 -> 4, rows 14 -> 19, keys 22 -> 31; widths and tables stay."""
    return [{2: 5, 3: 4, 14: 19, 22: 31}.get(n, n) for n in shape]


@pytest.mark.parametrize("name", ["a rope part of its own", "a table with a row per query"])
def test_a_wrong_reading_is_told_apart(name: str, read: Callable[..., SpecResult]) -> None:
    result = read(READ[name][0])
    assert result.attention is not None
    assert result.core is not None
    score = result.attention.score
    wrong = [score * Const(1.01)]
    if name != "a rope part of its own":
        neighbour = "s / 4.0 + operand[b, h, i, min(max(j - i, -4), 3) + 5]"
        other_head = "s / 4.0 + operand[b, h % 2, i, min(max(j - i, -4), 4) + 4]"
        minus = "s / 4.0 - operand[b, h, i, min(max(j - i, -4), 4) + 4]"
        wrong += [parse_expr(x) for x in (neighbour, other_head, minus)]
    for other in wrong:
        assert check_whole(result.core, replace(result.attention, score=other)) is not None, other


PRODUCTS = "def attention(q, k, v, k2):\n    s = q @ k.mT / 4\n    t = q @ k2.mT\n    {}\n"
REFUSED = {
    "products of products": ("return (s * t).softmax(-1) @ v", "CB260", "2 products"),
    "one of two masked by the other": ("return torch.where(t > 0, s, -math.inf).softmax(-1) @ v", "CB260", ""),
    "weights masked": ("return (s.softmax(-1) * (torch.arange(22) > 3)) @ v", "CB259", "gt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, read: Callable[..., SpecResult]) -> None:
    line, code, word = REFUSED[name]
    shapes = f"{Q}, {K}, {K}" if name != "weights masked" else f"{K}, {K}, {K}"
    result = read(text(PRODUCTS.format(line), K, first=shapes))
    assert result.attention is None
    assert result.diagnostics[0].code == code, result.diagnostics[0].message
    assert word in result.diagnostics[0].message
    assert result.diagnostics[0].span is not None


def test_a_shift_by_views_is_a_shift() -> None:
    """Padded by one column and viewed again: ``i * 79 + j + 40`` in rows of 80."""
    algebra = Algebra(extent={"i": 40, "j": 40})
    flat = algebra.add(algebra.mul(Var("i"), Const(79)), algebra.add(Var("j"), Const(40)))
    assert algebra.floordiv(flat, 80) == Var("i")
    assert algebra.mod(flat, 80) == algebra.add(algebra.add(Var("j"), Var("i"), -1), Const(40))
    # One column less, and the quotient is not decided.
    algebra.extent["j"] = 41
    assert algebra.floordiv(flat, 80) != Var("i")


def _variants(lengths: tuple[int, ...]) -> Variants:
    return Variants(lengths, ("B", "H", "S"), {}, {})


def test_sizes_of_three_lengths() -> None:
    lengths = (2, 4, 40)
    points = [frozenset(p) for n in range(3) for p in combinations(range(3), n)]
    sizes = {p: [v + (n in p) for n, v in enumerate(lengths)] for p in points}
    assert _variants(lengths).formula({p: 3 * b * h * s for p, (b, h, s) in sizes.items()}) == "3 * B * H * S"
    assert _variants(lengths).formula({p: b * h + s for p, (b, h, s) in sizes.items()}) == "B * H + S"
    with pytest.raises(NotUnified):
        _variants(lengths).formula({p: b * h * s + 1 for p, (b, h, s) in sizes.items()})
