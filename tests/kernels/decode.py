"""Launching flash_decode in the simulator: contiguous keys or pages, lengths per entry, any number of CTAs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cubridge_engine.compile import Contract, Instance
from cubridge_engine.device import bind_arguments
from cubridge_engine.simulate import Buffer, Module, Schedule
from cubridge_engine.verify.paged import in_pages, table_for
from cubridge_engine.verify.simulated_tensors import (
    SimulatedTensor,
    floats,
    place,
    simulated_argument,
    workspaces_of,
)
from tests.kernels import hopper
from tests.kernels.hopper import ELEMENTS, Result, bits

TILE = 64  # keys


@dataclass(frozen=True)
class Problem:
    """A launch. `ctas`: how many (0: as the contract says); `page`: rows of a page (0: no pages); `lengths`: keys of
    each entry of the batch (none: Sk of all). `rise`: how much larger the scores of the first keys are.
    """

    sk: int
    sq: int = 1
    b: int = 1
    h: int = 1
    hkv: int = 1
    ctas: int = 0
    page: int = 0
    lengths: tuple[int, ...] = ()
    causal: bool = True
    layout: str = "padded"
    rise: float = 3.0

    def parts(self, ctas: int) -> int:
        """How many CTAs the keys of one KV head are dealt out to, at most; one block of rows per head."""
        counts = [max(1, math.ceil(n / TILE)) for n in self.lengths or (self.sk,) * self.b]
        units = self.b * self.hkv
        per_cta = math.ceil(units / ctas)
        even = math.ceil(units / per_cta) if per_cta > 1 else units * (ctas // units)
        if not self.lengths and even >= ctas - ctas // 8:
            ctas = even
        base, longer = divmod(sum(counts) * self.hkv, ctas)
        owner = [c for c in range(ctas) for _ in range(base + (c < longer))]
        found, start = 0, 0
        for count in (count for count in counts for _ in range(self.hkv)):
            found = max(found, owner[start + count - 1] - owner[start] + 1)
            start += count
        return found


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: tuple[int, ...], causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """O and LSE in float64; a row without keys gives 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    s = q @ np.repeat(k, group, 1).transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    sq, sk = s.shape[-2:]
    for b, length in enumerate(lengths):
        end = np.arange(sq)[:, None] + length - sq + 1 if causal else length
        s[b] = np.where(np.arange(sk)[None] < np.minimum(end, length), s[b], -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    return p / safe @ np.repeat(v, group, 1), np.where(total > 0, top + np.log(safe), -np.inf)[..., 0]


def expect_right(result: Result, dtype: str) -> None:
    """No finding, the numbers right, and the counters zero again for the next launch."""
    hopper.expect_right(result, dtype)
    assert not result.run.outputs["arrived"].any()


def instance_for(contract: Contract, dtype: str, widths: tuple[int, int], p: Problem) -> Instance:
    """The instance of the contract that a caller would launch."""
    found = contract.instance(dtype, *widths, p.h // p.hkv * p.sq)
    assert found is not None
    return found


def launch(module: Module, contract: Contract, name: str, instance: Instance, p: Problem, schedule: Schedule) -> Result:
    """Run a problem and compare it."""
    (d, dv), dtype = instance.widths, instance.dtype
    rng = np.random.default_rng(p.sq * 1000 + p.sk)
    k, v = rng.standard_normal((p.b, p.hkv, p.sk, d)), rng.standard_normal((p.b, p.hkv, p.sk, dv))
    k[:, :, : p.sk // 3] *= p.rise
    q, k, v = (bits(x, dtype) for x in (rng.standard_normal((p.b, p.h, p.sq, d)), k, v))
    lengths = p.lengths or (p.sk,) * p.b
    for b, length in enumerate(lengths):  # keys behind the last one of an entry must not count
        k[b, :, length:], v[b, :, length:] = bits(np.array([np.nan]), dtype), bits(np.array([np.nan]), dtype)
    sizes = {"B": p.b, "H": p.h, "Hkv": p.hkv, "Sq": p.sq, "Sk": p.sk, "D": d, "Dv": dv}
    given: dict[str, object] = {"scale": d**-0.5, "causal": int(p.causal)}
    table = table_for(sizes, p.page) if p.page else None
    stored = {"k": k, "v": v} if table is None else {n: in_pages(x, table, p.page) for n, x in (("k", k), ("v", v))}
    tensors = {n: place(x, p.layout, n.upper(), dtype, 16) for n, x in (("q", q), *stored.items())}
    tensors["o"] = place(np.zeros((p.b, p.h, p.sq, dv), ELEMENTS[dtype]), p.layout, "O", dtype, 16, "out")
    tensors["lse"] = _plain(np.zeros((p.b, p.h, p.sq), np.float32), "LSE", "out")
    if table is not None:
        given |= {"block_table": _plain(table, "block_table"), "page_size": p.page}
    if p.lengths:
        given["kv_lengths"] = _plain(np.array(p.lengths, np.int32), "kv_lengths")
    shape = contract.launch(sizes, dtype)
    ctas = p.ctas or shape.grid[0]
    scratch = workspaces_of(contract, sizes)
    if p.ctas:
        scratch["partials"] = _plain(np.full(ctas * 2 * 64 * (dv + 2), np.nan, np.float32), "partials", "inout")
    arguments, refused = bind_arguments(contract, tensors, sizes, {**given, **scratch})
    assert not refused, [r.message for r in refused]
    run = module.launch(
        name, (ctas,), shape.block, [simulated_argument(a) for a in arguments],
        dynamic_shared=shape.dynamic_shared_bytes, schedule=schedule,
    )  # fmt: skip
    if not run.outputs:
        return Result(run, np.inf, np.inf)
    q, k, v = (floats(x, dtype) for x in (q, np.where(_seen(k, lengths), k, 0), np.where(_seen(v, lengths), v, 0)))
    o, want = attention(q, k, v, lengths, p.causal)
    got = floats(run.outputs["O"], dtype)
    got = got.transpose(0, 2, 1, 3) if p.layout == "bshd" else got
    size = np.linalg.norm(o, axis=-1)
    off = np.linalg.norm(got - o, axis=-1) / np.where(size > 0, size, 1)
    with np.errstate(invalid="ignore"):
        far = np.where(run.outputs["LSE"] == want, 0.0, np.abs(run.outputs["LSE"] - want))
    return Result(run, *(float(np.where(np.isnan(x), np.inf, x).max(initial=0.0)) for x in (off, far)))


def _plain(array: np.ndarray, name: str, role: str = "in") -> SimulatedTensor:
    buffer = Buffer(array, role, name)
    return SimulatedTensor(buffer, array.shape, buffer.strides, str(array.dtype))


def _seen(array: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Where an entry of the batch has a key."""
    return (np.arange(array.shape[2])[None] < np.array(lengths)[:, None])[:, None, :, None]
