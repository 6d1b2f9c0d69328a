# ruff: noqa: E501 - a spec text reads best as one string
"""An attention inside a larger function: what is cut out, what is passed to the kernel, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from cubridge_engine.diagnostics import Severity
from cubridge_engine.ir.expr import FALSE
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec import SpecResult, read_spec
from cubridge_engine.spec.check_whole import check_whole
from cubridge_engine.spec.dropin import drop_in
from cubridge_engine.spec.formula import evaluate_attention
from cubridge_engine.spec.lengths import real_arguments
from cubridge_engine.spec.reference import reference

from .conftest import HEADER, spec_text
from .test_read_table import same

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOCK = """
class Attention(torch.nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.h = heads
        self.qkv = torch.nn.Linear(dim, 3 * dim)
        self.out = torch.nn.Linear(dim, dim)
        {init}

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.h, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        {change}
        return self.out(o.transpose(1, 2).flatten(2))

def example_inputs():
    torch.manual_seed(0)
    return (torch.randn(2, 20, 32),)
"""
SOFTMAX = "s = q @ k.mT / 4; o = s.softmax(-1) @ v"


def block(change: str = SOFTMAX, init: str = "") -> str:
    return HEADER + BLOCK.format(change=change, init=init)


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SpecResult]:
    """Each text is read once."""
    folder = tmp_path_factory.mktemp("cut")

    @cache
    def run(text: str, **options: Any) -> SpecResult:
        path = folder / f"spec{abs(hash((text, *options.items()))):x}.py"
        path.write_text(text)
        return read_spec(str(path), **options)

    return run


@cache
def example(name: str) -> SpecResult:
    return read_spec(str(EXAMPLES / f"{name}.py"))


def codes(result: SpecResult, severity: Severity) -> list[str]:
    return [d.code for d in result.diagnostics if d.severity is severity]


CACHE = """
wq, wk, wv = (torch.nn.Linear(16, 16) for _ in range(3))

def attention(x, past_k, past_v):
    q = wq(x)[:, None]
    k = torch.cat([past_k, wk(x)[:, None]], 2)
    v = torch.cat([past_v, wv(x)[:, None]], 2)
    i = torch.arange(q.shape[2])[:, None] + past_k.shape[2]
    s = (q @ k.mT * 0.25).masked_fill(torch.arange(k.shape[2]) > i, -math.inf)
    return (s.softmax(-1) @ v).squeeze(1)

def example_inputs():
    torch.manual_seed(0)
    return torch.randn(2, 5, 16), torch.randn(2, 1, 24, 16), torch.randn(2, 1, 24, 16)
"""
GATE = """
def attention(q, k, v, g):
    s = q @ k.mT * 0.1
    return s.softmax(-1) @ v * torch.sigmoid(g)

def example_inputs():
    torch.manual_seed(0)
    return torch.randn(2, 4, 20, 16), torch.randn(2, 2, 28, 16).repeat(1, 2, 1, 1), torch.randn(2, 4, 28, 16), torch.randn(2, 4, 20, 16)
"""
TWO = "o = torch.softmax(q @ k.mT / 4, -1) @ v; a = torch.softmax(o @ k.mT / 4, -1) @ v; o = o - {factor} * a"
FORGET = """f = torch.nn.functional.logsigmoid(self.gate(x)).cumsum(1).transpose(1, 2)
        s = q @ k.mT / 4 + f[..., :, None] - f[..., None, :]
        o = s.masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf).softmax(-1) @ v"""

# name: (text, expected parts); inputs are (name, role) in order, `computed` a word of each one's origin.
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "a module": (
        block(),
        {"score": "s / 4.0", "inputs": ["q", "k", "v"], "computed": ["chunk", "chunk", "chunk"], "calls": 1},
    ),
    "weights returned too": (
        block(SOFTMAX).replace(
            "return self.out(o.transpose(1, 2).flatten(2))",
            "return self.out(o.transpose(1, 2).flatten(2)), s.softmax(-1)",
        ),
        {"score": "s / 4.0", "notes": ["CB236"]},
    ),
    "a cache before the keys": (
        HEADER + CACHE,
        {"score": "s * 0.25", "mask": "j <= i + Sk - Sq", "inputs": ["q", "k", "v"], "equal": ()},
    ),
    "a gate after arguments": (
        HEADER + GATE,
        {"score": "s * 0.1", "inputs": ["q", "k", "v"], "computed": ["", "", ""], "calls": 1},
    ),
    "the same attention twice": (block(TWO.format(factor=0.5)), {"score": "s / 4.0", "calls": 2}),
    "a sum of gates for rows and keys": (
        block(FORGET, "self.gate = torch.nn.Linear(dim, heads)"),
        {"score": "s / 4.0 + f[b, i, h] - f[b, j, h]", "mask": "j <= i", "inputs": ["q", "k", "v", "f"]},
    ),
    "a table of numbers": (
        block(
            "s = q @ k.mT / 4 + self.table[None]; o = s.softmax(-1) @ v",
            "self.register_buffer('table', torch.randn(heads, 20, 20))",
        ),
        {"score": "s / 4.0 + table[h, i, j]", "inputs": ["q", "k", "v", "table"]},
    ),
    "learned queries": (
        block(
            "q = self.latents.expand(b, -1, -1, -1); s = q @ k.mT; o = s.softmax(-1) @ v",
            "self.latents = torch.nn.Parameter(torch.randn(1, heads, 20, 16))",
        ),
        {
            "score": "s",
            "inputs": ["q", "k", "v"],
            "computed": ["latents", "chunk", "chunk"],
            "notes": ["CB240"],  # for as many queries as it has learned
        },
    ),
    "a causal buffer": (
        block(
            "s = (q @ k.mT / 4).masked_fill(~self.keep[:n, :n], -math.inf); o = s.softmax(-1) @ v",
            "self.register_buffer('keep', torch.ones(32, 32).tril().bool())",
        ),
        {"score": "s / 4.0", "mask": "j <= i", "notes": ["CB246"]},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_reads(name: str, reading: Callable[..., SpecResult]) -> None:
    text, want = READ[name]
    result = reading(text)
    attention = result.attention
    assert attention is not None, [d.message for d in result.diagnostics]
    assert attention.cut is not None
    assert codes(result, Severity.ERROR) == []
    same(attention.score, want["score"])
    assert (attention.mask is None) == ("mask" not in want)
    if attention.mask is not None:
        same(attention.mask, want["mask"])
    assert attention.cut.calls == want.get("calls", 1)
    if "inputs" in want:
        assert [i.name for i in attention.inputs] == want["inputs"]
    for item, word in zip(attention.inputs, want.get("computed", ()), strict=False):
        assert bool(item.computed) == bool(word)
        assert word in item.computed
    assert set(want.get("notes", ())) <= {d.code for d in result.diagnostics}
    if "equal" in want:
        assert attention.equal_sizes == want["equal"]


# name: (text, code, a word of the line it points at)
REFUSED: dict[str, tuple[str, str, str]] = {
    "scores used outside": (block(SOFTMAX + "; o = o * s.mean()"), "CB238", "s.mean()"),
    "two attentions that differ": (
        block("a = (q @ k.mT).softmax(-1) @ v; o = a + torch.softmax(a @ k.mT / 3, -1) @ v"),
        "CB233",
        "softmax",
    ),
    "top-k": (
        block("s = q @ k.mT; s = s.masked_fill(s < s.topk(4, -1).values[..., -1:], -math.inf); o = s.softmax(-1) @ v"),
        "CB222",
        "topk",
    ),
    "heads mixed": (
        block(
            "s = torch.einsum('bhij,hg->bgij', q @ k.mT, self.mix); o = s.softmax(-1) @ v",
            "self.mix = torch.nn.Parameter(torch.randn(heads, heads))",
        ),
        "CB224",
        "softmax",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, reading: Callable[..., SpecResult]) -> None:
    text, code, word = REFUSED[name]
    result = reading(text)
    assert result.attention is None
    errors = [d for d in result.diagnostics if d.severity is Severity.ERROR]
    assert [d.code for d in errors] == [code], errors[0].message
    assert errors[0].span is not None
    assert word in text.split("\n")[errors[0].span.line]


def test_weights_can_be_asked_for(reading: Callable[..., SpecResult]) -> None:
    text, _ = READ["weights returned too"]
    assert reading(text, outputs=(1,)).attention is None
    chosen = reading(text, outputs=(0,))
    assert chosen.attention is not None
    assert "CB236" not in codes(chosen, Severity.NOTE), "nothing was left out that the user did not leave out"
    assert codes(reading(text, outputs=(2,)), Severity.ERROR) == ["CB212"]


def test_another_rotation_is_the_same_kernel(reading: Callable[..., SpecResult]) -> None:
    text = (EXAMPLES / "llama_block.py").read_text()
    wrong = text.replace("torch.cat((-second, first), dim=-1)", "torch.cat((second, -first), dim=-1)")
    assert wrong != text
    mine, other = example("llama_block").attention, reading(wrong).attention
    assert mine is not None
    assert other is not None
    parts = ("score", "mask", "head_map", "normaliser")
    assert [getattr(mine, p) for p in parts] == [getattr(other, p) for p in parts]


def test_another_mask_is_another_kernel(reading: Callable[..., SpecResult]) -> None:
    text = (EXAMPLES / "gated_window.py").read_text()
    other = reading(text.replace("i - j < self.window", "i - j <= self.window")).attention
    assert other is not None
    assert other.mask is not None
    same(other.mask, "j <= i & i - j < 25")


@pytest.mark.parametrize("change", ["mask", "score", "head_map"])
def test_a_wrong_reading_is_told_apart(change: str) -> None:
    result = example("llama_block")
    attention, core = result.attention, result.core
    assert attention is not None
    assert check_whole(core, attention) is None
    wrong = {
        "mask": replace(attention, mask=parse_expr("j < i")),
        "score": replace(attention, score=parse_expr("s * 0.126")),
        "head_map": replace(attention, head_map=parse_expr("h % Hkv")),
    }[change]
    problem = check_whole(core, wrong)
    assert problem is not None
    assert "x.shape" in problem.sizes


def exact(attention: Any, swap: bool = False) -> Callable[..., torch.Tensor]:
    """The attention as a kernel of q, k, v [B, H, S, D]."""
    axes = {"q": ["b", "h", "i", "d"], "k": ["b", "hk", "j", "d"], "v": ["b", "hk", "j", "d"]}
    inputs = tuple(i if i.role == "operand" else replace(i, axes=tuple(axes[i.role])) for i in attention.inputs)
    four = replace(attention, inputs=inputs, outputs=(replace(attention.outputs[0], axes=tuple("bhid")),))

    def kernel(*tensors: torch.Tensor) -> torch.Tensor:
        assert all(t.dim() == 4 for t in tensors[:3])
        out = evaluate_attention(four, [t.detach().double().numpy() for t in tensors])[0]
        return torch.from_numpy(out[:, ::-1].copy() if swap else out).to(tensors[0].dtype)

    return kernel


@pytest.mark.parametrize("name", ["llama_block", "vit_fused_qkv", "image_relative_position"])
def test_the_drop_in_is_the_function(name: str) -> None:
    result = example(name)
    attention, core = result.attention, result.core
    assert attention is not None
    assert core is not None
    made = drop_in(core, attention, ["The kernel takes scale = 0.125."])
    assert "scale = 0.125" in made.text
    assert f"{name}.py:" in made.text, "the user's lines are there"
    assert str(EXAMPLES) not in made.text, "paths of a machine are not"
    sizes = (
        [core.whole.base] if "Sq" in attention.specialised else [core.whole.base, tuple(n + 3 for n in core.whole.base)]
    )
    for values in sizes:
        inputs = real_arguments(core.whole.program, core.whole.lengths, values, seed=5)
        want = reference(core.whole.program, inputs)
        got = made.run(inputs, exact(attention))
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), atol=2e-5)
        wrong = made.run(inputs, exact(attention, swap=True))
        assert float((wrong[0].double() - want[0]).abs().max()) > 1e-2


WAYS_IN: dict[str, tuple[str, str]] = {
    "q, k and v of one name, transposed on the way into the kernel": (
        "y = self.q(x).view(b, n, self.h, -1); q = y.transpose(1, 2); y = self.k(x).view(b, n, self.h, -1); k = y.transpose(1, 2); "
        "y = self.v(x).view(b, n, self.h, -1); v = y.transpose(1, 2)",
        "self.q, self.k, self.v = (torch.nn.Linear(dim, dim) for _ in range(3))",
    ),
    "a weight of one module with a bias that is put together": (
        "w = torch.nn.functional.linear(x, self.w.weight, torch.cat((self.a, self.a * 0, self.c))); "
        "q, k, v = (t.view(b, n, self.h, -1).transpose(1, 2) for t in w.chunk(3, -1))",
        "self.w = torch.nn.Linear(dim, 3 * dim, bias=False); "
        "self.a, self.c = torch.nn.Parameter(torch.randn(dim)), torch.nn.Parameter(torch.randn(dim))",
    ),
}


@pytest.mark.parametrize("name", WAYS_IN)
def test_the_drop_in_passes_the_right_tensors(name: str, reading: Callable[..., SpecResult]) -> None:
    change, init = WAYS_IN[name]
    result = reading(block(f"{change}; {SOFTMAX}", init))
    assert result.attention is not None, [d.message for d in result.diagnostics]
    assert result.core is not None
    made = drop_in(result.core, result.attention)
    inputs = real_arguments(result.core.whole.program, result.core.whole.lengths, (3, 17), seed=5)
    want = reference(result.core.whole.program, inputs)
    got = made.run(inputs, exact(result.attention))
    np.testing.assert_allclose(got[0].numpy(), want[0].numpy(), atol=2e-5)


def test_the_kernel_is_given_batches_before_heads(reading: Callable[..., SpecResult]) -> None:
    """Keys of the first batch for all: what the user calls batches shares K and V, as heads do."""
    result = reading(
        "import torch\n\n\ndef attention(q, k, v):\n    k, v = k[:1], v[:1]\n"
        "    return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v\n\n\n"
        "def example_inputs():\n    return tuple(torch.randn(2, 4, 24, 16) for _ in range(3))\n"
    )
    assert result.attention is not None, [d.message for d in result.diagnostics]
    assert result.core is not None
    program = result.core.whole.program
    got = drop_in(result.core, result.attention).run(program.example, exact(result.attention))
    np.testing.assert_allclose(got[0].numpy(), reference(program, program.example)[0].numpy(), atol=2e-5)


def test_arguments_made_like_a_mask_keep_its_fill(reading: Callable[..., SpecResult]) -> None:
    """Numbers of the spread of 0 and the least float32 would be a mask that no dtype but float32 can hold."""
    text = block("s = q @ k.mT / 4 + fill; o = s.softmax(-1) @ v").replace("(self, x)", "(self, x, fill)")
    mask = "torch.randn(2, 20, 32), (torch.rand(2, 1, 20, 20) < 0.3) * torch.finfo(torch.float32).min"
    result = reading(text.replace("(torch.randn(2, 20, 32),)", f"({mask})"))
    assert result.attention is not None, [d.message for d in result.diagnostics]
    assert result.core is not None
    whole = result.core.whole
    fill = real_arguments(whole.program, whole.lengths, (2, 23), seed=5)[1]
    least = torch.finfo(torch.float32).min
    assert 0.1 < float((fill == least).float().mean()) < 0.3
    assert bool((fill[fill != least].abs() < 100).all())
    assert not (fill == least).all(-1).any()


def test_the_drop_in_returns_what_the_function_returns() -> None:
    result = example("vit_fused_qkv")
    assert result.attention is not None
    assert result.core is not None
    text = drop_in(result.core, result.attention).text
    scope: dict[str, Any] = {}
    exec(text, scope)
    program = result.core.whole.program
    module = scope["AttentionWithKernel"](program.module, exact(result.attention))
    out, weights = module(*program.example)
    assert weights is None
    assert out.shape == program.example[0].shape


def test_the_head_dimension_is_that_of_the_weights(reading: Callable[..., SpecResult]) -> None:
    assert codes(reading(block(), head_dim=64), Severity.ERROR) == ["CB239"]


def test_no_mask_is_not_a_mask_of_nothing(reading: Callable[..., SpecResult]) -> None:
    result = reading(block())
    assert result.attention is not None
    problem = check_whole(result.core, replace(result.attention, mask=FALSE))
    assert problem is not None


def test_a_function_uses_the_modules_of_its_file(reading: Callable[..., SpecResult]) -> None:
    result = reading(dedent(HEADER + CACHE))
    assert result.attention is not None
    assert result.core is not None
    text = drop_in(result.core, result.attention).text
    assert "module.wq(x)" in text
    assert "def attention_with_kernel(module, x, past_k, past_v, *, kernel)" in text


def test_the_head_dimension_is_no_free_length(read: Callable[..., SpecResult]) -> None:
    """At lengths where D happens to be H, 1/sqrt(D) reads as 1/sqrt(H): D stays that of the example."""
    body = """
    def attention(q, k, v):
        s = q @ k.mT / q.shape[-1] ** 0.5
        return (s.softmax(-1) @ v).flip(1)
    """
    result = read(spec_text(body))
    assert result.attention is not None, [d.message for d in result.diagnostics]
    assert result.core is not None
    same(result.attention.score, "s / sqrt(32.0)")
    assert result.attention.specialised["D"] == 32
