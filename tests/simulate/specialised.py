"""kernels/attention_sm90.cu, warp-specialised attention with TMA, mbarriers and wgmma: compiled and launched."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.compile import compile_source
from cubridge_engine.simulate import Buffer, Schedule, TensorMap

from .conftest import Shape, attention

FILE = Path(__file__).parent / "kernels/attention_sm90.cu"
TILE = 128
SHARED = 6 * 64 * 64 * 2  # two tiles of Q, two stages of K and V


@lru_cache(maxsize=8)
def specialised(*defines: str) -> simulate.Module:
    """The kernel's module. Raises AssertionError when it does not compile."""
    compiled = compile_source(
        FILE.read_bytes(), path=str(FILE), arch="sm_90a", defines=defines, want=("ptx",), options=("-lineinfo",)
    )
    assert compiled.ptx is not None, compiled.diagnostics
    return simulate.load(compiled.ptx)


def _bits(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _value(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def launch_specialised(
    module: simulate.Module, shape: Shape, schedule: Schedule, **options: Any
) -> tuple[simulate.Run, float]:
    """One launch and the largest error (infinite where there is no output). H = Hkv, B = 1, D = 64, bfloat16."""
    rng = np.random.default_rng(shape.sq * 1000 + shape.sk)
    q, k, v = (_bits(rng.standard_normal((1, shape.h, n, 64))) for n in (shape.sq, shape.sk, shape.sk))
    maps = [
        TensorMap(Buffer(x[0], "in", name), (64, x.shape[2], shape.h), (128, 128 * x.shape[2]), (64, 64, 1), 128)
        for x, name in zip((q, k, v), "QKV", strict=True)
    ]
    out = Buffer(np.zeros_like(q), "out", "O")
    scale = np.float32(64**-0.5 * np.log2(np.e))
    args = [*maps, out, shape.sq, shape.sk, scale, shape.causal]
    name = next(k for k in module.kernels if "attention_sm90" in k)
    grid = (-(-shape.sq // TILE), shape.h)
    run = module.launch(name, grid, (384,), args, dynamic_shared=SHARED, schedule=schedule, **options)
    if not run.outputs:
        return run, np.inf
    want, _ = attention(_value(q), _value(k), _value(v), 64**-0.5, bool(shape.causal))
    error = np.abs(_value(run.outputs["O"]) - want)
    return run, float(np.where(np.isnan(error), np.inf, error).max())
