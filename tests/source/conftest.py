"""A small kernel in the style people write, with what makes reading hard."""

import pytest

KERNEL = """\
#include <cuda_fp16.h>
#include "tiles.cuh"
#define Br 64
#define CEIL(a, b) (((a) + (b) - 1) / (b))
#define HD __host__ __device__
#ifdef USE_BF16
typedef __nv_bfloat16 elem;
#else
typedef __half elem;
#endif

HD inline float up(elem x) { return __half2float(x); }

template <int D, bool Causal>
__global__ void __launch_bounds__(128, 2) fwd(const elem* __restrict__ Q, float* O, int Sk) {
  extern __shared__ __align__(16) char smem[];
  float acc[D] = {0};
  #pragma unroll 4
  for (int j = 0; j < Sk; ++j)
#pragma unroll
    for (int d = 0; d < D; ++d) acc[d] += up(Q[j * D + d]);  // acc = sum Q
  asm volatile("cp.async.wait_group %0;\\n" ::"n"(0));
  if constexpr (Causal) { O[threadIdx.x] = acc[0]; }
}

extern "C" void run(const elem* q, float* o, int sq, int sk, cudaStream_t s) {
  fwd<Br, true><<<dim3(CEIL(sq, Br), 2), 128, 4 * Br, s>>>(q, o, sk);
}
"""


@pytest.fixture
def kernel_text() -> str:
    return KERNEL
