"""Launching a Hopper kernel in the simulator: tensors, tensor maps and the launch come from its contract, as verifying
and a device make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cubridge_engine.compile import Contract
from cubridge_engine.device import bind_arguments
from cubridge_engine.simulate import Buffer, Module, Run, Schedule
from cubridge_engine.verify.simulated_tensors import (
    SimulatedTensor,
    floats,
    place,
    simulated_argument,
    workspaces_of,
)

ELEMENTS: dict[str, Any] = {"float16": np.float16, "bfloat16": np.uint16}
# Error of O relative to the norm of its row; of LSE.
LIMITS = {"float16": (2e-3, 1e-4), "bfloat16": (1e-2, 1e-4)}


@dataclass(frozen=True)
class Problem:
    """A launch, on `ctas` persistent CTAs if not 0. `rise`: how much larger the scores of the first keys are."""

    sq: int
    sk: int
    b: int = 1
    h: int = 1
    hkv: int = 1
    causal: bool = False
    ctas: int = 0
    layout: str = "padded"
    rise: float = 3.0


def bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Elements as NumPy holds them; bfloat16 cut off."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16)


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """O and LSE in float64; a row without keys gives 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.transpose(0, 1, 3, 2) * scale
    sq, sk = s.shape[-2:]
    if causal:
        s = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None] + sk - sq, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isinf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    lse = np.where(total > 0, np.where(np.isinf(top), 0, top) + np.log(safe), -np.inf)
    return p / safe @ v, lse[..., 0]


@dataclass
class Result:
    """A run and its worst errors; infinite where it wrote nothing."""

    run: Run
    o: float
    lse: float


def launch(
    module: Module, contract: Contract, name: str, expression: str, p: Problem, schedule: Schedule
) -> Result:  # fmt: skip
    instance = next(i for i in contract.instances if i.expression == expression)
    d, dv = instance.widths
    dtype = instance.dtype
    rng = np.random.default_rng(p.sq * 1000 + p.sk)
    q = rng.standard_normal((p.b, p.h, p.sq, d))
    k, v = rng.standard_normal((p.b, p.hkv, p.sk, d)), rng.standard_normal((p.b, p.hkv, p.sk, dv))
    k[:, :, : p.sk // 3] *= p.rise
    k[:, :, : p.sk // 8] *= p.rise
    q, k, v = (bits(x, dtype) for x in (q, k, v))
    tensors = {n: place(x, p.layout, n.upper(), dtype, 16) for n, x in (("q", q), ("k", k), ("v", v))}
    tensors["o"] = place(np.zeros((p.b, p.h, p.sq, dv), ELEMENTS[dtype]), p.layout, "O", dtype, 16, "out")
    lse = Buffer(np.zeros((p.b, p.h, p.sq), np.float32), "out", "LSE")
    tensors["lse"] = SimulatedTensor(lse, (p.b, p.h, p.sq), lse.strides, "float32")
    sizes = {"B": p.b, "H": p.h, "Hkv": p.hkv, "Sq": p.sq, "Sk": p.sk, "D": d, "Dv": dv}
    scale = d**-0.5
    given = {"scale": scale, "causal": int(p.causal), **workspaces_of(contract)}
    arguments, refused = bind_arguments(contract, tensors, sizes, given)
    assert not refused, [r.message for r in refused]
    shape = contract.launch(sizes, dtype)
    run = module.launch(
        name, (p.ctas,) if p.ctas else shape.grid, shape.block, [simulated_argument(a) for a in arguments],
        dynamic_shared=shape.dynamic_shared_bytes, schedule=schedule,
    )  # fmt: skip
    if not run.outputs:
        return Result(run, np.inf, np.inf)
    o, want = _attention(*(floats(x, dtype) for x in (q, k, v)), scale, p.causal)
    got = floats(run.outputs["O"], dtype)
    got = got.transpose(0, 2, 1, 3) if p.layout == "bshd" else got
    size = np.linalg.norm(o, axis=-1)
    off = np.linalg.norm(got - o, axis=-1) / np.where(size > 0, size, 1)
    with np.errstate(invalid="ignore"):
        far = np.where(run.outputs["LSE"] == want, 0.0, np.abs(run.outputs["LSE"] - want))
    assert all((run.outputs[scratch] == 0).all() for scratch in workspaces_of(contract)) or run.findings
    return Result(run, *(float(np.where(np.isnan(x), np.inf, x).max(initial=0.0)) for x in (off, far)))


def expect_right(result: Result, dtype: str) -> None:
    assert not result.run.findings, [(f.code, f.message, str(f.span)) for f in result.run.findings]
    assert result.o < LIMITS[dtype][0]
    assert result.lse < LIMITS[dtype][1]
