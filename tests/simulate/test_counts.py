"""Counts of a launch by source line: instructions, lanes, bytes, bank conflicts, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np

from cubridge_engine.simulate import Buffer

TEXT = """__device__ float column(const float* s, int i) {
  return s[threadIdx.x % 32 * 32 + i];
}

__global__ void k(float* o, const float* a, int n) {
  __shared__ float s[32 * 32];
  for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x)
    s[i] = a[i];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < n; ++i)
    sum += column(s, i) * i;
  if (threadIdx.x % 4 == 0)
    o[blockIdx.x * 16 + threadIdx.x / 4] = sum;
}"""
CTAS, WARPS, ROUNDS = 3, 2, 5


def launch(build):
    module = build(TEXT, "lines.cu")
    args = [Buffer(np.zeros(CTAS * 16, np.float32), "out", "o"), Buffer(np.ones(1024, np.float32), "in", "a"), ROUNDS]
    name = module.kernels[0]
    run = module.launch(name, (CTAS,), (32 * WARPS,), args)
    assert run.ok, [f.message for f in run.findings]
    return module, name, run


def test_each_line_has_its_own_instructions_and_bytes(build):
    module, name, run = launch(build)
    costs = module.line_costs(name, run)
    assert (run.ctas, run.warps) == (CTAS, CTAS * WARPS)
    fill, store = costs[8], costs[14]
    assert fill.moves == {"global read": CTAS * 4096, "shared write": CTAS * 4096}
    assert fill.bank.actual == fill.bank.ideal == 1024 / 32
    assert store.moves == {"global write": CTAS * 16 * 4}
    assert store.classes["global"] == CTAS * WARPS
    assert 0.2 < store.active < 0.3, "every fourth lane stores"
    assert fill.active == 1.0
    assert costs[8].passes == 1024 / (32 * WARPS)


def test_instructions_of_an_inlined_function_are_its_own_and_those_of_the_call(build):
    module, name, run = launch(build)
    own, deep = module.line_costs(name, run), module.line_costs(name, run, calls=True)
    reads = own[2].classes["shared"]
    assert reads == CTAS * WARPS * ROUNDS
    assert own[2].worst_ways == 32.0, "a column of 32 words is in one bank"
    assert own[2].moves["shared read"] == reads * 32 * 4
    assert "shared" not in own[12].classes
    assert deep[12].classes["shared"] == reads
    assert deep[12].worst_ways == 32.0
    assert deep[12].slots > own[12].slots


def test_every_instruction_is_on_exactly_one_line(build):
    module, name, run = launch(build)
    costs = module.line_costs(name, run)
    assert sum(c.slots for c in costs.values()) * 32 == run.counts.slots
    assert sum(c.moves["global read"] for c in costs.values()) == run.counts.bytes["global read"]
    # A guard that switches lanes off is idle here; the totals of the launch go by blocks.
    assert sum(c.threads for c in costs.values()) <= run.counts.threads


def test_lanes_that_take_no_part_make_no_bank_conflict(build):
    text = """__global__ void k(float* o, int far) {
  __shared__ float s[32 * 33];
  if (threadIdx.x < 8) s[threadIdx.x * 32] = threadIdx.x;
  if (threadIdx.x >= 8) s[threadIdx.x] = 1;
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x % 8 * 32 * far];
}"""
    module = build(text, "part.cu")
    for far, ways in ((1, 8.0), (0, 1.0)):
        args = [Buffer(np.zeros(32, np.float32), "out", "o"), far]
        run = module.launch(module.kernels[0], (1,), (32,), args)
        assert run.ok, [f.message for f in run.findings]
        costs = module.line_costs(module.kernels[0], run)
        assert costs[3].worst_ways == 8.0
        assert costs[4].worst_ways == 1.0
        assert costs[6].worst_ways == ways
