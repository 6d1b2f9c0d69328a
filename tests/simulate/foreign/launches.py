"""How the kernels of libraries are launched: arguments as their host code lays them out, and the right result.

A module is what has ``kernels`` and ``launch`` like a ``simulate.Module``. Inputs are the same in every launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cubridge_engine.simulate import Buffer, Run, Schedule, Struct, TensorMap


@dataclass(frozen=True)
class Case:
    """What a launch gave: the run, the largest error against NumPy, and the error that is allowed."""

    run: Run
    error: float
    tolerance: float


def _error(run: Run, name: str, want: np.ndarray) -> float:
    got = run.outputs.get(name)
    return np.inf if got is None else float(np.nan_to_num(np.abs(got - want), nan=np.inf).max())


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape).astype(np.float16) for shape in shapes]


def _softmax(scores: np.ndarray) -> np.ndarray:
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _product(module: Any, schedule: Schedule, *, tma: bool) -> Case:
    """C = A B^T in fp16, column-major C; M and N are multiples of the 128 x 128 tile, as the examples need it."""
    m, n, k = 256, 256, 320  # five tiles of K: the ring of three wraps
    a, b = (x / 4 for x in _normal((m, k), (n, k)))
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


def cute_sgemm(module: Any, schedule: Schedule) -> Case:
    """CuTe's sgemm_sm80: cp.async ring, mma.sync."""
    return _product(module, schedule, tma=False)


def cute_wgmma(module: Any, schedule: Schedule) -> Case:
    """CuTe's wgmma_tma_sm90: TMA, mbarriers, wgmma, clusters of two."""
    return _product(module, schedule, tma=True)


def _divisor(n: int) -> tuple[int, int, int]:
    """CUTLASS's FastDivmod: divisor, multiplier, shift."""
    if n == 1:
        return 1, 0, 0
    bits = 31 + (n - 1).bit_length()
    return n, ((1 << bits) + n - 1) // n, bits - 32


def cutlass_fmha(module: Any, schedule: Schedule) -> Case:
    """Causal attention (top left), tails in Q and K, four tiles over two persistent CTAs.

    Offsets in Params: sizes at 0, the maps of Q, K and V at 128, 384 and 640, scales at 896, LSE at 1024, alpha at
    1184, the map of O at 1536, the tile scheduler at 1920.
    """
    b, h, sq, sk, d = 1, 2, 200, 333, 64
    q, k, v = _normal((b, h, sq, d), (b, h, sk, d), (b, h, sk, d))
    given = [Buffer(x, "in", name) for x, name in zip((q, k, v), "QKV", strict=True)]
    out = Buffer(np.zeros((b, h, sq, d), np.float16), "out", "O")
    lse = Buffer(np.zeros((b, h, sq), np.float32), "out", "LSE")

    def rows(buffer: Buffer, length: int, columns: int) -> TensorMap:
        strides = (2 * d, 2 * d * length * h, 2 * d * length)
        return TensorMap(buffer, (d, length, b, h), strides, (columns, 64, 1, 1), 2 * columns)

    tiles, ctas, scale = -(-sq // 128), 2, d**-0.5
    parts: dict[int, object] = {
        0: np.array([b, h, sq, sk, d], np.int32).tobytes(),
        128: rows(given[0], sq, 64), 384: rows(given[1], sk, 64), 640: rows(given[2], sk, 64),
        896: np.array([scale, scale * np.log2(np.e), 1], np.float32).tobytes(),
        1024: lse, 1032: np.array([h * sq, sq], np.int32).tobytes(),
        1184: np.float32(1), 1536: rows(out, sq, 32),
        1920: np.array([tiles * b * h, *_divisor(tiles), *_divisor(b), *_divisor(h)], np.uint32).tobytes(),
        1964: np.int32(ctas),
    }  # fmt: skip
    run = module.launch(module.kernels[0], (ctas,), (384,), [Struct(parts)], dynamic_shared=75264, schedule=schedule)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) * scale
    scores = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None], scores, -np.inf)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(scores).sum(-1))
    return Case(run, max(_error(run, "O", _softmax(scores) @ v.astype(np.float64)), _error(run, "LSE", total)), 2e-3)


def flashinfer_decode(module: Any, schedule: Schedule) -> Case:
    """One query, two query heads per KV head, D = 64: the whole cache in one chunk."""
    heads, kv_heads, length, d = 4, 2, 150, 64
    q, k, v = _normal((heads, d), (length, kv_heads, d), (length, kv_heads, d))
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
    want = np.einsum("ht,thd->hd", _softmax(scores), np.repeat(v, 2, 1).astype(np.float64))
    return Case(run, _error(run, "O", want), 2e-3)


def flashinfer_prefill(module: Any, schedule: Schedule, sq: int = 96) -> Case:
    """Causal attention (bottom right), two query heads per KV head packed into the rows of a Q tile.

    `sq`: where 2 `sq` is no multiple of the 64 rows of a tile, the kernel computes on rows of shared memory that it
    never filled, and drops the results.
    """
    heads, kv_heads, sk, d = 4, 2, 333, 64
    group = heads // kv_heads
    q, k, v = _normal((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, d))
    out = Buffer(np.zeros((sq, heads, d), np.float16), "out", "O")
    lse = Buffer(np.zeros((sq, heads), np.float32), "out", "LSE")
    given = [Buffer(x, "in", name) for x, name in zip((q, k, v), "QKV", strict=True)]
    parts: dict[int, object] = {8 * i: x for i, x in enumerate(given)} | {32: out, 40: lse}
    parts |= {56: np.array([group, 0, 0, 1], np.uint32).tobytes()}  # division by 2 as multiplication by 0, plus n >> 1
    numbers = [group, sq, sk, heads, kv_heads, heads * d, d, kv_heads * d, d, kv_heads * d, d, d]
    parts |= {72 + 4 * i: np.uint32(x) for i, x in enumerate(numbers)}
    parts |= {120: np.int32(-1), 124: np.array([0, d**-0.5, 1, 1], np.float32).tobytes()}
    grid, block = (-(-sq * group // 64), 1, kv_heads), (32, 4, 1)
    run = module.launch(module.kernels[0], grid, block, [Struct(parts)], dynamic_shared=24576, schedule=schedule)
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), np.repeat(k, group, 1).astype(np.float64)) * d**-0.5
    scores = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None] + sk - sq, scores, -np.inf)
    want = np.einsum("hij,jhd->ihd", _softmax(scores), np.repeat(v, group, 1).astype(np.float64))
    return Case(run, _error(run, "O", want), 2e-3)
