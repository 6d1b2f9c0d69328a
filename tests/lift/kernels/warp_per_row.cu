// One warp per query row; a lane owns one key of the tile and D/32 output columns.
#include <cuda_runtime.h>
#include <cfloat>
namespace attn {
constexpr int WARP = 32;
constexpr int ROWS = 8;  // warps per block

__device__ __forceinline__ float warp_max(float v) {
  #pragma unroll
  for (int off = 16; off > 0; off /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, off));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  #pragma unroll
  for (int off = 16; off > 0; off /= 2) v += __shfl_xor_sync(0xffffffff, v, off);
  return v;
}

template <int D>
__global__ void __launch_bounds__(ROWS * WARP)
warp_attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
               float* __restrict__ out, int heads, int q_len, int kv_len, float scale) {
  __shared__ float k_tile[WARP][D + 1];
  __shared__ float v_tile[WARP][D];
  __shared__ float q_tile[ROWS][D];
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int tiles = (q_len + ROWS - 1) / ROWS;
  const int bh = blockIdx.x / tiles;
  const int tile = blockIdx.x % tiles;
  const int row = tile * ROWS + warp;
  q += (size_t)bh * q_len * D;
  k += (size_t)bh * kv_len * D;
  v += (size_t)bh * kv_len * D;
  out += (size_t)bh * q_len * D;

  for (int c = lane; c < D; c += WARP) q_tile[warp][c] = row < q_len ? q[row * D + c] * scale : 0.f;

  float acc[D / WARP] = {0.f};
  float running_max = -FLT_MAX, running_sum = 0.f;

  for (int start = 0; start < kv_len; start += WARP) {
    __syncthreads();
    for (int idx = threadIdx.x; idx < WARP * D; idx += ROWS * WARP) {
      int r = idx / D, c = idx % D;
      bool ok = start + r < kv_len;
      k_tile[r][c] = ok ? k[(start + r) * D + c] : 0.f;
      v_tile[r][c] = ok ? v[(start + r) * D + c] : 0.f;
    }
    __syncthreads();

    float s = 0.f;
    #pragma unroll
    for (int c = 0; c < D; ++c) s += q_tile[warp][c] * k_tile[lane][c];
    if (start + lane >= kv_len) s = -FLT_MAX;

    float tile_max = warp_max(s);
    float new_max = fmaxf(running_max, tile_max);
    float p = __expf(s - new_max);
    float factor = __expf(running_max - new_max);
    running_sum = running_sum * factor + warp_sum(p);
    running_max = new_max;
    #pragma unroll
    for (int i = 0; i < D / WARP; ++i) acc[i] *= factor;
    #pragma unroll
    for (int j = 0; j < WARP; ++j) {
      float pj = __shfl_sync(0xffffffff, p, j);
      #pragma unroll
      for (int i = 0; i < D / WARP; ++i) acc[i] += pj * v_tile[j][lane + i * WARP];
    }
  }
  if (row < q_len) {
    #pragma unroll
    for (int i = 0; i < D / WARP; ++i) out[row * D + lane + i * WARP] = acc[i] / running_sum;
  }
}
}  // namespace attn

void run(const float* q, const float* k, const float* v, float* o, int batch, int heads, int ql, int kl, float s) {
  int tiles = (ql + attn::ROWS - 1) / attn::ROWS;
  attn::warp_attention<64><<<batch * heads * tiles, 256>>>(q, k, v, o, heads, ql, kl, s);
}
