"""Order of accesses to global memory: inside a CTA by barriers, between CTAs by fences and counters.

Every fault is one edit of a kernel that is right; the right one must be clean, or the fault would prove nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule

SPLITS, ROWS = 4, 64
MERGE = """
__device__ unsigned ticket(unsigned* counter) {
  return atomicAdd(counter, 1u);
}

__global__ void merge(float* part, unsigned* counter, float* out, const float* in) {
  __shared__ bool last;
  part[blockIdx.x * 64 + threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x] * 2;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = ticket(counter) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  float sum = 0;
  for (int s = 0; s < gridDim.x; ++s) sum += part[s * 64 + 63 - threadIdx.x];
  out[63 - threadIdx.x] = sum;
  if (threadIdx.x == 32) *counter = 0;
}
"""
PUBLISH = "  __threadfence();\n  __syncthreads();\n  if"
ACQUIRE = "  if (!last) return;\n  __threadfence();\n"
ADD = "return atomicAdd(counter, 1u);"


def atomic(form: str) -> str:
    """`ticket` with an atomic of the given form."""
    asm = f'asm volatile("atom.{form}.global.add.u32 %0, [%1], 1;" : "=r"(t) : "l"(counter) : "memory");'
    return f"unsigned t; {asm} return t;"


RIGHT = {
    "fences as they are": (),
    "one thread fences for its CTA": ((PUBLISH, "  __syncthreads();\n  if (threadIdx.x == 0) __threadfence();\n  if"),),
    "fence of the system": (("__threadfence()", "__threadfence_system()"),),
    "acquire and release in the atomic": (
        (PUBLISH, "  __syncthreads();\n  if"),
        (ACQUIRE, "  if (!last) return;\n"),
        (ADD, atomic("acq_rel.gpu")),
    ),
}
FAULTS = {
    "no fence before the counter": (((PUBLISH, "  __syncthreads();\n  if"),), "does not publish it"),
    "a fence of the CTA only": (((PUBLISH, PUBLISH.replace("fence", "fence_block")),), "does not publish it"),
    "fence before the write": (
        (
            (PUBLISH, "  __syncthreads();\n  if"),
            ("  part[blockIdx.x * 64 + thr", "  __threadfence();\n  part[blockIdx.x * 64 + thr"),
        ),
        "behind the fence",
    ),
    "no barrier before the counter": (((PUBLISH, "  __threadfence();\n  if"),), "no barrier hands that on"),
    "no fence behind the counter": (((ACQUIRE, "  if (!last) return;\n"),), "no __threadfence() behind the flag"),
    "no counter": (((ADD, "return gridDim.x - 1;"),), "does not publish it"),
    "an atomic of the CTA's scope": (((ADD, atomic("acq_rel.cta")),), "does not publish it"),
    "another counter per CTA": (((ADD, "return atomicAdd(counter + blockIdx.x, 1u) + gridDim.x - 1;"),), "no flag or"),
}


def merge(build, edits, schedule: Schedule = SCHEDULES[0]):
    text = MERGE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    module = build(text, "merge.cu", arch="sm_80")
    data = np.random.default_rng(1).standard_normal((SPLITS, ROWS)).astype(np.float32)
    args = [
        Buffer(np.zeros_like(data), "out", "part"),
        Buffer(np.zeros(SPLITS, np.uint32), "inout", "counter"),
        Buffer(np.zeros(ROWS, np.float32), "inout", "result"),
        Buffer(data, "in", "x"),
    ]
    run = module.launch("_Z5mergePfPjS_PKf", (SPLITS,), (ROWS,), args, schedule=schedule)
    return run, text, 2 * data.sum(0)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_merge_is_clean(build, name):
    for schedule in SCHEDULES:
        run, _, want = merge(build, RIGHT[name], schedule)
        assert not run.findings, [f.message for f in run.findings]
        assert np.allclose(run.outputs["result"], want, rtol=1e-5)
        assert run.outputs["counter"][0] == 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_merge_without_order_is_found(build, name):
    edits, reason = FAULTS[name]
    for schedule in (Schedule("late", "forward"), Schedule("late", "reverse")):
        run, text, _ = merge(build, edits, schedule)
        found = [f for f in run.findings if f.code == "CB540" and "part, byte" in f.message]
        assert found, (schedule, [f.message for f in run.findings])
        assert any(reason in f.message for f in found), [f.message for f in found]
        lines = text.split("\n")
        assert any("sum += part" in lines[f.span.line] for f in found)
        assert any("= in[" in lines[r.span.line] for f in found for r in f.related)


def test_a_read_before_the_write_of_another_cta_is_found(build):
    """Only this order is executed: CTA 0 reads in the first batch what a CTA of a later batch writes."""
    text = """__global__ void k(float* a, float* o) {
  o[blockIdx.x] = a[0];
  if (blockIdx.x == gridDim.x - 1) a[0] = 5;
}"""
    module = build(text, "early.cu")
    args = [Buffer(np.ones(1, np.float32), "inout", "a"), Buffer(np.zeros(600, np.float32), "inout", "o")]
    run = module.launch(module.kernels[0], (600,), (32,), args)
    (found,) = run.findings
    assert found.code == "CB540"
    assert (found.span.line, found.related[0].span.line) == (2, 1)
    assert found.message.startswith("race between CTAs: a write of a, byte 0 by CTA 599")


WARPS = """__global__ void k(float* a, float* o) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  STORE
  SYNC
  USE
}"""
PAIRS = {
    "read after write": ("if (warp == 0) a[lane] = lane;", "if (warp == 1) o[lane] = a[lane];"),
    "write after read": ("if (warp == 1) o[lane] = a[lane];", "if (warp == 0) a[lane] = lane;"),
    "write after write": ("if (warp == 0) a[lane] = lane;", "if (warp == 1) a[lane] = 2 * lane;"),
    "both at once": ("a[lane] = warp;", "if (warp == 0) o[lane] = 1;"),
    "atomic and read": ("if (warp == 0) atomicAdd(a + lane, 1.f);", "if (warp == 1) o[lane] = a[lane];"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_warps_of_a_cta_need_a_barrier(build, pair):
    first, second = PAIRS[pair]
    for sync in ("", "__syncwarp();", "__syncthreads();"):
        module = build(WARPS.replace("STORE", first).replace("SYNC", sync).replace("USE", second), "warps.cu")
        for schedule in SCHEDULES[::2]:
            args = [Buffer(np.zeros(32, np.float32), "inout", "a"), Buffer(np.zeros(32, np.float32), "inout", "o")]
            run = module.launch(module.kernels[0], (1,), (64,), args, schedule=schedule)
            if sync == "__syncthreads();" and pair != "both at once":
                assert not run.findings, [f.message for f in run.findings]
            else:
                assert {f.code for f in run.findings} == {"CB539"}, (sync, schedule, [f.message for f in run.findings])
                (found,) = run.findings
                assert " a, byte" in found.message
                assert found.span.line in (2, 4)


def test_atomics_do_not_race_with_each_other(build):
    text = "__global__ void k(float* a) { atomicAdd(a + threadIdx.x % 8, 1.f); }"
    module = build(text, "atomics.cu")
    args = [Buffer(np.zeros(8, np.float32), "inout", "a")]
    run = module.launch(module.kernels[0], (3,), (64,), args)
    assert not run.findings
    assert (run.outputs["a"] == 24).all()


def test_serialised_writes_of_two_ctas_are_in_order(build):
    """The ticket holder's CTA may overwrite what the others wrote: no finding, neither CB524 nor CB540."""
    over = (
        "out[63 - threadIdx.x] = sum;",
        "out[63 - threadIdx.x] = sum; __syncthreads(); part[63 - threadIdx.x] = part[64 + threadIdx.x] = 0;",
    )
    run, _, _ = merge(build, (over,))
    assert not run.findings, [f.message for f in run.findings]
    run, _, _ = merge(build, (over, (PUBLISH, "  __syncthreads();\n  if")))
    assert "CB524" in {f.code for f in run.findings}


@pytest.mark.parametrize("both", ["a[lane] = 3;", "if (warp == 0) a[lane] = 3; if (warp == 1) a[lane] = 3;"])
def test_warps_may_write_the_same_number_in_any_order(build, both):
    for value, codes in (("3", set()), ("warp", {"CB539"})):
        text = both.replace("= 3", f"= {value}")
        module = build(WARPS.replace("STORE", text).replace("SYNC", "").replace("USE", ""), "same.cu")
        args = [Buffer(np.zeros(32, np.float32), "inout", "a"), Buffer(np.zeros(32, np.float32), "inout", "o")]
        run = module.launch(module.kernels[0], (1,), (64,), args)
        assert {f.code for f in run.findings} == codes
