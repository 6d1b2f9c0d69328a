"""Shared by the simulator's tests: one-instruction kernels, compiled kernels, and an attention launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.compile import compile_source
from cubridge_engine.simulate import Buffer, Schedule

ROOT = Path(__file__).parents[2]
REGISTER = {"p": ".pred", 8: ".b16", 16: ".b16", 32: ".b32", 64: ".b64"}
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def one_instruction(body: str, inputs: list[tuple[int, int]], outputs: list[int], extra: str = "") -> str:
    """PTX of a kernel that loads operands a, b, c, ... and stores d, e, ...: `inputs` are (bits, registers) pairs.

    Thread t uses element t of each buffer (registers of one operand lie behind each other).
    """
    count = len(inputs) + len(outputs)
    lines = [".version 9.0", ".target sm_90a", ".address_size 64", ".visible .entry k("]
    lines.append(",\n".join(f".param .u64 p{i}" for i in range(count)) + ") {")
    lines += [".reg .b64 %rd<40>;", ".reg .b32 %t<4>;", extra]
    lines += [
        "mov.u32 %t0, %tid.x;",
        "mov.u32 %t1, %ctaid.x;",
        "mov.u32 %t2, %ntid.x;",
        "mad.lo.u32 %t0, %t1, %t2, %t0;",
    ]
    lines.append("cvt.u64.u32 %rd0, %t0;")
    names = "abcdefgh"
    for i, (bits, registers) in enumerate(inputs):
        lines += [
            f"ld.param.u64 %rd{i + 1}, [p{i}];",
            f"mad.lo.u64 %rd{i + 1}, %rd0, {bits // 8 * registers}, %rd{i + 1};",
        ]
        for r in range(registers):
            name = f"%{names[i]}{r}" if registers > 1 else f"%{names[i]}"
            lines.append(f".reg {REGISTER[bits]} {name};")
            lines.append(f"ld.global.b{bits} {name}, [%rd{i + 1}+{bits // 8 * r}];")
    for j, bits in enumerate(outputs):
        lines.append(f".reg {REGISTER[bits]} %x{j};")
    lines.append(body)
    for j, bits in enumerate(outputs):
        slot = 20 + j
        lines += [
            f"ld.param.u64 %rd{slot}, [p{len(inputs) + j}];",
            f"mad.lo.u64 %rd{slot}, %rd0, {bits // 8}, %rd{slot};",
        ]
        lines.append(f"st.global.b{bits} [%rd{slot}], %x{j};")
    return "\n".join([*lines, "ret;", "}"])


class Lab:
    """Runs single instructions."""

    def ptx(self, *args: Any, **kw: Any) -> str:
        return one_instruction(*args, **kw)

    def run(
        self, body: str, inputs: list[np.ndarray], outputs: list[int], *, extra: str = "", ok: bool = True
    ) -> list[np.ndarray]:
        """Each input is (threads,) or (threads, registers), unsigned. Returns one unsigned array per output."""
        spec = [(8 * x.itemsize, 1 if x.ndim == 1 else x.shape[1]) for x in inputs]
        module = simulate.load(one_instruction(body, spec, outputs, extra))
        assert not module.diagnostics, module.diagnostics
        threads = len(inputs[0]) if inputs else 32
        block = min(threads, 128)
        assert threads % block == 0
        ins = [Buffer(x, "in", f"in{i}") for i, x in enumerate(inputs)]
        outs = [Buffer(np.zeros(threads, UNSIGNED[bits]), "out", f"out{j}") for j, bits in enumerate(outputs)]
        run = module.launch("k", (threads // block,), (block,), [*ins, *outs])
        if ok:
            assert run.ok, [f.message for f in run.findings]
        self.findings = run.findings
        return [run.outputs[f"out{j}"] for j in range(len(outputs))]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@lru_cache(maxsize=64)
def _compile(text: str, path: str, arch: str, names: tuple[str, ...], defines: tuple[str, ...]) -> simulate.Module:
    compiled = compile_source(
        text, path=path, arch=arch, name_expressions=names, defines=defines, want=("ptx",), options=("-lineinfo",)
    )
    assert compiled.ptx is not None, compiled.diagnostics
    return simulate.load(compiled.ptx, {path: text})


@pytest.fixture
def build():
    """build(text, path=..., arch=..., names=..., defines=...) -> Module, compiled once per text."""

    def make(
        text: str,
        path: str = "kernel.cu",
        arch: str = "sm_80",
        names: tuple[str, ...] = (),
        defines: tuple[str, ...] = (),
    ) -> simulate.Module:
        return _compile(text, path, arch, names, defines)

    return make


@dataclass(frozen=True)
class Shape:
    """Sizes of an attention problem."""

    b: int = 1
    h: int = 2
    hkv: int = 1
    sq: int = 100
    sk: int = 200
    d: int = 64
    causal: int = 0


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """O and LSE (natural) in float64; rows without keys give 0 and -inf."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.transpose(0, 1, 3, 2) * scale
    sq, sk = s.shape[-2:]
    if causal:
        s = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None] + sk - sq, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    return p / safe @ v, np.where(total > 0, top + np.log(safe), -np.inf)[..., 0]


def stored(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Values as a kernel's elements; ``bfloat16`` as uint16 bits, cut off."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def values(x: np.ndarray) -> np.ndarray:
    """What elements stand for, in float64."""
    exact = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
    return exact.astype(np.float64)


@dataclass
class Attended:
    """A launch of flash_fwd_*: what it gave, the largest row error relative to the row, and of LSE."""

    run: simulate.Run
    error: float
    lse_error: float


def launch_attention(
    module: simulate.Module, shape: Shape, *, tile: int, dtype: Any, shared: int, schedule: Schedule, log2: bool,
    flag: bool, offset: int = 0, row_pad: int = 8, **options: Any,
) -> Attended:  # fmt: skip
    """Launch a kernel with the parameters of the expert kernels: every head its own allocation, padded rows."""
    rng = np.random.default_rng(shape.sq * 1000 + shape.sk)
    q = rng.standard_normal((shape.b, shape.h, shape.sq, shape.d))
    k, v = (rng.standard_normal((shape.b, shape.hkv, shape.sk, shape.d)) for _ in range(2))
    k[..., -max(shape.sk // 4, 1) :, :] *= 3  # the row max rises in the last tile
    q, k, v = (stored(x, dtype) for x in (q, k, v))
    given = [
        Buffer(x, "in", n, isolate=2, row_pad=row_pad, offset=offset) for x, n in zip((q, k, v), "QKV", strict=True)
    ]
    out = Buffer(np.zeros_like(q), "out", "O", isolate=2, row_pad=8)
    lse = Buffer(np.zeros((shape.b, shape.h, shape.sq), np.float32), "out", "LSE")
    scale = shape.d**-0.5
    factor = np.float32(scale * np.log2(np.e) if log2 else scale)
    strides = [s for x in (*given, out) for s in x.strides[:3]]
    args = [
        *given,
        out,
        lse,
        *strides,
        shape.sq,
        shape.sk,
        shape.h,
        shape.hkv,
        factor,
        *([shape.causal] if flag else []),
    ]
    grid = (-(-shape.sq // tile), shape.h, shape.b)
    run = module.launch(module.kernels[0], grid, (128,), args, dynamic_shared=shared, schedule=schedule, **options)
    if not run.outputs:
        return Attended(run, np.inf, np.inf)
    o, want = attention(values(q), values(k), values(v), scale, bool(shape.causal))
    size = np.maximum(np.abs(o).max(-1, keepdims=True), 1e-2)
    error = np.abs(values(run.outputs["O"]) - o) / size
    with np.errstate(invalid="ignore"):
        lse_error = np.where(run.outputs["LSE"] == want, 0.0, np.abs(run.outputs["LSE"] - want))
    return Attended(run, _worst(error), _worst(lse_error))


def _worst(x: np.ndarray) -> float:
    return float(np.where(np.isnan(x), np.inf, x).max(initial=0.0))


@pytest.fixture
def flash80(build):
    """flash80(shape, schedule, edit=(old, new), ...) -> Attended, for flash_fwd_sm80 with a text edit."""
    path = ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu"
    text = path.read_text()

    def go(
        shape: Shape, schedule: Schedule | None = None, edits: tuple[tuple[str, str], ...] = (), **options: Any
    ) -> Attended:
        changed = text
        for old, new in edits:
            assert old in changed, f"the kernel has no {old!r}"
            changed = changed.replace(old, new)
        dtype = np.dtype(np.float16)
        names = (f"flash_fwd_sm80<__half, {shape.d}>",)
        module = build(changed, "flash.cu", names=names)
        return launch_attention(
            module, shape, tile=64, dtype=dtype, shared=5 * 64 * shape.d * 2, schedule=schedule or Schedule(),
            log2=True, flag=True, **options,
        )  # fmt: skip

    return go


@pytest.fixture
def scalar(build):
    """scalar(shape, schedule) -> Attended, for flash_fwd_scalar."""
    text = (ROOT / "expert_kernels/flash_fwd_scalar/kernel.cu").read_text()

    def go(shape: Shape, schedule: Schedule, **options: Any) -> Attended:
        module = build(text, "scalar.cu", names=(f"flash_fwd_scalar<{shape.d}>",))
        shared = ((32 + 64) * (shape.d + 1) + 32 * 33) * 4
        return launch_attention(
            module,
            shape,
            tile=32,
            dtype=np.float32,
            shared=shared,
            schedule=schedule,
            log2=False,
            flag=False,
            **options,
        )

    return go
