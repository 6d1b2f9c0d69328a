"""Specs as data, without torch: what reading a spec file would give."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cubridge_engine.ir.expr import Const, Expr
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.attention import Attention, TensorInput, TensorOutput
from cubridge_engine.verify.explain import Binding
from cubridge_engine.verify.run import verify
from cubridge_engine.verify.stages import Stages
from cubridge_engine.verify.subject import Subject, VerifyOptions

QKV = (
    TensorInput("q", "q", ("b", "h", "i", "d"), "float16", 0),
    TensorInput("k", "k", ("b", "hk", "j", "d"), "float16", 1),
    TensorInput("v", "v", ("b", "hk", "j", "d"), "float16", 2),
)


def attention(
    score: str = "s * 0.125",
    mask: str | None = None,
    *,
    fill: Expr | None = None,
    sink: str | None = None,
    head_map: str = "h // (H // Hkv)",
    operands: tuple[TensorInput, ...] = (),
    specialised: dict[str, int] | None = None,
) -> Attention:
    """An Attention from the text form of its parts."""
    return Attention(
        name="attention",
        path="spec.py",
        inputs=QKV + operands,
        outputs=(TensorOutput("o", ("b", "h", "i", "d"), "float16", 0),),
        head_map=parse_expr(head_map),
        score=parse_expr(score),
        mask=parse_expr(mask) if mask else None,
        fill=fill or Const(-math.inf),
        sink=parse_expr(sink) if sink else None,
        normaliser="softmax",
        empty_rows="nan",
        specialised=specialised or {},
    )


@pytest.fixture
def make_attention():
    return attention


@pytest.fixture
def flash():
    """A FlashAttention-2 program as CuIR text: tiles 16x16, D = 8, ring of two, runtime flag `causal`, scale_log2
    `c`.
    """
    return FLASH


FLASH = (Path(__file__).parents[1] / "ir" / "flash.cuir").read_text()
SCALE = 0.3
SPECS = {
    "causal": """
import torch


def attention(q, k, v):
    sq, sk = q.shape[-2], k.shape[-2]
    s = q.float() @ k.float().transpose(-1, -2) * 0.3
    i = torch.arange(sq)[:, None]
    j = torch.arange(sk)[None, :]
    s = s.masked_fill(j > i + (sk - sq), float("-inf"))
    return (s.softmax(-1) @ v.float()).to(q.dtype)


def example_inputs():
    q = torch.randn(2, 4, 32, 8, dtype=torch.float16)
    return q, torch.randn_like(q), torch.randn_like(q)
""",
    "softcap": """
import torch


def attention(q, k, v):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    s = q.float() @ k.float().transpose(-1, -2) * 0.3
    s = 2.0 * torch.tanh(s / 2.0)
    keep = torch.arange(k.shape[2])[None, :] <= torch.arange(q.shape[2])[:, None]
    s = torch.where(keep, s, float("-inf"))
    return (s.softmax(-1) @ v.float()).to(q.dtype)


def example_inputs():
    q = torch.randn(2, 4, 32, 8, dtype=torch.float16)
    return q, torch.randn(2, 2, 32, 8, dtype=torch.float16), torch.randn(2, 2, 32, 8, dtype=torch.float16)
""",
}


@pytest.fixture(scope="session")
def read(tmp_path_factory):
    """Read one of the specs, once per session: (attention, program)."""
    folder = tmp_path_factory.mktemp("specs")
    done: dict[str, tuple] = {}

    def reading(name: str) -> tuple:
        if name not in done:
            path = folder / f"{name}.py"
            path.write_text(SPECS[name])
            result = read_spec(str(path))
            assert result.attention is not None, result.diagnostics
            done[name] = (result.attention, result.program)
        return done[name]

    return reading


@pytest.fixture
def run(read):
    """Verify CuIR text, called with values, against one of the specs: (report, diagnostics)."""

    def verifying(text: str, spec: str, *, empty_rows: str = "keep", **values: float) -> tuple:
        attention_, program = read(spec)
        subject = Subject("k.cu", b"", parse_kernel(text), Binding({"c": SCALE / math.log(2), **values}))
        stages = Stages(("ir", "compile", "gpu"), lambda *_: None)
        done = verify(subject, attention_, program, VerifyOptions(empty_rows=empty_rows, archs=("sm_80",)), stages)
        return done.report, done.diagnostics

    return verifying
