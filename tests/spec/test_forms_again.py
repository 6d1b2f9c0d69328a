"""Forms that were refused though one kernel computes them: learned queries, shared tensors, windows, kept masks."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest
import torch

from cubridge_engine.ir.expr import Const, Var
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.spec import SpecResult
from cubridge_engine.spec.constants import constant_element
from cubridge_engine.spec.nodes import Algebra

from .conftest import HEADER

TAIL = """
def example_inputs():
    torch.manual_seed(0)
    return {inputs}
"""
Q, K = "torch.randn(2, 3, 14, 16)", "torch.randn(2, 3, 22, 16)"
QKV = f"{Q}, {K}, {K}"
LATENT = """
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(1, 3, 6, 16))

    def forward(self, k, v):
        return (self.w @ k.mT / 4).softmax(-1) @ v


m = Pool()


def attention(k, v):
    return m(k, v)
"""
CAUSAL = """
class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.longest = 0
        self.register_buffer("mask", None, persistent=False)

    def forward(self, q, k, v):
        n = q.shape[2]
        if n > self.longest:
            self.mask, self.longest = torch.ones(n, n, dtype=torch.bool).tril(), n
        return (q @ k.mT / 4).masked_fill(~self.mask[:n, :n], -torch.inf).softmax(-1) @ v


m = Causal()


def attention(q, k, v):
    return m(q, k, v)
"""
# The body, the inputs, and the score and the mask that must come out.
READ = {
    "learned queries": (LATENT, f"{K}, {K}", "s / 4.0", None),
    "a mask that the module keeps": (CAUSAL, f"{Q}, {Q}, {Q}", "s / 4.0", "j - i <= 0"),
    "keys are values": (
        "def attention(q, k):\n    return (q @ k.mT / 4).softmax(-1) @ k\n",
        f"{Q}, {K}",
        "s / 4.0",
        None,
    ),
    "fused windows": (
        "def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v, scale=0.5)\n",
        ", ".join(["torch.randn(2, 5, 3, 14, 16)"] * 3),
        "s * 0.5",
        None,
    ),
    "a mask behind a cache": (
        """
        def attention(q, k, v, tree):
            past = torch.ones(q.shape[2], k.shape[2] - q.shape[2], dtype=torch.bool)
            s = (q @ k.mT / 4).masked_fill(~torch.cat([past, tree], 1), -torch.inf)
            return s.softmax(-1) @ v
        """,
        QKV + ", torch.ones(14, 14, dtype=torch.bool).tril()",
        "s / 4.0",
        "j < Sk - Sq | tree[i, j + -(Sk - Sq)]",
    ),
    "masked and normalised again": (
        """
        def attention(q, k, v):
            i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
            p = (q @ k.mT / 4).softmax(-1) * (j <= i)
            return (p / p.sum(-1, keepdim=True)) @ v
        """,
        QKV,
        "s / 4.0",
        "j <= i",
    ),
    "sharpened and normalised again": (
        """
        def attention(q, k, v):
            p = (q @ k.mT / 4).softmax(-1) ** 1.5
            return p @ v / p.sum(-1, keepdim=True)
        """,
        QKV,
        "s / 4.0 * 1.5",
        None,
    ),
}


def text(body: str, inputs: str) -> str:
    return HEADER + "from torch import nn\n" + dedent(body) + TAIL.format(inputs=inputs)


@pytest.mark.parametrize("name", READ)
def test_is_read(read: Callable[..., SpecResult], name: str) -> None:
    body, inputs, score, mask = READ[name]
    found = read(text(body, inputs))
    assert found.attention is not None, found.diagnostics
    assert print_expr(found.attention.score) == score
    assert (None if found.attention.mask is None else print_expr(found.attention.mask)) == mask


# What differs from a form above by what the rewriting must not take for it.
REFUSED = {
    "masked and not normalised again": (
        "def attention(q, k, v):\n"
        "    j = torch.arange(k.shape[2])\n"
        "    return ((q @ k.mT / 4).softmax(-1) * (j % 3 > 0)) @ v\n",
        QKV,
        "CB259",
    ),
    "normalised by other weights": (
        "def attention(q, k, v):\n"
        "    p = (q @ k.mT / 4).softmax(-1)\n"
        "    keep = torch.arange(k.shape[2]) % 3 > 0\n"
        "    return (p * keep) @ v / (p * ~keep).sum(-1, keepdim=True)\n",
        QKV,
        "CB234",
    ),
    "every window a mask of its own": (
        "def attention(q, k, v, m):\n    return F.scaled_dot_product_attention(q, k, v, attn_mask=m[:, None])\n",
        ", ".join(["torch.randn(2, 5, 3, 14, 16)"] * 3) + ", torch.ones(5, 14, 14, dtype=torch.bool).tril()",
        "CB230",
    ),
    "scores by overlapping views": (
        "def attention(q, k, v):\n"
        "    s = (q @ k.mT / 4).as_strided((2, 3, 14, 8), (924, 308, 22, 1))\n"
        "    return s.softmax(-1) @ v[:, :, :8]\n",
        QKV,
        "CB262",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_near_misses_are_no_attention(read: Callable[..., SpecResult], name: str) -> None:
    body, inputs, code = REFUSED[name]
    found = read(text(body, inputs))
    assert found.attention is None
    assert found.diagnostics[0].code == code


def test_positions_as_numbers_are_a_formula() -> None:
    algebra = Algebra()
    even = constant_element(algebra, torch.arange(40) * 3 - 2, [Var("i")])
    assert even is not None
    assert print_expr(even) == "i * 3 - 2"
    uneven = torch.arange(40)
    uneven[7] = 0
    assert constant_element(algebra, uneven, [Var("i")]) is None
    assert constant_element(algebra, torch.full((40,), 5), [Var("i")]) == Const(5)
