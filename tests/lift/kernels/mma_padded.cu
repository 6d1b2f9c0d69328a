// Tensor cores without cp.async: one stage, padded shared tiles, 32-bit fragment loads, helpers for the softmax, O through shared memory.
#include <cuda_fp16.h>
#include <stdint.h>
#define WARP 32
namespace cfg {
constexpr int M = 64, N = 32, HD = 64, PAD = 8, LD = HD + PAD, THREADS = 128;
}
using namespace cfg;
struct Strides;

__device__ inline void mma16816(float *d, const uint32_t *a, const uint32_t *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return x;
}
__device__ inline float quad_sum(float x) {
#pragma unroll
  for (int w = 2; w >= 1; w /= 2) x += __shfl_xor_sync(0xffffffff, x, w);
  return x;
}
__device__ inline uint32_t ld32(const half *p) { return *reinterpret_cast<const uint32_t *>(p); }

template <int ROWS>
__device__ void fetch(half (*dst)[LD], const half *src, int first, int total, int pitch) {
  for (int v = threadIdx.x; v < ROWS * HD / 8; v += THREADS) {
    const int r = v / (HD / 8), c = v % (HD / 8) * 8;
    uint4 data = make_uint4(0, 0, 0, 0);
    if (first + r < total) data = *reinterpret_cast<const uint4 *>(&src[(int64_t)(first + r) * pitch + c]);
    *reinterpret_cast<uint4 *>(&dst[r][c]) = data;
  }
}

__global__ void __launch_bounds__(THREADS) fwd(half *o, const half *q, const half *k, const half *v, int B, int L, int H, int G, float softmax_scale, bool is_causal) {
  __shared__ half sq[M][LD];
  __shared__ half sk[N][LD];
  __shared__ half sv[N][LD];
  const int w = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t4 = threadIdx.x % 4;
  const int tile = gridDim.x - 1 - blockIdx.x, hd = blockIdx.y, bt = blockIdx.z;
  const int kh = hd / G, KH = H / G;
  // [B, L, H, HD]
  const half *qp = q + ((int64_t)bt * L * H + hd) * HD;
  const half *kp = k + ((int64_t)bt * L * KH + kh) * HD;
  const half *vp = v + ((int64_t)bt * L * KH + kh) * HD;
  half *op = o + ((int64_t)bt * L * H + hd) * HD;
  fetch<M>(sq, qp, tile * M, L, H * HD);
  __syncthreads();
  float acc[HD / 8][4] = {}, mx[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
  int last = (L + N - 1) / N;
  if (is_causal) last = min(last, (tile * M + M + N - 1) / N);
  for (int it = 0; it < last; ++it) {
    fetch<N>(sk, kp, it * N, L, KH * HD);
    fetch<N>(sv, vp, it * N, L, KH * HD);
    __syncthreads();
    float s[N / 8][4] = {};
#pragma unroll
    for (int kk = 0; kk < HD; kk += 16) {
      uint32_t a[4];
      a[0] = ld32(&sq[w * 16 + g][kk + t4 * 2]);
      a[1] = ld32(&sq[w * 16 + g + 8][kk + t4 * 2]);
      a[2] = ld32(&sq[w * 16 + g][kk + t4 * 2 + 8]);
      a[3] = ld32(&sq[w * 16 + g + 8][kk + t4 * 2 + 8]);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        uint32_t b[2] = {ld32(&sk[n * 8 + g][kk + t4 * 2]), ld32(&sk[n * 8 + g][kk + t4 * 2 + 8])};
        mma16816(s[n], a, b);
      }
    }
    for (int n = 0; n < N / 8; ++n)
      for (int e = 0; e < 4; ++e) {
        int i = tile * M + w * 16 + g + (e >= 2 ? 8 : 0), j = it * N + n * 8 + t4 * 2 + e % 2;
        s[n][e] = (j < L && !(is_causal && j > i)) ? s[n][e] * softmax_scale : -INFINITY;
      }
    for (int r = 0; r < 2; ++r) {
      float big = mx[r];
      for (int n = 0; n < N / 8; ++n) big = fmaxf(big, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      big = quad_max(big);
      float alpha = __expf(mx[r] - big), part = 0.f;
      mx[r] = big;
      for (int n = 0; n < N / 8; ++n)
        for (int x = 0; x < 2; ++x) {
          s[n][2 * r + x] = __expf(s[n][2 * r + x] - big);
          part += s[n][2 * r + x];
        }
      sum[r] = sum[r] * alpha + quad_sum(part);
      for (int n = 0; n < HD / 8; ++n) {
        acc[n][2 * r] *= alpha;
        acc[n][2 * r + 1] *= alpha;
      }
    }
    for (int kk = 0; kk < N / 16; ++kk) {
      half2 p[4] = {__floats2half2_rn(s[2 * kk][0], s[2 * kk][1]), __floats2half2_rn(s[2 * kk][2], s[2 * kk][3]),
                    __floats2half2_rn(s[2 * kk + 1][0], s[2 * kk + 1][1]), __floats2half2_rn(s[2 * kk + 1][2], s[2 * kk + 1][3])};
      for (int n = 0; n < HD / 8; ++n) {
        half2 b0 = __halves2half2(sv[kk * 16 + t4 * 2][n * 8 + g], sv[kk * 16 + t4 * 2 + 1][n * 8 + g]);
        half2 b1 = __halves2half2(sv[kk * 16 + t4 * 2 + 8][n * 8 + g], sv[kk * 16 + t4 * 2 + 9][n * 8 + g]);
        uint32_t b[2] = {*(uint32_t *)&b0, *(uint32_t *)&b1};
        mma16816(acc[n], (uint32_t *)p, b);
      }
    }
    __syncthreads();
  }
  for (int n = 0; n < HD / 8; ++n)
    for (int r = 0; r < 2; ++r) {
      const int row = tile * M + w * 16 + g + 8 * r;
      if (row < L)
        *reinterpret_cast<half2 *>(&op[(int64_t)row * H * HD + n * 8 + t4 * 2]) =
            __floats2half2_rn(acc[n][2 * r] / sum[r], acc[n][2 * r + 1] / sum[r]);
    }
}
