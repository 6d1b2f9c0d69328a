"""What the code of others has shown about the simulator: each was wrong once, and is small here."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import SCHEDULES, Buffer

from .conftest import one_instruction  # type: ignore[import-not-found]

WAITING = r"""
__device__ void pass(unsigned bar) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" :: "r"(bar));
}
__device__ unsigned leader() {
  unsigned lane;
  asm volatile("{ .reg .pred p; elect.sync %0|p, -1; }" : "=r"(lane));
  return lane;
}
__global__ void k(unsigned* out) {
  __shared__ __align__(8) unsigned long long storage;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&storage);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(bar));
  }
  __syncthreads();
  const unsigned t = threadIdx.x;
  unsigned got = 0;
#ifdef HALVES
  if (t < 16) {
    got = __shfl_sync(0xffffu, t, 3);
    if (t == 0) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(bar));
  } else if (t < 32) {
    pass(bar);
    got = __shfl_sync(0xffff0000u, t, 20);
  }
#else
  if (t < 32) {
    if (t == LANE) pass(bar);
    got = leader();
  } else if (t == 40) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(bar));
  }
#endif
  out[t] = got;
}
"""


def launch(module: simulate.Module, schedule: simulate.Schedule) -> list[int]:
    """What each thread got; there must be no finding."""
    out = Buffer(np.zeros(64, np.uint32), "out", "out")
    run = module.launch(module.kernels[0], (1,), (64,), [out], schedule=schedule)
    assert not run.findings, [f.message for f in run.findings]
    return run.outputs["out"].tolist()


@pytest.mark.parametrize("lane", [0, 5])
def test_a_warp_instruction_waits_for_the_lanes_that_it_names(build, lane):
    """The producer warp of CUTLASS: one lane waits for a slot while the others go on to the next ``elect.sync``."""
    module = build(WAITING, arch="sm_90a", defines=(f"LANE={lane}",))
    for schedule in SCHEDULES:
        assert launch(module, schedule) == [0] * 64, "lane 0 is the leader of a whole warp"


def test_nobody_waits_for_lanes_that_are_not_named(build):
    """Half a warp waits for the other half, which exchanges values before it arrives."""
    module = build(WAITING, arch="sm_90a", defines=("HALVES",))
    for schedule in SCHEDULES:
        assert launch(module, schedule) == [3] * 16 + [20] * 16 + [0] * 32


@pytest.mark.parametrize("rank", [0, 1])
def test_mapa_in_a_launch_without_clusters(rank):
    """A CTA alone is a cluster of one: rank 0 is itself, and there is no rank 1."""
    body = f"""
      .shared .align 4 .b8 s[128]; .reg .b32 %h<4>;
      mov.u32 %h0, s; shl.b32 %h1, %t0, 2; add.u32 %h0, %h0, %h1;
      mapa.shared::cluster.u32 %h2, %h0, {rank};
      st.shared::cluster.u32 [%h2], %a; ld.shared.u32 %x0, [%h0];
    """
    module = simulate.load(one_instruction(body, [(32, 1)], [32]))
    values = np.arange(32, dtype=np.uint32)
    run = module.launch("k", (1,), (32,), [Buffer(values, "in", "a"), Buffer(np.zeros(32, np.uint32), "out", "x")])
    if rank == 0:
        assert not run.findings, [f.message for f in run.findings]
        assert (run.outputs["x"] == values).all()
    else:
        assert "CB515" in {f.code for f in run.findings}


def test_decimal_literals_of_floats(lab):
    """FlashInfer's inline assembly: ``{%f1, 0., %f2, 0.}`` as an accumulator."""
    x = np.linspace(-3, 3, 32).astype(np.float32)
    for text, value in (("0.", 0), (".5", 0.5), ("-1.25e1", -12.5)):
        (got,) = lab.run(f"add.f32 %x0, %a, {text};", [x.view(np.uint32)], [32])
        assert (got.view(np.float32) == x + np.float32(value)).all()


def test_a_decimal_literal_that_would_be_rounded_is_refused():
    module = simulate.load(one_instruction("add.f32 %x0, %a, 0.1;", [(32, 1)], [32]))
    buffers = [Buffer(np.zeros(32, np.uint32), role, role) for role in ("in", "out")]
    assert {f.code for f in module.launch("k", (1,), (32,), buffers).findings} == {"CB510"}
