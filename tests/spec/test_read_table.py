# ruff: noqa: E501 - a spec text reads best as one string
"""Spec text -> the Attention it must mean. Expected parts are texts, compared on every index of two sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import Expr, free_vars, reads
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.spec import SpecResult
from cubridge_engine.spec.formula import environment

from .conftest import CROSS, GROUPED, SQUARE, spec_text

BOOLS = ("keep", "m", "attention_mask")
PLAIN = "s / sqrt(32.0)"
BSHD = ((2, 48, 4, 32),) * 3
MANUAL = """
def attention(q, k, v{args}):
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None, :]
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    {change}
    return torch.softmax(s, dim=-1) @ v
"""


def manual(change: str, args: str = "") -> str:
    return MANUAL.format(change=change, args=args)


def masked(condition: str) -> str:
    return manual(f"s = s.masked_fill(~({condition}), float('-inf'))")


# name: (spec text, expected parts). Absent parts: score PLAIN, no mask, no sink, head map h.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": (spec_text(manual("pass"), CROSS), {"empty": "none"}),
    "causal top-left": (spec_text(masked("j <= i"), CROSS), {"mask": "j <= i", "empty": "none"}),
    "causal bottom-right": (
        spec_text(masked("j <= i + (k.shape[2] - q.shape[2])"), CROSS),
        {"mask": "j <= i + Sk - Sq", "empty": "nan"},
    ),
    "window of W keys": (spec_text(masked("(j <= i) & (i - j < 16)")), {"mask": "j <= i & i - j < 16", "empty": "nan"}),
    "window of W + 1 keys": (
        spec_text(masked("(j <= i) & (i - j <= 16)")),
        {"mask": "j <= i & i - j <= 16", "empty": "nan"},
    ),
    "two-sided window": (spec_text(masked("(i - j).abs() <= 9")), {"mask": "abs(i - j) <= 9", "empty": "nan"}),
    "a window wider than the example": (
        spec_text(masked("(i - j).abs() < 300")),
        {"mask": "abs(i - j) < 300", "empty": "nan"},
    ),
    "dilated": (spec_text(masked("(i - j) % 3 == 0")), {"mask": "(i - j) % 3 == 0", "empty": "nan"}),
    "chunked": (spec_text(masked("i // 16 == j // 16")), {"mask": "i // 16 == j // 16", "empty": "nan"}),
    "chunk longer than the example": (
        spec_text(masked("i // 1000 == j // 1000")),
        {"mask": "i // 1000 == j // 1000", "empty": "nan"},
    ),
    "window that a short length cuts": (
        spec_text(manual("s = s.masked_fill((j > i) | (i - j >= min(700, k.shape[2])), -math.inf)")),
        {"mask": "j <= i & i - j < 700", "empty": "none"},
    ),
    "window that only long inputs get": (
        spec_text(manual("if k.shape[2] > 512:\n        s = s.masked_fill((i - j).abs() >= 512, -math.inf)")),
        {"mask": "abs(i - j) < 512", "empty": "none"},
    ),
    "windows by the parity of the head": (
        spec_text(
            manual("w = torch.where(torch.arange(q.shape[1]) % 2 == 0, 8, 24)[:, None, None]").replace(
                "return", "s = s.masked_fill((i - j).abs() >= w, -math.inf)\n    return"
            )
        ),
        {"mask": "abs(i - j) < where(h % 2 == 0, 8, 24)", "empty": "nan"},
    ),
    "sink as a gate of the logsumexp": (
        spec_text(
            """
            def attention(q, k, v, sink):
                s = q @ k.mT * 32 ** -0.5
                lse = torch.logsumexp(s, -1, keepdim=True)
                return (s.softmax(-1) @ v) * torch.sigmoid(lse - sink.view(1, -1, 1, 1))
            """,
            SQUARE,
            "torch.randn(4)",
        ),
        {"sink": "sink[h]", "empty": "none"},
    ),
    "loops over batch and head into an empty tensor": (
        spec_text(
            """
            def attention(q, k, v):
                out = torch.empty_like(q)
                for b in range(q.shape[0]):
                    for h in range(q.shape[1]):
                        out[b, h] = (q[b, h] @ k[b, h].T / 32 ** 0.5).softmax(-1) @ v[b, h]
                return out
            """
        ),
        {"empty": "none"},
    ),
    "prefix <": (spec_text(masked("(j < 10) | (j <= i)")), {"mask": "j < 10 | j <= i", "empty": "none"}),
    "prefix <=": (spec_text(masked("(j <= 10) | (j <= i)")), {"mask": "j <= 10 | j <= i", "empty": "none"}),
    "tril of ones": (
        spec_text(manual("s = s.masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, -math.inf)")),
        {"mask": "j <= i", "empty": "none"},
    ),
    "triu of -inf added": (
        spec_text(manual("s = s + torch.triu(torch.full((q.shape[2], k.shape[2]), float('-inf')), 1)")),
        {"mask": "j <= i", "empty": "none"},
    ),
    "in-place masked_fill_": (
        spec_text(manual("s.masked_fill_(j > i, float('-inf'))")),
        {"mask": "j <= i", "empty": "none"},
    ),
    "assignment through a bool mask": (
        spec_text(manual("s[..., j > i] = float('-inf')")),
        {"mask": "j <= i", "empty": "none"},
    ),
    "assignment to a slice": (spec_text(manual("s[..., :5] = float('-inf')")), {"mask": "j >= 5", "empty": "nan"}),
    "finite sentinel": (
        spec_text(manual("s = torch.where(j <= i, s, -10000.0)")),
        {"mask": "j <= i", "fill": "-10000.0", "empty": "none"},
    ),
    "finite sentinel, bottom-right": (
        spec_text(manual("s = torch.where(j <= i + k.shape[2] - q.shape[2], s, -10000.0)")),
        {"mask": "j <= i + Sk - Sq", "fill": "-10000.0", "empty": "computed"},
    ),
    "finfo.min added": (
        spec_text(manual("s = s + torch.zeros_like(s).masked_fill(j > i, torch.finfo(s.dtype).min)")),
        {"mask": "j <= i", "fill": "-3.4028234663852886e+38", "empty": "none"},
    ),
    "-10000 added stays in the score": (
        spec_text(manual("s = s + (j > i) * -10000.0")),
        {"score": f"{PLAIN} + where(j > i, -10000.0, 0.0)", "empty": "none"},
    ),
    "softcap": (
        spec_text(manual("s = 30 * torch.tanh(s / 30)")),
        {"score": "30.0 * tanh(s / sqrt(32.0) / 30.0)", "empty": "none"},
    ),
    "mask before the softcap": (
        spec_text(manual("s = 5 * torch.tanh(s.masked_fill(j > i, -math.inf) / 5)")),
        {"score": "5.0 * tanh(where(j > i, -inf, s / sqrt(32.0)) / 5.0)", "empty": "none"},
    ),
    "ALiBi slope * (j - i)": (
        spec_text(manual("s = s + slopes[:, None, None] * (j - i)", ", slopes"), SQUARE, "torch.rand(4)"),
        {"score": f"{PLAIN} + slopes[h] * (j - i)", "empty": "none"},
    ),
    "ALiBi -slope * |i - j|": (
        spec_text(manual("s = s - slopes.view(1, -1, 1, 1) * (i - j).abs()", ", slopes"), SQUARE, "torch.rand(4)"),
        {"score": f"{PLAIN} - slopes[h] * abs(i - j)", "empty": "none"},
    ),
    "ALiBi slope * j": (
        spec_text(manual("s = s + slopes[None, :, None, None] * j.float()", ", slopes"), SQUARE, "torch.rand(4)"),
        {"score": f"{PLAIN} + slopes[h] * j", "empty": "none"},
    ),
    "ALiBi slopes computed": (
        spec_text(
            manual("s = s + (2.0 ** (-8.0 * torch.arange(1, q.shape[1] + 1) / q.shape[1])).view(-1, 1, 1) * (j - i)")
        ),
        {"score": f"{PLAIN} + pow(2.0, -8.0 * (h + 1) / H) * (j - i)", "empty": "none"},
    ),
    "bias [1, H, Sq, Sk]": (
        spec_text(manual("s = s + bias", ", bias"), CROSS, "torch.randn(1, 4, 40, 56)"),
        {"score": f"{PLAIN} + bias[0, h, i, j]", "axes": {"bias": ("1", "H", "Sq", "Sk")}, "empty": "none"},
    ),
    "bias [B, 1, 1, Sk]": (
        spec_text(manual("s = s + bias", ", bias"), CROSS, "torch.randn(2, 1, 1, 56)"),
        {"score": f"{PLAIN} + bias[b, 0, 0, j]", "axes": {"bias": ("B", "1", "1", "Sk")}, "empty": "none"},
    ),
    "bool mask argument": (
        spec_text(manual("s = s.masked_fill(~keep, -math.inf)", ", keep"), CROSS, "torch.rand(2, 1, 40, 56) < 0.7"),
        {"mask": "keep[b, 0, i, j]", "empty": "nan"},
    ),
    "lengths of the keys": (
        spec_text(
            manual("s = s.masked_fill(j >= n.view(-1, 1, 1, 1), -math.inf)", ", n"), CROSS, "torch.tensor([30, 56])"
        ),
        {"mask": "j < n[b]", "axes": {"n": ("B",)}, "empty": "none"},
    ),
    "sink as a column": (
        spec_text(
            """
            def attention(q, k, v, sink):
                s = q @ k.mT * 32 ** -0.5
                column = sink.view(1, -1, 1, 1).expand(s.shape[0], -1, s.shape[2], 1)
                s = torch.cat([s, column], dim=-1)
                s = s - s.max(dim=-1, keepdim=True).values
                return torch.softmax(s, -1)[..., :-1] @ v
            """,
            SQUARE,
            "torch.randn(4)",
        ),
        {"sink": "sink[h]", "empty": "none"},
    ),
    "sink in the denominator": (
        spec_text(
            """
            def attention(q, k, v, sink):
                s = q @ k.mT * 32 ** -0.5
                m = torch.maximum(s.amax(-1, keepdim=True), sink.view(1, -1, 1, 1))
                e = torch.exp(s - m)
                return (e / (e.sum(-1, keepdim=True) + torch.exp(sink.view(1, -1, 1, 1) - m))) @ v
            """,
            SQUARE,
            "torch.randn(4)",
        ),
        {"sink": "sink[h]", "empty": "none"},
    ),
    "softmax off by one": (
        spec_text(
            "def attention(q, k, v):\n    e = torch.exp(q @ k.mT * 32 ** -0.5)\n    return e / (1 + e.sum(-1, keepdim=True)) @ v\n"
        ),
        {"sink": "0.0", "empty": "none"},
    ),
    "normalised after the second product": (
        spec_text(
            "def attention(q, k, v):\n    e = torch.exp(q @ k.mT * 32 ** -0.5)\n    return (e @ v) / e.sum(-1, keepdim=True)\n"
        ),
        {"empty": "none"},
    ),
    "zero on empty rows": (
        spec_text(
            """
            def attention(q, k, v, keep):
                s = (q * 32 ** -0.5) @ k.mT
                p = torch.softmax(s.masked_fill(~keep, -math.inf), -1)
                return p.masked_fill(~keep, 0.0) @ v
            """,
            SQUARE,
            "torch.rand(48, 48) < 0.7",
        ),
        {"mask": "keep[i, j]", "empty": "zero"},
    ),
    "zeros put where no key was kept, after a finite fill": (
        spec_text(
            """
            def attention(q, k, v, keep):
                s = (q @ k.mT / 32 ** 0.5).masked_fill(~keep[:, None, None], torch.finfo(q.dtype).min)
                return (s.softmax(-1) @ v).masked_fill(~keep.any(-1)[:, None, None, None], 0.0)
            """,
            SQUARE,
            "torch.rand(2, 48) < 0.7",
        ),
        {"mask": "keep[b, j]", "empty": "zero"},
    ),
    "nan_to_num": (
        spec_text(
            """
            def attention(q, k, v, keep):
                s = q @ k.mT * 32 ** -0.5 + torch.where(keep, 0.0, -math.inf)
                return torch.nan_to_num(torch.softmax(s, -1)) @ v
            """,
            SQUARE,
            "torch.rand(2, 4, 48, 48) < 0.7",
        ),
        {"mask": "keep[b, h, i, j]", "empty": "zero"},
    ),
    "SDPA is_causal": (
        spec_text("def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"),
        {"mask": "j <= i", "empty": "none"},
    ),
    "SDPA bool mask": (
        spec_text(
            "def attention(q, k, v, m):\n    return F.scaled_dot_product_attention(q, k, v, attn_mask=m)\n",
            SQUARE,
            "torch.rand(2, 1, 48, 48) < 0.7",
        ),
        {"mask": "m[b, 0, i, j]", "empty": "zero"},
    ),
    "SDPA float mask, grouped, scaled": (
        spec_text(
            "def attention(q, k, v, m):\n    return F.scaled_dot_product_attention(q, k, v, m, scale=0.25, enable_gqa=True)\n",
            GROUPED,
            "torch.randn(48, 48)",
        ),
        {"score": "s * 0.25 + m[i, j]", "head": "h // (H // Hkv)", "empty": "none"},
    ),
    "repeat_interleave": (
        spec_text(
            "def attention(q, k, v):\n    g = q.size(1) // k.size(1)\n    k, v = (x.repeat_interleave(g, 1) for x in (k, v))\n    return torch.softmax(q @ k.mT / 32 ** 0.5, -1) @ v\n",
            GROUPED,
        ),
        {"head": "h // (H // Hkv)", "empty": "none"},
    ),
    "q in groups": (
        spec_text(
            """
            def attention(q, k, v):
                b, h, s, d = q.shape
                g = k.shape[1]
                x = torch.einsum("bgrid,bgjd->bgrij", q.view(b, g, h // g, s, d), k) / d ** 0.5
                o = torch.einsum("bgrij,bgjd->bgrid", x.softmax(-1), v)
                return o.reshape(b, h, s, d)
            """,
            GROUPED,
        ),
        {"head": "h // (H // Hkv)", "empty": "none"},
    ),
    "heads dealt round-robin": (
        spec_text(
            "def attention(q, k, v):\n    g = q.size(1) // k.size(1)\n    k, v = k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1)\n    return torch.softmax(q @ k.mT / 32 ** 0.5, -1) @ v\n",
            GROUPED,
        ),
        {"head": "h % Hkv", "empty": "none"},
    ),
    "BSHD": (
        spec_text(
            "def attention(q, k, v):\n    p = torch.einsum('bihd,bjhd->bhij', q, k).div(32 ** 0.5).softmax(-1)\n    return torch.einsum('bhij,bjhd->bihd', p, v)\n",
            BSHD,
        ),
        {"axes": {"q": ("b", "i", "h", "d"), "k": ("b", "j", "hk", "d")}, "empty": "none"},
    ),
    "BSHD by transposes": (
        spec_text(
            "def attention(q, k, v):\n    q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)\n",
            BSHD,
        ),
        {"axes": {"q": ("b", "i", "h", "d"), "v": ("b", "j", "hk", "d")}, "empty": "none"},
    ),
    "merged batch and heads": (
        spec_text(
            "def attention(q, k, v):\n    b, h, s, d = q.shape\n    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))\n    p = torch.baddbmm(torch.zeros(1), q, k.mT, beta=0, alpha=d ** -0.5).softmax(-1)\n    return torch.bmm(p, v).view(b, h, s, d)\n"
        ),
        {"empty": "none"},
    ),
    "product written out": (
        spec_text(
            "def attention(q, k, v):\n    s = (q[:, :, :, None] * k[:, :, None]).sum(-1) / 32 ** 0.5\n    return torch.softmax(s, -1) @ v\n"
        ),
        {"empty": "none"},
    ),
    "loop over heads, stacked": (
        spec_text(
            """
            def attention(q, k, v):
                outs = []
                for h in range(q.shape[1]):
                    s = q[:, h] @ k[:, h].mT / 32 ** 0.5
                    s = s.masked_fill(torch.ones_like(s).triu(1).bool(), -math.inf)
                    outs.append(s.softmax(-1) @ v[:, h])
                return torch.stack(outs, dim=1)
            """
        ),
        {"mask": "j <= i", "empty": "none"},
    ),
    "loop over heads, assigned": (
        spec_text(
            """
            def attention(q, k, v):
                out = torch.empty_like(q)
                for h in range(q.shape[1]):
                    g = h // (q.shape[1] // k.shape[1])
                    out[:, h] = (q[:, h] @ k[:, g].mT / 32 ** 0.5).softmax(-1) @ v[:, g]
                return out
            """,
            GROUPED,
        ),
        {"head": "h // (H // Hkv)", "empty": "none"},
    ),
    "a causal buffer": (
        spec_text(
            "BUFFER = torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)\n"
            + manual("s = s.masked_fill(BUFFER[:, :, :48, :48] == 0, -math.inf)")
        ),
        {"mask": "j <= i", "empty": "none"},
    ),
    "keyword-only options": (
        spec_text(
            "def attention(q, k, v, *, causal=True, scale=0.5):\n    s = q @ k.mT * scale\n    if causal:\n        s = s + torch.full(s.shape[-2:], -math.inf, device='cuda').triu(1)\n    return s.softmax(-1) @ v\n"
        ),
        {"score": "s * 0.5", "mask": "j <= i", "empty": "none"},
    ),
    "output and logsumexp": (
        spec_text(
            "def attention(q, k, v):\n    s = q @ k.mT / 32 ** 0.5\n    return s.softmax(-1) @ v, s.logsumexp(-1)\n"
        ),
        {"outputs": ["o", "lse"], "empty": "none"},
    ),
    "logsumexp first, by hand, half precision": (
        spec_text(
            "def attention(q, k, v):\n    s = (q @ k.mT).float() / 32 ** 0.5\n    m = s.amax(-1, keepdim=True)\n    e = (s - m).exp()\n    l = e.sum(-1, keepdim=True)\n"
            "    return {'lse': (m + l.log()).squeeze(-1), 'out': ((e / l).to(v.dtype) @ v)}\n",
            SQUARE,
            dtype="float16",
        ),
        {"outputs": ["lse", "o"], "empty": "none"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reads(name: str, read: Callable[..., SpecResult]) -> None:
    text, expected = CASES[name]
    result = read(text)
    assert result.attention is not None, [d.message for d in result.diagnostics]
    attention = result.attention
    same(attention.score, expected.get("score", PLAIN))
    same(attention.head_map, expected.get("head", "h"), equal_heads="head" not in expected)
    assert (attention.mask is None) == ("mask" not in expected)
    if attention.mask is not None:
        same(attention.mask, expected["mask"])
        same(attention.fill, expected.get("fill", "-inf"))
    assert (attention.sink is None) == ("sink" not in expected)
    if attention.sink is not None:
        same(attention.sink, expected["sink"])
    assert attention.empty_rows == expected["empty"]
    assert [o.role for o in attention.outputs] == expected.get("outputs", ["o"])
    for tensor, axes in expected.get("axes", {}).items():
        assert attention.input(tensor).axes == axes


def same(got: Expr, text: str, equal_heads: bool = False) -> None:
    """Both expressions agree on every index of two size tuples, and read the same tensors."""
    expected = parse_expr(text)
    assert reads(got) == reads(expected), print_expr(got)
    for sizes in ({"B": 2, "H": 6, "Hkv": 3, "Sq": 37, "Sk": 61}, {"B": 1, "H": 4, "Hkv": 2, "Sq": 50, "Sk": 21}):
        if equal_heads:
            sizes["Hkv"] = sizes["H"]
        env = environment(sizes)
        random = np.random.default_rng(0)
        env["s"] = random.normal(size=(sizes["B"], sizes["H"], sizes["Sq"], sizes["Sk"]))
        tensors = {n: random.integers(0, 60, size=(7,) * _rank(expected, n)) for n in reads(expected)}
        tensors = {n: t % 2 if n in BOOLS else t for n, t in tensors.items()}
        assert free_vars(got) <= env.keys(), print_expr(got)
        x, y = (np.asarray(evaluate(e, env, tensors), dtype=float) for e in (got, expected))
        np.testing.assert_allclose(*np.broadcast_arrays(x, y), rtol=1e-12, err_msg=print_expr(got))


def _rank(expr: Expr, tensor: str) -> int:
    from cubridge_engine.ir.expr import Read, walk

    return next(len(e.index) for e in walk(expr) if isinstance(e, Read) and e.tensor == tensor)
