"""Kernels whose threads wait for memory that others write: they run when they can, and end in a finding when not."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule

# The merge of a split reduction: the last CTA to arrive... here one CTA waits for the flags of all the others.
MERGE = """__device__ int ready(const int* flag) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__global__ void k(float* o, float* part, int* flags, int merger) {
  __shared__ float total;
  const int n = gridDim.x;
  part[blockIdx.x * 32 + threadIdx.x] = blockIdx.x + threadIdx.x;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(1) : "memory");
  if (blockIdx.x != merger) return;
  for (int i = 0; i < n /*FAULT + 1*/; ++i) {
    if (threadIdx.x == 0)
      while (!ready(flags + i)) __nanosleep(100);
    __syncthreads();
    total = 0;
    o[threadIdx.x] = (i ? o[threadIdx.x] : 0) + part[i % n * 32 + threadIdx.x];
  }
}"""


def merge(build, ctas: int, merger: int, schedule: Schedule, threads: int = 32, fault: bool = False, **options):
    text = MERGE.replace("/*FAULT + 1*/", "+ 1" if fault else "")
    module = build(text, "merge.cu", arch="sm_90")
    out = Buffer(np.zeros(threads, np.float32), "out", "o")
    part = Buffer(np.zeros((ctas, threads), np.float32), "inout", "part")
    flags = Buffer(np.zeros(ctas + 1, np.int32), "inout", "flags")
    return module.launch(
        module.kernels[0], (ctas,), (threads,), [out, part, flags, merger], schedule=schedule, **options
    )


@pytest.mark.parametrize("merger", [0, 5, 39])
def test_a_cta_may_wait_for_others_of_its_batch(build, merger):
    for schedule in SCHEDULES:
        run = merge(build, 40, merger, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert run.outputs["o"].tolist() == [40 * t + 780 for t in range(32)]


@pytest.mark.parametrize("merger", [0, 399])
def test_a_cta_may_wait_for_others_of_later_batches(build, merger):
    run = merge(build, 400, merger, Schedule())
    assert run.ok, [(f.code, f.message) for f in run.findings]
    assert run.outputs["o"].tolist() == [400 * t + 399 * 200 for t in range(32)]


@pytest.mark.parametrize("ctas", [3, 400])
def test_a_flag_that_nobody_sets(build, ctas):
    for schedule in SCHEDULES[::3]:
        run = merge(build, ctas, 1, schedule, fault=True)
        (finding,) = (f for f in run.findings if f.code == "CB542")
        assert not run.ok
        assert not run.cancelled
        assert f"flags, byte {4 * ctas}" in finding.message
        lines = MERGE.split("\n")
        assert "ld.acquire" in lines[finding.span.line]
        assert "all other threads wait or ended" in finding.message


LOCK = """__global__ void k(int* o, int* lock) {
  for (bool done = false; !done;) {
    if (atomicCAS(lock, 0, /*FAULT 2 -*/ 1) == 0) {
      __threadfence();
      o[0] = o[0] + 1 + (int)threadIdx.x;
      __threadfence();
      /*FIX atomicExch(lock, 0);*/
      done = true;
    }
  }
}"""


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_lock_between_the_lanes_of_a_warp(build, order):
    text = LOCK.replace("/*FAULT 2 -*/", "").replace("/*FIX atomicExch(lock, 0);*/", "atomicExch(lock, 0);")
    module = build(text, "lock.cu")
    args = [Buffer(np.zeros(1, np.int32), "inout", "o"), Buffer(np.zeros(1, np.int32), "inout", "lock")]
    run = module.launch(module.kernels[0], (3,), (64,), args, schedule=Schedule(order=order), checkers=())
    assert run.ok, [(f.code, f.message) for f in run.findings]
    assert run.outputs["o"].tolist() == [3 * (64 + 2016)]


def test_a_lock_that_is_never_released(build):
    module = build(LOCK, "lock.cu")
    args = [Buffer(np.zeros(1, np.int32), "inout", "o"), Buffer(np.zeros(1, np.int32), "inout", "lock")]
    run = module.launch(module.kernels[0], (1,), (64,), args, checkers=())
    (finding,) = (f for f in run.findings if f.severity >= 2)
    assert finding.code == "CB542"
    assert "lock, byte 0" in finding.message
    assert "atomicCAS" in LOCK.split("\n")[finding.span.line]


COUNTING = """__global__ void k(int* o, const volatile int* flag) {
  int rounds = 0;
  while (*flag == 0) ++rounds;
  o[threadIdx.x] = rounds;
}"""


def test_a_spin_that_counts_its_rounds(build):
    module = build(COUNTING, "count.cu")
    flag = np.zeros(1, np.int32)
    args = [Buffer(np.zeros(32, np.int32), "out", "o"), Buffer(flag, "in", "flag")]
    run = module.launch(module.kernels[0], (1,), (32,), args, max_steps=5000)
    codes = {f.code for f in run.findings}
    assert codes == {"CB542"}, [(f.code, f.message) for f in run.findings]
    args = [Buffer(np.zeros(32, np.int32), "out", "o"), Buffer(flag + 1, "in", "flag")]
    run = module.launch(module.kernels[0], (1,), (32,), args)
    assert run.ok
    assert run.outputs["o"].tolist() == [0] * 32


SHARED = """__global__ void k(int* o) {
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) { while (flag == 0); }
  else if (threadIdx.x == 32) flag = 7;
  o[threadIdx.x] = flag;
}"""


def test_a_flag_in_shared_memory(build):
    module = build(SHARED, "shared.cu")
    for schedule in SCHEDULES:
        out = Buffer(np.zeros(64, np.int32), "out", "o")
        run = module.launch(module.kernels[0], (2,), (64,), [out], schedule=schedule, checkers=())
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["o"][:32] == 7).all()
