"""Kernels of different authors, edits of the expert kernels, and execution of what was lifted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.nodes import Kernel
from cubridge_engine.lift import Lifted, lift
from cubridge_engine.source import parse

ROOT = Path(__file__).parents[2]
SM80 = (ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu").read_text()
SCALAR = (ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu").read_text()
SM90 = (ROOT / "expert_kernels" / "flash_fwd_sm90_plain" / "kernel.cu").read_text()
STYLES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "kernels").glob("*.cu"))}


def lift_text(text: str, **options) -> Lifted:
    """Lift a source given as text."""
    return lift(parse("kernel.cu", text.encode()), **options)


def edited(text: str, *changes: tuple[str, str]) -> str:
    """`text` with pieces replaced; each must occur."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def reference(q, k, v, scale, keep=None):
    """Attention in float64: (o, lse), rows without keys give 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    if keep is not None:
        s = np.where(keep, s, -np.inf)
    m = s.max(-1, keepdims=True)
    m = np.where(np.isinf(m), 0, m)
    p = np.exp(s - m)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.where(total > 0, p @ v / np.where(total > 0, total, 1), 0), (m + np.log(total))[..., 0]


def bindings(kernel: Kernel, scale: float, flag: bool) -> dict[str, float | bool]:
    """Values of scale and flag parameters, by role."""
    values = {"scale": scale, "scale_log2": scale * math.log2(math.e), "flag": flag}
    return {p.name: values[p.role] for p in kernel.params if p.role in values}


def assert_attention(kernel: Kernel, shape, *, flag=False, mode="late"):
    """`kernel` executes to (bottom-right causal, when `flag`) attention on one shape, without findings."""
    b, h, hkv, sq, sk = shape
    rng = np.random.default_rng(7)
    q = rng.standard_normal((b, h, sq, kernel.D))
    k, v = (rng.standard_normal((b, hkv, sk, width)) for width in (kernel.D, kernel.Dv))
    scale = 1 / math.sqrt(kernel.D)
    keep = np.arange(sk)[None] <= np.arange(sq)[:, None] + sk - sq if flag else None
    o, lse = reference(q, k, v, scale, keep)
    sizes = {"B": b, "H": h, "Hkv": hkv, "Sq": sq, "Sk": sk}
    found = execute(kernel, {"q": q, "k": k, "v": v}, sizes, bindings(kernel, scale, flag), async_mode=mode)
    assert found.findings == ()
    np.testing.assert_allclose(found.o, o, atol=1e-12)
    if any(p.role == "lse" for p in kernel.params):
        assert found.lse is not None
        np.testing.assert_allclose(found.lse, lse, atol=1e-12)


@pytest.fixture(scope="session")
def sm80() -> Lifted:
    return lift_text(SM80)


@pytest.fixture(scope="session")
def scalar() -> Lifted:
    return lift_text(SCALAR)
