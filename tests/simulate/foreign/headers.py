"""Kernels from the headers of pip's wheels, fetched and compiled when needed: nothing of them is in the project.

Each returns its launch (``Case``) for one problem; the PTX is kept beside the wheel. ``Missing`` says why one cannot be
had: no network, no nvcc, or a wheel so large that it is only fetched when asked for (CUBRIDGE_FOREIGN=1).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.simulate import Buffer, Run, Schedule, Struct, TensorMap

CUTLASS = "nvidia-cutlass==4.2.0.0"
FLASHINFER = "flashinfer-python==0.7.4"
LARGE = {FLASHINFER}  # 100 MB
FOLDERS = {CUTLASS: "cutlass_library/source/", FLASHINFER: "flashinfer/data/"}
UNREACHABLE: dict[str, str] = {}
RNG = np.random.default_rng(11)
DECODE = """
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>
using namespace flashinfer;
using P = SingleDecodeParams<half, half, half>;
using V = DefaultAttention<false, false, false, false>;
template __global__ void flashinfer::SingleDecodeWithKVCacheKernel<PosEncodingMode::kNone, 2, 2, 8, 8, 2, 8, V, P>(
    const __grid_constant__ P);
"""


class Missing(Exception):
    """This kernel cannot be had here; the text says why."""


@dataclass(frozen=True)
class Case:
    """What a launch gave: the run, the largest error against NumPy, and the error that is allowed."""

    run: Run
    error: float
    tolerance: float


@dataclass(frozen=True)
class Header:
    """A kernel: its wheel, source (a path in the wheel, or text), architecture, include folders, and its launch."""

    wheel: str
    source: str
    arch: str
    includes: tuple[str, ...]
    launch: Callable[[simulate.Module, Schedule], Case]


def unpacked(wheel: str, cache: Path) -> Path:
    """The folder of a wheel's contents. Raises Missing."""
    folder = cache / wheel.replace("==", "-")
    if not (folder / "done").exists():
        if wheel in LARGE and not os.environ.get("CUBRIDGE_FOREIGN"):
            raise Missing(f"{wheel} is large: set CUBRIDGE_FOREIGN=1 to fetch it")
        if wheel in UNREACHABLE:  # asking once is enough for a session without network
            raise Missing(UNREACHABLE[wheel])
        command = [sys.executable, "-m", "pip", "--retries", "1", "--timeout", "10", "download", "-q", "--no-deps"]
        command += ["--only-binary=:all:", "-d", str(folder), wheel]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            UNREACHABLE[wheel] = f"{wheel} cannot be fetched: {' '.join(done.stderr.strip().splitlines()[-1:])}"
            raise Missing(UNREACHABLE[wheel])
        (file,) = folder.glob("*.whl")
        with zipfile.ZipFile(file) as archive:
            names = [n for n in archive.namelist() if n.startswith(FOLDERS[wheel])]
            archive.extractall(folder, [n for n in names if "include" in n or "cccl" in n or "cute/tutorial" in n])
        file.unlink()
        (folder / "done").touch()
    return folder / FOLDERS[wheel]


def ptx_of(name: str, cache: Path) -> str:
    """The PTX of one of HEADERS, compiled once. Raises Missing."""
    header = HEADERS[name]
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise Missing("there is no nvcc")
    root = unpacked(header.wheel, cache)
    target = cache / f"{name}.ptx"
    if not target.exists():
        source = root / header.source
        if "\n" in header.source:
            source = cache / f"{name}.cu"
            source.write_text(header.source)
        flags = ["-ptx", "-lineinfo", "-std=c++17", "-O2", "--expt-relaxed-constexpr", f"-arch={header.arch}"]
        command = [nvcc, *flags, *(f"-I{root / i}" for i in header.includes), "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Missing(f"nvcc does not compile {name}: {done.stderr.strip()[-200:]}")
    return target.read_text()


def _product(module: simulate.Module, schedule: Schedule, *, tma: bool) -> Case:
    """C = A B^T in fp16, column-major C; M and N are multiples of the 128 x 128 tile, as the examples need it."""
    m, n, k = 256, 256, 320  # five tiles of K: the ring of three wraps
    a, b = (RNG.standard_normal((rows, k)).astype(np.float16) / 4 for rows in (m, n))
    buffers = [Buffer(a, "in", "A"), Buffer(b, "in", "B"), Buffer(np.zeros((n, m), np.float16), "out", "C")]
    sizes = Struct({0: np.int32(m), 4: np.int32(n), 8: np.int32(k)})
    empty, row, column = bytes(1), Struct({0: np.int32(k)}), Struct({0: np.int32(m)})
    factors = [np.float16(1).tobytes(), np.float16(0).tobytes()]
    if tma:
        maps = [Struct({0: TensorMap(x, (k, 128 * 2), (2 * k,), (64, 128), 128)}) for x in buffers[:2]]
        mma = Struct({0: np.int32(1), 4: np.int32(1)})  # holds whether wgmma accumulates: it does
        args = [sizes, empty, buffers[0], maps[0], buffers[1], maps[1], buffers[2], column, mma, *factors]
        entry = next(name for name in module.kernels if "gemm_device" in name and "5MajorE0" in name)
    else:
        args = [sizes, empty, buffers[0], row, *[empty] * 3, buffers[1], row, *[empty] * 3]
        args += [buffers[2], column, *[empty] * 2, *factors]
        entry = next(name for name in module.kernels if "gemm_device" in name)
    shared = 2 * 3 * 128 * 64 * 2 + (128 if tma else 0)
    cluster = (2, 1, 1) if tma else None
    run = module.launch(entry, (2, 2), (128,), args, dynamic_shared=shared, schedule=schedule, cluster=cluster)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    return Case(run, _error(run, "C", want.T), 0.02)  # fp16 accumulators: twenty roundings of values up to ten


def _decode(module: simulate.Module, schedule: Schedule) -> Case:
    """One query, two query heads per KV head, D = 64: the whole cache in one chunk."""
    heads, kv_heads, length, d = 4, 2, 150, 64
    q = RNG.standard_normal((heads, d)).astype(np.float16)
    k, v = (RNG.standard_normal((length, kv_heads, d)).astype(np.float16) for _ in range(2))
    out = Buffer(np.zeros((heads, d), np.float16), "out", "O")
    lse = Buffer(np.zeros(heads, np.float32), "out", "LSE")
    pointers = [Buffer(q, "in", "Q"), Buffer(k, "in", "K"), Buffer(v, "in", "V"), out, lse]
    numbers = [length, heads, kv_heads, heads * d, d, kv_heads * d, d]
    parts: dict[int, object] = {8 * i: p for i, p in enumerate(pointers)}
    parts |= {40: np.uint64(0)} | {48 + 4 * i: np.uint32(x) for i, x in enumerate(numbers)}
    floats = [np.float32(0), np.float32(d**-0.5), np.float32(1), np.float32(1)]
    parts |= {76: np.int32(-1), **{80 + 4 * i: f for i, f in enumerate(floats)}, 96: np.uint32(length)}
    shared = 2 * 2 * 2 * 2 * 8 * d * 2 + 2 * 2 * 8 * 4  # K and V stages, then m and d of each group
    run = module.launch(
        module.kernels[0], (1, kv_heads), (8, 2, 8), [Struct(parts)], dynamic_shared=shared, schedule=schedule
    )
    scores = np.einsum("hd,thd->ht", q.astype(np.float64), np.repeat(k, 2, 1).astype(np.float64)) / 8
    p = np.exp(scores - scores.max(1, keepdims=True))
    want = np.einsum("ht,thd->hd", p / p.sum(1, keepdims=True), np.repeat(v, 2, 1).astype(np.float64))
    return Case(run, _error(run, "O", want), 2e-3)


def _error(run: Run, name: str, want: np.ndarray) -> float:
    got = run.outputs.get(name)
    return np.inf if got is None else float(np.nan_to_num(np.abs(got - want), nan=np.inf).max())


_TUTORIAL = "examples/cute/tutorial/"
HEADERS = {
    "cute_sgemm_sm80": Header(
        CUTLASS, _TUTORIAL + "sgemm_sm80.cu", "sm_80", ("include", "tools/util/include"),
        lambda module, schedule: _product(module, schedule, tma=False),
    ),
    "cute_wgmma_tma_sm90": Header(
        CUTLASS, _TUTORIAL + "hopper/wgmma_tma_sm90.cu", "sm_90a", ("include", "tools/util/include"),
        lambda module, schedule: _product(module, schedule, tma=True),
    ),
    "flashinfer_single_decode": Header(
        FLASHINFER, DECODE, "sm_80", ("cccl/libcudacxx/include", "cccl/cub", "cccl/thrust", "include"), _decode
    ),
}  # fmt: skip
