// Hopper without roles: one warpgroup, thread 0 starts TMA copies into a ring of two stages, wgmma, P from registers.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
constexpr int Br = 64, Bc = 64, D = 64, kStages = 2, kTile = 64 * D * 2;
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

__device__ __forceinline__ void init(unsigned bar, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory"); }
__device__ __forceinline__ void expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(unsigned bar, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma(unsigned dst, const TensorMap* map, unsigned bar, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  return static_cast<unsigned long long>((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
#define REGS "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
__device__ __forceinline__ void product_ss(float (&c)[8][4], unsigned long long a, unsigned long long b, int keep) {
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " REGS ", %32, %33, keep, 1, 1, 0, 0;\n}"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                 "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                 "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                 "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
               : "l"(a), "l"(b), "r"(keep));
}
__device__ __forceinline__ void product_rs(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " REGS ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                 "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                 "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                 "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ unsigned pack(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// Starts the copies of K and V tile `tile` into its stage.
__device__ __forceinline__ void start_tile(unsigned smem_k, unsigned smem_v, unsigned full, const TensorMap* k_map, const TensorMap* v_map, int tile,
                                           int head, int batch) {
  if (threadIdx.x == 0) {
    const int stage = tile & 1;
    expect(full + 8 * stage, 2 * kTile);
    tma(smem_k + stage * kTile, k_map, full + 8 * stage, 0, tile * Bc, head, batch);
    tma(smem_v + stage * kTile, v_map, full + 8 * stage, 0, tile * Bc, head, batch);
  }
}

__global__ void __launch_bounds__(128)
    hopper_fwd(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
               __half* __restrict__ O, float* __restrict__ LSE, long long o_stride_b, long long o_stride_h, long long o_stride_row,
               int sq, int sk, int heads, int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int q0 = blockIdx.x * Br, h = blockIdx.y, b = blockIdx.z, hk = h / (heads / kv_heads);
  const unsigned smem_q = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  const unsigned smem_k = smem_q + kTile, smem_v = smem_k + kStages * kTile;
  const unsigned q_full = smem_v + kStages * kTile, full = q_full + 8;
  __half* out = O + b * o_stride_b + h * o_stride_h;
  float* lse = LSE + (static_cast<long long>(b) * heads + h) * sq;
  int kv_end = sk;
  if (causal) kv_end = min(sk, q0 + Br + sk - sq);
  const int n_tiles = (kv_end + Bc - 1) / Bc;

  if (threadIdx.x == 0) {
    init(q_full, 1);
    for (int s = 0; s < kStages; ++s) init(full + 8 * s, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(q_full, kTile);
    tma(smem_q, &q_map, q_full, 0, q0, h, b);
  }
  if (n_tiles > 0) start_tile(smem_k, smem_v, full, &k_map, &v_map, 0, hk, b);  // a map of no rows cannot be made
  wait(q_full, 0);

  float o[8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0.f, 0.f};
  for (int i = 0; i < 8; ++i) for (int e = 0; e < 4; ++e) o[i][e] = 0.f;

  int parity = 0;  // a bit per stage
  for (int tile = 0; tile < n_tiles; ++tile) {
    __syncthreads();  // every warp is done with tile - 1, whose stage is filled again
    if (tile + 1 < n_tiles) start_tile(smem_k, smem_v, full, &k_map, &v_map, tile + 1, hk, b);
    const int stage = tile & 1, kv0 = tile * Bc;
    wait(full + 8 * stage, parity >> stage & 1);
    parity ^= 1 << stage;

    float s[8][4];
    const unsigned long long da = descriptor(smem_q), db = descriptor(smem_k + stage * kTile);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) product_ss(s, da + 2 * kk, db + 2 * kk, kk > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

    if (kv0 + Bc > sk || (causal && kv0 + Bc - 1 > q0 + sk - sq)) {
      for (int nb = 0; nb < 8; ++nb)
        for (int e = 0; e < 4; ++e) {
          const int row = q0 + warp * 16 + lane / 4 + 8 * (e / 2);
          const int col = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);
          if (col >= sk || (causal && col > row + sk - sq)) s[nb][e] = -INFINITY;
        }
    }
    float m_new[2] = {m[0], m[1]}, base[2], correction[2];
    for (int nb = 0; nb < 8; ++nb) for (int e = 0; e < 4; ++e) m_new[e / 2] = fmaxf(m_new[e / 2], s[nb][e]);
    for (int r = 0; r < 2; ++r) {
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 1));
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 2));
      base[r] = m_new[r] == -INFINITY ? 0.f : m_new[r] * scale_log2;
      correction[r] = exp2f(m[r] * scale_log2 - base[r]);
      m[r] = m_new[r];
      l[r] *= correction[r];
    }
    for (int nb = 0; nb < 8; ++nb)
      for (int e = 0; e < 4; ++e) {
        s[nb][e] = exp2f(s[nb][e] * scale_log2 - base[e / 2]);
        l[e / 2] += s[nb][e];
      }
    for (int db = 0; db < 8; ++db) for (int e = 0; e < 4; ++e) o[db][e] *= correction[e / 2];
    unsigned p[4][4];
    for (int kk = 0; kk < 4; ++kk) {
      p[kk][0] = pack(s[2 * kk][0], s[2 * kk][1]);
      p[kk][1] = pack(s[2 * kk][2], s[2 * kk][3]);
      p[kk][2] = pack(s[2 * kk + 1][0], s[2 * kk + 1][1]);
      p[kk][3] = pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
    }
    const unsigned long long dv = descriptor(smem_v + stage * kTile);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) product_rs(o, p[kk], dv + 128 * kk);  // 16 keys are 2048 bytes
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }

  for (int r = 0; r < 2; ++r) {
    l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
    l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
    const float inv = l[r] == 0.f ? 0.f : 1.f / l[r];
    const int row = q0 + warp * 16 + lane / 4 + 8 * r;
    if (row < sq) {
      for (int db = 0; db < 8; ++db)
        *reinterpret_cast<unsigned*>(out + row * o_stride_row + db * 8 + 2 * (lane % 4)) = pack(o[db][2 * r] * inv, o[db][2 * r + 1] * inv);
      if (lane % 4 == 0) lse[row] = l[r] == 0.f ? -INFINITY : m[r] * scale_log2 * 0.6931471805599453f + logf(l[r]);
    }
  }
}
