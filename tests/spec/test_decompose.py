"""The short way to core operators gives the graph that PyTorch's own gives: operators, arguments, shapes, lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cubridge_engine.spec import decompose, read_spec, trace

ROOT = Path(__file__).parents[2]


class Block(nn.Module):
    """Layers around a whole attention, with a table and rotated halves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(32), nn.Linear(32, 96), nn.Linear(32, 32, bias=False)
        self.register_buffer("angles", torch.outer(torch.arange(64.0), 100.0 ** -torch.arange(0, 1, 0.25)))

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        c, s = self.angles[: x.shape[1]].cos(), self.angles[: x.shape[1]].sin()
        q, k = (torch.cat((t[..., ::2] * c - t[..., 1::2] * s, t[..., 1::2] * c + t[..., ::2] * s), -1) for t in (q, k))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(F.silu(o.transpose(1, 2).flatten(2)))


def eager(q: Any, k: Any, v: Any) -> Any:
    """Composite operators, broadcasts, a mask of indices, a finite fill."""
    s = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, dim=1)) * q.size(-1) ** -0.5
    i, j = torch.meshgrid(torch.arange(q.size(2)), torch.arange(k.size(2)), indexing="ij")
    s = torch.where((j <= i) & (i - j < 5), 30.0 * torch.tanh(s / 30.0), torch.finfo(s.dtype).min)
    return torch.matmul(F.softmax(s.float(), dim=-1).type_as(q), v.repeat_interleave(2, dim=1)), s.logsumexp(-1)


def others(q: Any, k: Any, v: Any) -> Any:
    """Convolution, pooling, padding, gathering, writing into slices, loops."""
    o = torch.empty_like(q)
    for h in range(q.size(1)):
        w = torch.sigmoid(q[:, h] @ k[:, h // 2].mT).tril()
        o[:, h] = w @ torch.nan_to_num(v[:, h // 2])
    bias = F.pad(F.avg_pool2d(F.conv2d(o, q.new_ones(4, 4, 3, 3), padding=1), 2), (0, 1)).mean(dim=(-1, -2))
    return F.layer_norm(o, (o.size(-1),)) + F.gelu(bias)[..., None, None].clamp(min=0).cumsum(1)


def _inputs(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.ones(shape) for shape in shapes]


HEADS = ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
CASES: dict[str, tuple[Callable[..., Any], list[Any], bool]] = {
    "a layer kept whole": (Block(), _inputs((2, 6, 32)), True),
    "a layer": (Block(), _inputs((2, 6, 32)), False),
    "operators by hand": (eager, _inputs(*HEADS), False),
    "other operators": (others, _inputs(*HEADS), True),
}


def _described(exported: Any) -> list[tuple[str, ...]]:
    def kind(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
        return str([kind(v) for v in value]) if isinstance(value, (tuple, list)) else repr(value)

    def line(node: Any) -> str:
        return str((node.meta.get("custom") or {}).get("spec_line"))

    return [
        (n.op, n.name, str(n.target), repr(n.args), repr(n.kwargs), kind(n.meta.get("val")), line(n))
        for n in exported.graph.nodes
    ] + [(str(exported.graph_signature),)]


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_that_of_run_decompositions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs, layers = CASES[name]
    compared: list[int] = []

    def both(exported: Any, layers: bool = False) -> Any:
        operators = len(torch._C._dispatch_get_all_op_names())
        assert decompose._split(layers, operators) is not None, "this PyTorch has the parts of its run_decompositions"
        slow = exported.run_decompositions(decompose._table(layers, operators))
        fast = decompose.decomposed(exported, layers)
        assert _described(fast) == _described(slow)
        compared.append(len(list(fast.graph.nodes)))
        return fast

    monkeypatch.setattr(trace, "decomposed", both)
    module = function if isinstance(function, nn.Module) else None
    names = [f"t{n}" for n in range(len(inputs))]
    trace.trace(function, __file__, names, inputs, module=module, layers=layers)
    assert len(compared) == 1
    assert compared[0] > 20


def test_without_those_parts_pytorch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompose, "_split", lambda *_: None)
    result = read_spec(str(ROOT / "examples" / "causal_sdpa.py"))
    assert result.attention is not None, [d.message for d in result.diagnostics]
