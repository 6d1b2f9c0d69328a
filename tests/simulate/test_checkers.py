"""Each checker on a small kernel: the fault is found, the line is right, and the repaired kernel is clean."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule

# name, code, text with FAULT lines marked, launch block, what the fault line must contain
CASES = {
    "missing barrier": (
        "CB516",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  s[threadIdx.x] = a[threadIdx.x];
  /*FIX __syncthreads(); */
  o[threadIdx.x] = s[63 - threadIdx.x];
}""",
        "o[threadIdx.x] = s[63",
    ),
    "reuse without barrier": (
        "CB516",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  float t = 0;
  for (int i = 0; i < 3; ++i) {
    s[threadIdx.x] = a[threadIdx.x] + i;
    __syncthreads();
    t += s[63 - threadIdx.x];
    /*FIX __syncthreads(); */
  }
  o[threadIdx.x] = t;
}""",
        "s[threadIdx.x] = a",
    ),
    "race inside a warp": (
        "CB527",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  s[threadIdx.x] = a[threadIdx.x];
  /*FIX __syncwarp(); */
  o[threadIdx.x] = s[threadIdx.x ^ 1];
}""",
        "s[threadIdx.x ^ 1]",
    ),
    "read past the end": (
        "CB513",
        """__global__ void k(float* o, const float* a) {
  o[threadIdx.x] = a[threadIdx.x /*FAULT + 1*/];
}""",
        "a[threadIdx.x",
    ),
    "misaligned 16-byte load": (
        "CB514",
        """__global__ void k(float* o, const float* a) {
  if (threadIdx.x < 16)
    reinterpret_cast<float4*>(o)[threadIdx.x] =
        *reinterpret_cast<const float4*>(a + 4 * threadIdx.x /*FAULT - (threadIdx.x > 0)*/);
}""",
        "reinterpret_cast<const float4*>",
    ),
    "uninitialised shared read": (
        "CB518",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  if (threadIdx.x < 64 /*FAULT - 8*/) s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x];
}""",
        "o[threadIdx.x] = s",
    ),
    "shared index out of bounds": (
        "CB515",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  s[threadIdx.x /*FAULT + 1*/] = a[threadIdx.x];
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x /*FAULT + 1*/];
}""",
        "s[threadIdx.x",
    ),
    "return before the barrier": (
        "CB520",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  s[threadIdx.x] = a[threadIdx.x];
  /*FAULT if (threadIdx.x >= 32) return; */
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}""",
        "__syncthreads",
    ),
    "barrier in a divergent branch": (
        "CB519",
        """__global__ void k(float* o, const float* a) {
  __shared__ float s[64];
  s[threadIdx.x] = a[threadIdx.x];
  if (threadIdx.x % 2 == 0 /*FIX || true*/) __syncthreads();
  o[threadIdx.x] = threadIdx.x;
}""",
        "__syncthreads",
    ),
    "unwritten output": (
        "CB523",
        """__global__ void k(float* o, const float* a) {
  if (threadIdx.x < 64 /*FAULT - 3*/) o[threadIdx.x] = a[threadIdx.x];
}""",
        None,
    ),
    "write to an input": (
        "CB522",
        """__global__ void k(float* o, float* a) {
  o[threadIdx.x] = a[threadIdx.x];
  /*FAULT a[threadIdx.x] = 0; */
}""",
        "a[threadIdx.x] = 0",
    ),
    "wild pointer": (
        "CB526",
        """__global__ void k(float* o, const float* a) {
  const float* p = a;
  /*FAULT p = reinterpret_cast<const float*>(threadIdx.x * 8ull); */
  o[threadIdx.x] = p[threadIdx.x];
}""",
        "p[threadIdx.x]",
    ),
    "trap": (
        "CB528",
        """__global__ void k(float* o, const float* a) {
  /*FAULT if (a[0] > -1e30f) __trap(); */
  o[threadIdx.x] = a[threadIdx.x];
}""",
        "__trap",
    ),
}


def variant(text: str, faulty: bool) -> str:
    """Both kinds of marks opened or left as comments."""
    import re

    return re.sub(r"/\*(FIX|FAULT)\s(.*?)\*/", lambda m: m[2] if (m[1] == "FAULT") == faulty else "", text)


def launch(module, schedule, **kw):
    a = np.arange(64, dtype=np.float32)
    args = [Buffer(np.zeros(64, np.float32), "out", "o"), Buffer(a, "in", "a")]
    return module.launch(module.kernels[0], (1,), (64,), args, schedule=schedule, **kw)


@pytest.mark.parametrize("name", CASES)
def test_fault_is_found_on_its_line(build, name):
    code, text, line = CASES[name]
    wrong = variant(text, True)
    for schedule in SCHEDULES:
        run = launch(build(wrong, "fault.cu"), schedule)
        found = [f for f in run.findings if f.code == code]
        assert found, (schedule, [(f.code, f.message) for f in run.findings])
        assert not run.ok
        if line is not None:
            # A race has two ends; which of them comes second depends on the schedule.
            spans = [found[0].span, *(r.span for r in found[0].related[:1])]
            assert any(line in wrong.split("\n")[s.line] for s in spans if s), (spans, found[0].message)


@pytest.mark.parametrize("name", CASES)
def test_repaired_kernel_is_clean(build, name):
    right = variant(CASES[name][1], False)
    for schedule in SCHEDULES:
        run = launch(build(right, "fault.cu"), schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]


def test_race_names_both_accesses(build):
    run = launch(build(variant(CASES["missing barrier"][1], True), "fault.cu"), Schedule())
    (finding,) = (f for f in run.findings if f.code == "CB516")
    assert sorted((finding.span.line, finding.related[0].span.line)) == [2, 4]
    assert "the other access" in finding.related[0].message
    assert finding.span.path == "fault.cu"
    assert variant(CASES["missing barrier"][1], True).encode()[finding.span.start : finding.span.end].strip()
    assert " of s at byte" in finding.message


def test_two_ctas_that_write_the_same_element(build):
    text = "__global__ void k(float* o, const float* a) { o[threadIdx.x] = a[threadIdx.x] + blockIdx.x; }"
    args = [Buffer(np.zeros(64, np.float32), "out", "o"), Buffer(np.zeros(64, np.float32), "in", "a")]
    run = build(text, "two.cu").launch("_Z1kPfPKf", (2,), (64,), args)
    assert [f.code for f in run.findings] == ["CB524"]


def test_a_loop_without_end_stops(build):
    text = """__global__ void k(float* o, const float* a) {
  volatile float* p = o;
  while (a[0] < 1e30f) p[threadIdx.x] = 1;
}"""
    run = launch(build(text, "loop.cu"), Schedule(), max_steps=2000)
    assert "CB532" in [f.code for f in run.findings]


def test_cancel_and_progress(build):
    text = """__global__ void k(float* o, const float* a) {
  float t = 0;
  for (int i = 0; i < 5000; ++i) {
    t += a[i % 64];
    __syncthreads();
  }
  o[threadIdx.x] = t;
}"""
    seen: list[float] = []
    run = launch(build(text, "long.cu"), Schedule(), progress=seen.append, cancel=lambda: len(seen) > 3)
    assert run.cancelled
    assert not run.ok
    assert 3 < len(seen) < 50


def test_a_launch_that_is_not_possible_says_why(build):
    module = build("__global__ void k(float* o, const float* a) { o[threadIdx.x] = a[0]; }", "k.cu")
    name = module.kernels[0]
    args = [Buffer(np.zeros(4, np.float32), "out", "o"), Buffer(np.zeros(4, np.float32), "in", "a")]
    for grid, block, given in (
        ((0,), (4,), args),
        ((1,), (2048,), args),
        ((1,), (4,), args[:1]),
        ((1,), (4,), [1.5, args[1]]),
    ):
        (finding,) = module.launch(name, grid, block, given).findings
        assert finding.code == "CB512"


def test_ptx_that_cannot_be_read_is_a_diagnostic():
    from cubridge_engine import simulate

    for text in (
        "",
        "garbage",
        ".visible .entry k(",
        ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 p) { ld.param.u64 %rd1, [; }",
        "\x00\xff",
    ):
        module = simulate.load(text)
        assert module.kernels in ((), ("k",))
        assert module.diagnostics or not module.kernels


def test_bank_conflicts_are_counted_per_line(build):
    text = """__global__ void k(float* o, const float* a) {
  __shared__ float s[32 * 32];
  for (int i = 0; i < 32; ++i) s[i * 32 + threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x * 32];
}"""
    module = build(text, "bank.cu")
    args = [Buffer(np.zeros(32, np.float32), "out", "o"), Buffer(np.zeros(32, np.float32), "in", "a")]
    run = module.launch(module.kernels[0], (1,), (32,), args)
    assert run.ok
    assert run.bank_lines[3].ways == 1.0
    assert run.bank_lines[5].ways == 32.0


def test_counts(build):
    text = "__global__ void k(float* o, const float* a) { if (threadIdx.x < 16) o[threadIdx.x] = a[threadIdx.x] * 2; }"
    module = build(text, "count.cu")
    args = [Buffer(np.zeros(16, np.float32), "out", "o"), Buffer(np.zeros(16, np.float32), "in", "a")]
    run = module.launch(module.kernels[0], (3,), (32,), args)
    assert run.counts.bytes["global read"] == 3 * 16 * 4
    assert run.counts.bytes["global write"] == 3 * 16 * 4
    assert run.counts.instructions["global"] == 3 * 16 * 2
    assert 0 < run.counts.idle_share < 0.5


def test_functions_that_stay_functions(build):
    text = """__device__ __noinline__ float f(float x, int n) {
  float t = x;
  for (int i = 0; i < n; ++i) t = t * 1.5f + 1;
  return t;
}
__global__ void k(float* o, const float* a) { o[threadIdx.x] = f(a[threadIdx.x], threadIdx.x % 5) + f(1.0f, 2); }"""
    run = launch(build(text, "call.cu"), Schedule())
    assert run.ok, run.findings
    want = []
    for t in range(64):
        x, y = np.float32(t), np.float32(1)
        for _ in range(t % 5):
            x = np.float32(x * 1.5 + 1)
        for _ in range(2):
            y = np.float32(y * 1.5 + 1)
        want.append(x + y)
    np.testing.assert_allclose(run.outputs["o"], want, rtol=1e-6)


def test_local_arrays_constants_and_atomics(build):
    text = """__constant__ float c[4] = {1, 2, 3, 4};
__device__ int total;
__global__ void k(float* o, const float* a) {
  __shared__ int n;
  float v[8];
  for (int i = 0; i < 8; ++i) v[i] = a[(threadIdx.x + i) % 64] * c[i % 4];
  if (threadIdx.x == 0) n = 0;
  __syncthreads();
  atomicAdd(&n, (int)threadIdx.x);
  atomicMax(&total, (int)threadIdx.x);
  __syncthreads();
  o[threadIdx.x] = v[(int)a[threadIdx.x] % 8] + n + total;
}"""
    run = launch(build(text, "local.cu"), Schedule(order="reverse"))
    assert run.ok, [(f.code, f.message) for f in run.findings]
    t = np.arange(64)
    want = (t + t % 8) % 64 * np.array([1, 2, 3, 4])[t % 8 % 4] + 2016 + 63
    assert run.outputs["o"].tolist() == want.tolist()


def test_named_barriers_and_arrive(build):
    text = """__global__ void k(float* o, const float* a) {
  __shared__ float s[32];
  if (threadIdx.x < 32) {
    s[threadIdx.x] = a[threadIdx.x];
    asm volatile("bar.arrive 3, 64;" ::: "memory");
    o[threadIdx.x] = 1;
  } else {
    asm volatile("bar.sync 3, 64;" ::: "memory");
    o[threadIdx.x] = s[threadIdx.x - 32];
  }
}"""
    for schedule in SCHEDULES:
        run = launch(build(text, "named.cu"), schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert run.outputs["o"][32:].tolist() == list(range(32))


def test_barriers_that_count_and_vote(build):
    text = """__global__ void k(float* o, const float* a) {
  int n = __syncthreads_count(a[threadIdx.x] > 20);
  bool all = __syncthreads_and(a[threadIdx.x] >= 0), any = __syncthreads_or(a[threadIdx.x] > 63);
  o[threadIdx.x] = n + (all ? 1000 : 0) + (any ? 5000 : 0);
}"""
    for schedule in SCHEDULES:
        run = launch(build(text, "votes.cu"), schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["o"] == 43 + 1000).all()


def test_library_functions(build):
    """Code of the toolkit's headers: inline PTX, half2, printf, assert, double, cooperative groups."""
    text = """#include <cuda_fp16.h>
extern "C" __device__ int printf(const char*, ...);
__global__ void k(float* o, const float* a) {
  int t = threadIdx.x;
  if (t == 3) printf("%d", t);
  __half2 h = h2exp(__floats2half2_rn(a[t] * 0.01f, 1.0f));
  double d = exp(a[t] * 0.1) + sqrt((double)t);
  o[t] = __low2float(h) + __high2float(h) + (float)d + expf(a[t] * 0.1f) + sinf(a[t]) + powf(a[t] + 1.0f, 1.5f);
}"""
    run = launch(build(text, "library.cu"), Schedule())
    assert run.ok, [(f.code, f.message) for f in run.findings]
    t = np.arange(64.0)
    want = np.exp(t * 0.01) + np.e + np.exp(t * 0.1) + np.sqrt(t) + np.exp(t * 0.1) + np.sin(t) + (t + 1) ** 1.5
    np.testing.assert_allclose(run.outputs["o"], want, rtol=2e-3)


def test_wmma_matches_numpy(build):
    text = """#include <mma.h>
using namespace nvcuda;
__global__ void k(float* o, const __half* a, const __half* b) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 1.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 24);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(o, fc, 16, wmma::mem_row_major);
}"""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 24)).astype(np.float16)
    module = build(text, "wmma.cu")
    run = module.launch(
        module.kernels[0], (1,), (32,), [Buffer(np.zeros((16, 16), np.float32), "out", "o"), Buffer(a), Buffer(b)]
    )
    assert run.ok, [f.message for f in run.findings]
    np.testing.assert_allclose(
        run.outputs["o"], a.astype(np.float32) @ b[:, :16].T.astype(np.float32) + 1, rtol=1e-3, atol=1e-3
    )
