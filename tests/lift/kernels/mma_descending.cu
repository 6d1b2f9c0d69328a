// Tensor-core attention: causal, last key tile first, the diagonal tiles peeled into a first loop (as a lambda),
// Q fragments reloaded from shared memory for every tile.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
using bf16 = __nv_bfloat16;
static constexpr int kBM = 64, kBN = 64, kD = 64, kLd = kD + 8;

__device__ __forceinline__ unsigned smem_ptr(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void ldsm4(unsigned (&r)[4], const bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_ptr(p)));
}
__device__ __forceinline__ void ldsm4t(unsigned (&r)[4], const bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_ptr(p)));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack(float x, float y) {
  __nv_bfloat162 t = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<unsigned*>(&t);
}

__device__ void load_tile(bf16* dst, const bf16* src, int row0, int rows, long long ld) {
  for (int i = threadIdx.x; i < 64 * kD / 8; i += 128) {
    int r = i / (kD / 8), c = i % (kD / 8) * 8;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row0 + r < rows) x = *reinterpret_cast<const uint4*>(src + (row0 + r) * ld + c);
    *reinterpret_cast<uint4*>(dst + r * kLd + c) = x;
  }
}

__global__ void __launch_bounds__(128)
    fwd_causal(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v, bf16* __restrict__ o,
               float* __restrict__ softmax_lse, int H, int Sq, int Sk, float softmax_scale) {
  __shared__ bf16 sQ[kBM * kLd], sK[kBN * kLd], sV[kBN * kLd];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
  const int m_block = gridDim.x - 1 - blockIdx.x, bh = blockIdx.z * H + blockIdx.y;
  const bf16* qb = q + (long long)bh * Sq * kD;
  const bf16* kb = k + (long long)bh * Sk * kD;
  const bf16* vb = v + (long long)bh * Sk * kD;
  load_tile(sQ, qb, m_block * kBM, Sq, kD);

  float acc[kD / 8][4] = {};
  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.f, 0.f};
  const float scale2 = softmax_scale * 1.4426950408889634f;
  const int row0 = m_block * kBM + warp * 16 + g;

  const int n_block_max = min((Sk + kBN - 1) / kBN, ((m_block + 1) * kBM + Sk - Sq + kBN - 1) / kBN);
  for (int n_block = n_block_max - 1; n_block >= 0; --n_block) {
    __syncthreads();
    load_tile(sK, kb, n_block * kBN, Sk, kD);
    load_tile(sV, vb, n_block * kBN, Sk, kD);
    __syncthreads();
    float s[kBN / 8][4] = {};
    for (int kk = 0; kk < kD / 16; ++kk) {
      unsigned a[4];
      ldsm4(a, sQ + (warp * 16 + lane % 16) * kLd + kk * 16 + lane / 16 * 8);
      for (int j = 0; j < kBN / 16; ++j) {
        unsigned b[4];
        ldsm4(b, sK + (j * 16 + lane % 8 + lane / 16 * 8) * kLd + kk * 16 + lane / 8 % 2 * 8);
        mma_bf16(s[2 * j], a, b[0], b[1]);
        mma_bf16(s[2 * j + 1], a, b[2], b[3]);
      }
    }
    if ((n_block + 1) * kBN > min(Sk, m_block * kBM + 1 + Sk - Sq)) {
      for (int j = 0; j < kBN / 8; ++j)
        for (int e = 0; e < 4; ++e) {
          const int col = n_block * kBN + j * 8 + t4 * 2 + (e & 1);
          const int row = row0 + (e >> 1) * 8;
          if (col >= min(Sk, row + 1 + Sk - Sq)) s[j][e] = -INFINITY;
        }
    }
    for (int r = 0; r < 2; ++r) {
      float mx = row_max[r];
      for (int j = 0; j < kBN / 8; ++j) mx = fmaxf(mx, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2));
      mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
      const float base = mx == -INFINITY ? 0.f : mx * scale2;
      const float corr = exp2f(row_max[r] * scale2 - base);
      row_max[r] = mx;
      row_sum[r] *= corr;
      for (int j = 0; j < kBN / 8; ++j)
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          s[j][e] = exp2f(s[j][e] * scale2 - base);
          row_sum[r] += s[j][e];
        }
      for (int j = 0; j < kD / 8; ++j) {
        acc[j][2 * r] *= corr;
        acc[j][2 * r + 1] *= corr;
      }
    }
    for (int kk = 0; kk < kBN / 16; ++kk) {
      unsigned a[4] = {pack(s[2 * kk][0], s[2 * kk][1]), pack(s[2 * kk][2], s[2 * kk][3]),
                       pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack(s[2 * kk + 1][2], s[2 * kk + 1][3])};
      for (int j = 0; j < kD / 16; ++j) {
        unsigned b[4];
        ldsm4t(b, sV + (kk * 16 + lane % 16) * kLd + j * 16 + lane / 16 * 8);
        mma_bf16(acc[2 * j], a, b[0], b[1]);
        mma_bf16(acc[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
  for (int r = 0; r < 2; ++r) {
    float l = row_sum[r];
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    const float inv = (l == 0.f || l != l) ? 1.f : 1.f / l;
    const int row = row0 + r * 8;
    if (row < Sq) {
      for (int j = 0; j < kD / 8; ++j) {
        *reinterpret_cast<__nv_bfloat162*>(o + ((long long)bh * Sq + row) * kD + j * 8 + t4 * 2) =
            __floats2bfloat162_rn(acc[j][2 * r] * inv, acc[j][2 * r + 1] * inv);
      }
      if (t4 == 0) softmax_lse[(long long)bh * Sq + row] = l == 0.f ? -INFINITY : row_max[r] * softmax_scale + logf(l);
    }
  }
}
