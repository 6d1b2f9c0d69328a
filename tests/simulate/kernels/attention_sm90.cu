// Warp-specialised attention for sm_90a, D = 64, bf16: one producer warpgroup (TMA) fills a ring of K/V stages, two consumer
// warpgroups (64 query rows each) multiply with wgmma. Tails come as zeros from the tensor maps. Host code is in the tests.
#include "hopper.cu"  // its instructions as functions

constexpr int D = 64, Br = 128, Bc = 64, STAGES = 2, TILE_BYTES = 64 * D * 2, CONSUMERS = 256;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 r;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ void tma_tile(u32 dst, const Map* map, u32 bar, int row, int head) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(head)
      : "memory");
}
__device__ __forceinline__ u64 tile_descriptor(u32 address) { return descriptor(address, 16, 1024, 1); }
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ void produce(const Map* q, const Map* k, const Map* v, u32 s, u32 bars, int tiles, int head) {
  const u32 q_ready = bars, full = bars + 8, empty = full + 8 * STAGES, ring = s + 2 * TILE_BYTES;
  bar_expect(q_ready, 2 * TILE_BYTES);
  for (int half = 0; half < 2; ++half) tma_tile(s + half * TILE_BYTES, q, q_ready, blockIdx.x * Br + half * 64, head);
#pragma unroll 1
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % STAGES, round = j / STAGES;
#ifndef NO_EMPTY_WAIT
    if (round > 0) bar_wait(empty + 8 * stage, (round - 1) & 1);
#endif
    bar_expect(full + 8 * stage, 2 * TILE_BYTES);
    tma_tile(ring + stage * 2 * TILE_BYTES, k, full + 8 * stage, j * Bc, head);
    tma_tile(ring + stage * 2 * TILE_BYTES + TILE_BYTES, v, full + 8 * stage, j * Bc, head);
  }
}

// Online softmax of one tile: `s` are this thread's scores (rows r and r + 8), `m` and `l` the running maximum and sum.
__device__ __forceinline__ void softmax(float (&s)[32], float (&o)[32], float (&m)[2], float (&l)[2], float scale_log2) {
  float scale_o[2], offset[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = m[r];
#pragma unroll
    for (int i = 0; i < 32; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
    top = quad_max(top);
    offset[r] = top == -INFINITY ? 0.0f : top * scale_log2;
    scale_o[r] = exp2_approx(m[r] * scale_log2 - offset[r]);
    m[r] = top;
    l[r] *= scale_o[r];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int r = i / 2 % 2;
    s[i] = exp2_approx(s[i] * scale_log2 - offset[r]);
    l[r] += s[i];
    o[i] *= scale_o[r];
  }
}

__device__ __forceinline__ void consume(__nv_bfloat16* out, u32 s, u32 bars, int tiles, int sq, int sk, int head, float scale_log2,
                                        int causal) {
  const u32 q_ready = bars, full = bars + 8, empty = full + 8 * STAGES, ring = s + 2 * TILE_BYTES;
  const int group = threadIdx.x / 128 - 1, t = threadIdx.x % 128, lane = t % 32;
  const int row = blockIdx.x * Br + group * 64 + t / 32 * 16 + lane / 4;
  float o[32], m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 32; ++i) o[i] = 0;
  bar_wait(q_ready, 0);
#pragma unroll 1
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % STAGES;
    const u32 k = ring + stage * 2 * TILE_BYTES, v = k + TILE_BYTES;
    bar_wait(full + 8 * stage, j / STAGES & 1);
    float p[32];
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < 4; ++x) wgmma_ss<0, 0>(p, tile_descriptor(s + group * TILE_BYTES + x * 32), tile_descriptor(k + x * 32), x > 0);
    wgmma_commit();
    wgmma_wait();
    if ((j + 1) * Bc > sk || (causal && (j + 1) * Bc > blockIdx.x * Br + group * 64 + sk - sq)) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int column = j * Bc + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (column >= sk || (causal && column > row + i / 2 % 2 * 8 + sk - sq)) p[i] = -INFINITY;
      }
    }
    softmax(p, o, m, l, scale_log2);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float* at = p + 8 * x;
      const u32 a[4] = {pack(at[0], at[1]), pack(at[2], at[3]), pack(at[4], at[5]), pack(at[6], at[7])};
      wgmma_rs<1>(o, a, tile_descriptor(v + x * 2048), 1);
    }
    wgmma_commit();
#ifdef EARLY_RELEASE
    bar_arrive(empty + 8 * stage);
#endif
    wgmma_wait();
#ifndef EARLY_RELEASE
    bar_arrive(empty + 8 * stage);
#endif
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = quad_sum(l[r]), inverse = total > 0 ? 1 / total : 0;
    if (row + 8 * r < sq)
#pragma unroll
      for (int i = 0; i < 32; i += 4)
        *reinterpret_cast<u32*>(out + (static_cast<size_t>(head) * sq + row + 8 * r) * D + i / 4 * 8 + lane % 4 * 2) =
            pack(o[i + 2 * r] * inverse, o[i + 2 * r + 1] * inverse);
  }
}

__global__ void __launch_bounds__(384) attention_sm90(const __grid_constant__ Map q, const __grid_constant__ Map k,
                                                      const __grid_constant__ Map v, __nv_bfloat16* out, int sq, int sk,
                                                      float scale_log2, int causal) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 storage[1 + 2 * STAGES];
  const u32 s = smem_address(smem), bars = smem_address(storage);
  if (threadIdx.x == 0) {
    bar_init(bars, 1);
    for (int i = 0; i < STAGES; ++i) {
      bar_init(bars + 8 * (1 + i), 1);
      bar_init(bars + 8 * (1 + STAGES + i), CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  int tiles = (sk + Bc - 1) / Bc;
  if (causal) tiles = max(0, min(tiles, (static_cast<int>(blockIdx.x + 1) * Br + sk - sq + Bc - 1) / Bc));
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) produce(&q, &k, &v, s, bars, tiles, blockIdx.y);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume(out, s, bars, tiles, sq, sk, blockIdx.y, scale_log2, causal);
  }
}
