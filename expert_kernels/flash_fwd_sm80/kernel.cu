// FlashAttention-2 forward for sm_80 and later: mma.sync m16n8k16, ldmatrix, a two-stage cp.async ring for K and V.
//
//   O = softmax(scale * Q K^T + mask) V        LSE = log(sum_j exp(scale * s_ij))        (natural log, fp32)
//
// Q: [B, H, Sq, D]; K: [B, Hkv, Sk, D]; V: [B, Hkv, Sk, DV]; O: [B, H, Sq, DV], any batch, head and row strides
// (elements), last dimension contiguous, every row 16-byte aligned. D and DV are multiples of 16. LSE: [B, H, Sq], contiguous. Query head h reads KV head h / (H / Hkv) (GQA).
// causal aligns to the bottom right: query i sees keys j <= i + Sk - Sq. A row that sees no key gets O = 0, LSE = -inf.
//
// One CTA of four warps owns Br = 64 query rows of one head and walks the KV tiles of Bc = 64 keys; a warp owns 16 rows.
// In the m16n8 accumulator, thread (lane) holds of each 8-column block nb the elements e = 0..3 at
//   row = lane / 4 + 8 * (e / 2)        col = 8 * nb + 2 * (lane % 4) + (e & 1)
// so the thread owns two rows (r = e / 2), and the four threads of a quad share them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Br = 64;        // query rows per CTA
constexpr int Bc = 64;        // keys per KV tile
constexpr int kWarps = 4;     // Br / 16 rows each
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 2;    // K/V ring: tile t lives in stage t & 1
constexpr int kMinCtas = 2;   // per SM: one multiplies while the other exponentiates; leaves a thread 255 registers
constexpr float kLn2 = 0.6931471805599453f;

// Q, then kStages of K, then kStages of V; the element is two bytes wide. W: width of a row, D or DV.
template <int W>
constexpr int kTileBytes = Bc * W * 2;
template <int D, int DV>
constexpr int kSmemBytes = (1 + kStages) * kTileBytes<D> + kStages * kTileBytes<DV>;

// ---------------------------------------------------------------------------------------------------------------- PTX

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Copies 16 bytes, or writes 16 zero bytes without touching src when `bytes` is 0.
__device__ __forceinline__ void cp_async_16(unsigned dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

// c += A B for one 16x8 block with k = 16; A is row-major, B is column-major.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                                            unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two floats to T and packs them, lo in the low half.
template <typename T>
__device__ __forceinline__ unsigned pack2(float lo, float hi);

template <>
__device__ __forceinline__ unsigned pack2<__half>(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

template <>
__device__ __forceinline__ unsigned pack2<__nv_bfloat16>(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// -------------------------------------------------------------------------------------------------------------- tiles

// Byte offset of 16-byte chunk `chunk` of row `row` in a shared tile of W columns. The XOR spreads the eight rows that
// one ldmatrix phase reads over all 32 banks: where rows are a multiple of 128 bytes, all eight start at one bank and
// each needs a swap of its own; where they are a multiple of 64 (32), every two (four) rows share one.
template <int W>
__device__ __forceinline__ unsigned swizzle(int row, int chunk) {
  constexpr int kSwaps = W % 64 == 0 ? 8 : W % 32 == 0 ? 4 : 2;
  return row * (W * 2) + ((chunk ^ (row / (8 / kSwaps) & (kSwaps - 1))) * 16);
}

// Starts the copy of rows [row0, row0 + 64) of `src` into a shared tile; rows at or beyond `rows` become zeros. A group
// of threads shares a row: a thread has few rows, so few addresses to work out (one beyond the end is never touched).
template <typename T, int W>
__device__ __forceinline__ void load_tile(unsigned dst, const T* src, long long stride_row, int row0, int rows) {
  constexpr int kGroup = W % 64 == 0 ? 8 : W % 32 == 0 ? 4 : 2;
  constexpr int kChunks = W / 8;  // 16-byte chunks per row
  const int chunk = threadIdx.x % kGroup;
#pragma unroll
  for (int i = 0; i < Bc * kGroup / kThreads; ++i) {
    const int r = threadIdx.x / kGroup + i * (kThreads / kGroup);
    const int row = row0 + r;
    const bool in = row < rows;
    const T* from = src + row * stride_row + chunk * 8;
#pragma unroll
    for (int j = 0; j < kChunks; j += kGroup) {
      cp_async_16(dst + swizzle<W>(r, chunk + j), from + j * 8, in ? 16 : 0);
    }
  }
}

// Starts the copies of KV tile `tile` into its stage of the ring.
template <typename T, int D, int DV>
__device__ __forceinline__ void load_kv_tile(unsigned smem_k, unsigned smem_v, const T* k, const T* v,
                                             long long k_stride_row, long long v_stride_row, int tile, int sk) {
  const int stage = tile & 1;
  load_tile<T, D>(smem_k + stage * kTileBytes<D>, k, k_stride_row, tile * Bc, sk);
  load_tile<T, DV>(smem_v + stage * kTileBytes<DV>, v, v_stride_row, tile * Bc, sk);
}

// ------------------------------------------------------------------------------------------------------------- kernel

// grid = (ceil(sq / Br), heads, batch), block = kThreads, dynamic shared memory = kSmemBytes<D, DV>.
// scale_log2 = scale * log2(e) > 0: exp(scale * s) = exp2(scale_log2 * s), one FMA and one ex2 per score.
template <typename T, int D, int DV = D>
__global__ void __launch_bounds__(kThreads, kMinCtas)
    flash_fwd_sm80(const T* __restrict__ Q, const T* __restrict__ K, const T* __restrict__ V, T* __restrict__ O,
                   float* __restrict__ LSE, long long q_stride_b, long long q_stride_h, long long q_stride_row,
                   long long k_stride_b, long long k_stride_h, long long k_stride_row, long long v_stride_b,
                   long long v_stride_h, long long v_stride_row, long long o_stride_b, long long o_stride_h,
                   long long o_stride_row, int sq, int sk, int heads, int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(128) unsigned char smem[];

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int q0 = blockIdx.x * Br;
  const int h = blockIdx.y;
  const int b = blockIdx.z;
  const int hk = h / (heads / kv_heads);

  const T* q = Q + b * q_stride_b + h * q_stride_h;
  const T* k = K + b * k_stride_b + hk * k_stride_h;
  const T* v = V + b * v_stride_b + hk * v_stride_h;
  T* out = O + b * o_stride_b + h * o_stride_h;
  float* lse = LSE + (static_cast<long long>(b) * heads + h) * sq;

  const unsigned smem_q = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  const unsigned smem_k = smem_q + kTileBytes<D>;
  const unsigned smem_v = smem_k + kStages * kTileBytes<D>;

  // KV range: keys [0, kv_end). The last row of this Q tile sees keys up to q0 + Br - 1 + sk - sq.
  int kv_end = sk;
  if (causal) {
    kv_end = min(sk, q0 + Br + sk - sq);
  }
  const int n_tiles = (kv_end + Bc - 1) / Bc;

  // Prologue: Q and the first KV tile in flight, as two groups; Q waits for neither K nor V.
  load_tile<T, D>(smem_q, q, q_stride_row, q0, sq);
  cp_async_commit();
  load_kv_tile<T, D, DV>(smem_k, smem_v, k, v, k_stride_row, v_stride_row, 0, sk);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();

  // Q fragments stay in registers: qf[kk] is the A operand of rows [16 * warp, +16), columns [16 * kk, +16).
  unsigned qf[D / 16][4];
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
    ldmatrix_x4(qf[kk], smem_q + swizzle<D>(warp * 16 + lane % 16, kk * 2 + lane / 16));
  }

  // State of the online softmax, per row r of this thread: m = max of raw scores, l = this thread's share of the row
  // sum (the quad is summed once, at the end), o = unnormalised output.
  float m[2];
  float l[2];
  float o[DV / 8][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = -INFINITY;
    l[r] = 0.f;
  }
#pragma unroll
  for (int db = 0; db < DV / 8; ++db) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      o[db][e] = 0.f;
    }
  }

  for (int tile = 0; tile < n_tiles; ++tile) {
    // Tile `tile` has landed, and every warp is done with tile - 1, whose stage the next copy overwrites.
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < n_tiles) {
      load_kv_tile<T, D, DV>(smem_k, smem_v, k, v, k_stride_row, v_stride_row, tile + 1, sk);
    }
    cp_async_commit();

    const int stage = tile & 1;
    const int kv0 = tile * Bc;
    const unsigned k_tile = smem_k + stage * kTileBytes<D>;
    const unsigned v_tile = smem_v + stage * kTileBytes<DV>;

    // S = Q K^T
    float s[Bc / 8][4];
#pragma unroll
    for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[nb][e] = 0.f;
      }
    }
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
#pragma unroll
      for (int np = 0; np < Bc / 16; ++np) {  // 16 keys per ldmatrix
        unsigned kf[4];
        ldmatrix_x4(kf, k_tile + swizzle<D>(np * 16 + lane % 8 + 8 * (lane / 16), kk * 2 + (lane / 8) % 2));
        mma_m16n8k16<T>(s[2 * np], qf[kk], kf[0], kf[1]);
        mma_m16n8k16<T>(s[2 * np + 1], qf[kk], kf[2], kf[3]);
      }
    }

    // S = -inf where j >= Sk or, when causal, j > i + Sk - Sq; only tiles that cross either edge pay for it.
    if (kv0 + Bc > sk || (causal && kv0 + Bc - 1 > q0 + sk - sq)) {
#pragma unroll
      for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = q0 + warp * 16 + lane / 4 + 8 * (e / 2);
          const int col = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);
          if (col >= sk || (causal && col > row + sk - sq)) {
            s[nb][e] = -INFINITY;
          }
        }
      }
    }

    // m_new = max(m, rowmax(S))
    float m_new[2] = {m[0], m[1]};
#pragma unroll
    for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        m_new[e / 2] = fmaxf(m_new[e / 2], s[nb][e]);
      }
    }

    // correction = exp(scale * (m - m_new));  m = m_new;  l = correction * l
    // A row that has seen no key yet keeps m = -inf; subtracting 0 instead of -inf gives P = 0 there and no NaN.
    float m_scaled[2];
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 1));
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 2));
      m_scaled[r] = m_new[r] == -INFINITY ? 0.f : m_new[r] * scale_log2;
      correction[r] = exp2_approx(m[r] * scale_log2 - m_scaled[r]);
      m[r] = m_new[r];
      l[r] *= correction[r];
    }

    // P = exp(scale * (S - m));  l = l + rowsum(P)
#pragma unroll
    for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[nb][e] = exp2_approx(s[nb][e] * scale_log2 - m_scaled[e / 2]);
        l[e / 2] += s[nb][e];
      }
    }

    // O = correction * O
#pragma unroll
    for (int db = 0; db < DV / 8; ++db) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        o[db][e] *= correction[e / 2];
      }
    }

    // O = O + P V: two accumulator blocks of P, rounded to T, are one A operand of 16 keys.
#pragma unroll
    for (int kk = 0; kk < Bc / 16; ++kk) {
      const unsigned pf[4] = {
          pack2<T>(s[2 * kk][0], s[2 * kk][1]),
          pack2<T>(s[2 * kk][2], s[2 * kk][3]),
          pack2<T>(s[2 * kk + 1][0], s[2 * kk + 1][1]),
          pack2<T>(s[2 * kk + 1][2], s[2 * kk + 1][3]),
      };
#pragma unroll
      for (int np = 0; np < DV / 16; ++np) {  // 16 columns of V per ldmatrix
        unsigned vf[4];
        ldmatrix_x4_trans(vf, v_tile + swizzle<DV>(kk * 16 + lane % 16, np * 2 + lane / 16));
        mma_m16n8k16<T>(o[2 * np], pf, vf[0], vf[1]);
        mma_m16n8k16<T>(o[2 * np + 1], pf, vf[2], vf[3]);
      }
    }
  }

  // O = O / l;  LSE = scale * m + log(l).  l == 0: the row saw no key.
  float inv_l[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
    l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
    inv_l[r] = l[r] == 0.f ? 0.f : 1.f / l[r];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = q0 + warp * 16 + lane / 4 + 8 * r;
    if (row < sq) {
#pragma unroll
      for (int db = 0; db < DV / 8; ++db) {
        const int d = db * 8 + 2 * (lane % 4);
        *reinterpret_cast<unsigned*>(out + row * o_stride_row + d) =
            pack2<T>(o[db][2 * r] * inv_l[r], o[db][2 * r + 1] * inv_l[r]);
      }
      if (lane % 4 == 0) {
        lse[row] = l[r] == 0.f ? -INFINITY : m[r] * scale_log2 * kLn2 + logf(l[r]);
      }
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- launcher
#ifndef __CUDACC_RTC__

// Instantiate for T = __half or __nv_bfloat16, and D and DV multiples of 16 whose tiles fit into shared memory: 64 or
// 128 for both, 192 and 128, ...
template <typename T, int D, int DV = D>
cudaError_t launch_flash_fwd_sm80(const T* Q, const T* K, const T* V, T* O, float* LSE, long long q_stride_b,
                                  long long q_stride_h, long long q_stride_row, long long k_stride_b,
                                  long long k_stride_h, long long k_stride_row, long long v_stride_b,
                                  long long v_stride_h, long long v_stride_row, long long o_stride_b,
                                  long long o_stride_h, long long o_stride_row, int batch, int sq, int sk, int heads,
                                  int kv_heads, float scale, bool causal, cudaStream_t stream) {
  if (batch == 0 || heads == 0 || sq == 0) {
    return cudaSuccess;
  }
  constexpr float kLog2e = 1.4426950408889634f;
  const float scale_log2 = scale * kLog2e;
  const dim3 grid((sq + Br - 1) / Br, heads, batch);
  const cudaError_t status = cudaFuncSetAttribute(
      flash_fwd_sm80<T, D, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes<D, DV>);
  if (status != cudaSuccess) {
    return status;
  }
  flash_fwd_sm80<T, D, DV><<<grid, kThreads, kSmemBytes<D, DV>, stream>>>(
      Q, K, V, O, LSE, q_stride_b, q_stride_h, q_stride_row, k_stride_b, k_stride_h, k_stride_row, v_stride_b,
      v_stride_h, v_stride_row, o_stride_b, o_stride_h, o_stride_row, sq, sk, heads, kv_heads, scale_log2,
      static_cast<int>(causal));
  return cudaGetLastError();
}

#endif
