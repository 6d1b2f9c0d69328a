// FlashAttention forward for Hopper (sm_90a) in its plain form: TMA, mbarrier rings, wgmma, a producer warpgroup and
// two consumers. This is the Hopper kernel to adapt; flash_fwd_sm90 overlaps its products and has a leaner softmax.
//
//   O = softmax(scale * Q K^T + mask) V        LSE = log(sum_j exp(scale * s_ij))        (natural log, fp32)
//
// Q, O: [B, H, Sq, D]; K, V: [B, Hkv, Sk, D], any batch, head and row strides (elements), last dimension contiguous,
// every row 16-byte aligned. LSE: [B, H, Sq], contiguous. Query head h reads KV head h / (H / Hkv) (GQA).
// causal aligns to the bottom right: query i sees keys j <= i + Sk - Sq. A row that sees no key gets O = 0, LSE = -inf.
//
// One CTA owns Br = 128 query rows of one head and walks the KV tiles of Bc = 128 keys. Warpgroup 0 is the producer:
// one of its threads starts every copy. Warpgroups 1 and 2 are consumers of 64 rows each, independent of each other, so
// that one takes exponentials while the other multiplies.
// In the m64nN accumulator a thread holds of each 8-column block nb the elements e = 0..3 at
//   row = 16 * warp + lane / 4 + 8 * (e / 2)        col = 8 * nb + 2 * (lane % 4) + (e & 1)
// so it owns two rows (r = e / 2), and the four threads of a quad share them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef __CUDACC_RTC__
#include <cuda.h>
#include <cuda_runtime.h>
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Br = 128;        // query rows per CTA
constexpr int Bc = 128;        // keys per KV tile
constexpr int kThreads = 384;  // producer, two consumers
constexpr int kConsumerWarps = 8;
constexpr int kStages = 2;
constexpr int kRowBytes = 128;  // a row of a box: 64 elements, the span of the 128-byte swizzle
constexpr float kLn2 = 0.6931471805599453f;

// Q, then kStages of K, then kStages of V, then the barriers. A tile is stored as boxes of 64 columns in a row.
template <int D>
constexpr int kTileBytes = Bc * D * 2;
template <int D>
constexpr int kSmemBytes = (1 + 2 * kStages) * kTileBytes<D> + 8 * (1 + 4 * kStages);

// What cuTensorMapEncodeTiled fills in: a CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// ---------------------------------------------------------------------------------------------------------------- PTX

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void barrier_init(unsigned bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and tells the barrier to wait for `bytes` of copies besides.
__device__ __forceinline__ void barrier_expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Waits for the end of the phase of that parity.
__device__ __forceinline__ void barrier_wait(unsigned bar, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;\n"
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// Copies one box of 64 columns at (column, row, head, batch) to shared memory; what lies outside becomes zeros.
__device__ __forceinline__ void tma_load(unsigned dst, const TensorMap* map, unsigned bar, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits for all products, and keeps reads of the accumulator `c` behind that.
template <int N>
__device__ __forceinline__ void wgmma_finish(float (&c)[N][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int nb = 0; nb < N; ++nb) {
    asm volatile("" : "+f"(c[nb][0]), "+f"(c[nb][1]), "+f"(c[nb][2]), "+f"(c[nb][3])::"memory");
  }
}

// Shared-memory operand with the 128-byte swizzle: eight rows are 1024 bytes; `next` bytes to the next 64 columns
// where the product's N runs along the columns.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned next) {
  return static_cast<unsigned long long>((address & 0x3ffff) >> 4) | static_cast<unsigned long long>(next >> 4) << 16 |
         static_cast<unsigned long long>(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ unsigned long long advance(unsigned long long operand, int bytes) {
  return operand + (bytes >> 4);
}

// The accumulators of wgmma as operands of asm: 32 floats (m64n64) or 64 (m64n128), c[nb][e].
#define ACC4(c, nb) "+f"(c[nb][0]), "+f"(c[nb][1]), "+f"(c[nb][2]), "+f"(c[nb][3])
#define ACC16(c, nb) ACC4(c, nb), ACC4(c, nb + 1), ACC4(c, nb + 2), ACC4(c, nb + 3)
#define ACC32(c) ACC16(c, 0), ACC16(c, 4)
#define ACC64(c) ACC16(c, 0), ACC16(c, 4), ACC16(c, 8), ACC16(c, 12)
#define NAMES_64 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31"
#define NAMES_128 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
  "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
  "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

// c = A B^T (+ c where `keep`), k = 16: A is 64 rows of Q, B is 128 rows of K, both in shared memory.
template <typename T>
__device__ __forceinline__ void wgmma_qk(float (&c)[16][4], unsigned long long a, unsigned long long b, int keep);

template <>
__device__ __forceinline__ void wgmma_qk<__half>(float (&c)[16][4], unsigned long long a, unsigned long long b,
                                                 int keep) {
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_128 "}, %64, %65, keep, 1, 1, 0, 0;\n}"
               : ACC64(c)
               : "l"(a), "l"(b), "r"(keep));
}

template <>
__device__ __forceinline__ void wgmma_qk<__nv_bfloat16>(float (&c)[16][4], unsigned long long a, unsigned long long b,
                                                        int keep) {
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_128 "}, %64, %65, keep, 1, 1, 0, 0;\n}"
               : ACC64(c)
               : "l"(a), "l"(b), "r"(keep));
}

// c += A B, k = 16: A in registers, B is 16 rows of V in shared memory.
template <typename T>
__device__ __forceinline__ void wgmma_pv_64(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b);
template <typename T>
__device__ __forceinline__ void wgmma_pv_128(float (&c)[16][4], const unsigned (&a)[4], unsigned long long b);

template <>
__device__ __forceinline__ void wgmma_pv_64<__half>(float (&c)[8][4], const unsigned (&a)[4],
                                                    unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_64 "}, "
               "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : ACC32(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_pv_64<__nv_bfloat16>(float (&c)[8][4], const unsigned (&a)[4],
                                                           unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_64 "}, "
               "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : ACC32(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_pv_128<__half>(float (&c)[16][4], const unsigned (&a)[4],
                                                     unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_128 "}, "
               "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : ACC64(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_pv_128<__nv_bfloat16>(float (&c)[16][4], const unsigned (&a)[4],
                                                            unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_128 "}, "
               "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : ACC64(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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

// Starts the copy of 128 rows from `row` on, D columns, as boxes of 64; `bar` is told how much comes.
template <int D>
__device__ __forceinline__ void load_tile(unsigned dst, const TensorMap* map, unsigned bar, int row, int head,
                                          int batch) {
  barrier_expect(bar, kTileBytes<D>);
#pragma unroll
  for (int x = 0; x < D / 64; ++x) {
    tma_load(dst + x * Bc * kRowBytes, map, bar, x * 64, row, head, batch);
  }
}

// ------------------------------------------------------------------------------------------------------------- kernel

// grid = (ceil(sq / Br), heads, batch), block = kThreads, dynamic shared memory = kSmemBytes<D>. The maps are of Q, K
// and V in boxes of 64 x 128, dimensions (column, row, head, batch), 128-byte swizzle. scale_log2 = scale * log2(e),
// positive.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_sm90_plain(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                         const __grid_constant__ TensorMap v_map, T* __restrict__ O, float* __restrict__ LSE,
                         long long o_stride_b, long long o_stride_h, long long o_stride_row, int sq, int sk, int heads,
                         int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(1024) unsigned char smem[];

  const int q_tile = gridDim.x - 1 - blockIdx.x;  // the late rows, which have the most keys when causal, first
  const int q0 = q_tile * Br;
  const int h = blockIdx.y;
  const int b = blockIdx.z;
  const int hk = h / (heads / kv_heads);

  const unsigned smem_q = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  const unsigned smem_k = smem_q + kTileBytes<D>;
  const unsigned smem_v = smem_k + kStages * kTileBytes<D>;
  const unsigned q_full = smem_v + kStages * kTileBytes<D>;
  const unsigned k_full = q_full + 8;  // one barrier per stage, as the three that follow
  const unsigned v_full = k_full + 8 * kStages;
  const unsigned k_empty = v_full + 8 * kStages;
  const unsigned v_empty = k_empty + 8 * kStages;

  // KV range: keys [0, kv_end). The last row of this Q tile sees keys up to q0 + Br - 1 + sk - sq.
  int kv_end = sk;
  if (causal) {
    kv_end = min(sk, q0 + Br + sk - sq);
  }
  const int n_tiles = (kv_end + Bc - 1) / Bc;

  // Setup. A full barrier waits for the producer's arrival and the bytes it announces, an empty one for an arrival of
  // every consumer warp.
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(k_full + 8 * stage, 1);
      barrier_init(v_full + 8 * stage, 1);
      barrier_init(k_empty + 8 * stage, kConsumerWarps);
      barrier_init(v_empty + 8 * stage, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();

  // Producer: keeps the rings of K and V full. 168 registers a thread at the start: its 24 leave 240 for the consumers.
  if (threadIdx.x < 128) {
    release_registers<24>();
    if (threadIdx.x == 0) {
      load_tile<D>(smem_q, &q_map, q_full, q0, h, b);
      int stage = 0;
      int parity = 1;  // an empty barrier passes at once the first time round
#pragma unroll 1
      for (int tile = 0; tile < n_tiles; ++tile) {
        barrier_wait(k_empty + 8 * stage, parity);
        load_tile<D>(smem_k + stage * kTileBytes<D>, &k_map, k_full + 8 * stage, tile * Bc, hk, b);
        barrier_wait(v_empty + 8 * stage, parity);
        load_tile<D>(smem_v + stage * kTileBytes<D>, &v_map, v_full + 8 * stage, tile * Bc, hk, b);
        stage = stage + 1 == kStages ? 0 : stage + 1;
        parity ^= stage == 0;
      }
    }
    return;
  }

  // Consumers.
  claim_registers<240>();
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / 128 - 1;  // 64 rows each
  const int row0 = q0 + group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;  // this thread's rows: row0, row0 + 8

  T* out = O + b * o_stride_b + h * o_stride_h;
  float* lse = LSE + (static_cast<long long>(b) * heads + h) * sq;

  // State of the online softmax, per row r of this thread: m = max of raw scores, l = this thread's share of the row
  // sum (the quad is summed once, at the end), o = unnormalised output.
  float m[2];
  float l[2];
  float o[D / 8][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = -INFINITY;
    l[r] = 0.f;
  }
#pragma unroll
  for (int db = 0; db < D / 8; ++db) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      o[db][e] = 0.f;
    }
  }

  barrier_wait(q_full, 0);
  int stage = 0;
  int parity = 0;
#pragma unroll 1
  for (int tile = 0; tile < n_tiles; ++tile) {
    const int kv0 = tile * Bc;

    // S = Q K^T
    float s[Bc / 8][4];
    barrier_wait(k_full + 8 * stage, parity);
    const unsigned long long q_operand = descriptor(smem_q + group * 64 * kRowBytes, 16);
    const unsigned long long k_operand = descriptor(smem_k + stage * kTileBytes<D>, 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {  // four steps of 16 columns per box
      const int step = kk / 4 * Bc * kRowBytes + kk % 4 * 32;
      wgmma_qk<T>(s, advance(q_operand, step), advance(k_operand, step), kk > 0);
    }
    wgmma_commit();
    wgmma_finish(s);
    if (lane == 0) {
      barrier_arrive(k_empty + 8 * stage);
    }

    // S = -inf where j >= Sk or, when causal, j > i + Sk - Sq; only tiles that cross either edge pay for it.
    if (kv0 + Bc > sk || (causal && kv0 + Bc - 1 > q0 + sk - sq)) {
#pragma unroll
      for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = row0 + 8 * (e / 2);
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
    for (int db = 0; db < D / 8; ++db) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        o[db][e] *= correction[e / 2];
      }
    }

    // P, rounded to T: two accumulator blocks are one A operand of 16 keys. Packed before the product starts: a
    // register that it reads must not be written while it runs.
    unsigned p[Bc / 16][4];
#pragma unroll
    for (int kk = 0; kk < Bc / 16; ++kk) {
      p[kk][0] = pack2<T>(s[2 * kk][0], s[2 * kk][1]);
      p[kk][1] = pack2<T>(s[2 * kk][2], s[2 * kk][3]);
      p[kk][2] = pack2<T>(s[2 * kk + 1][0], s[2 * kk + 1][1]);
      p[kk][3] = pack2<T>(s[2 * kk + 1][2], s[2 * kk + 1][3]);
    }

    // O = O + P V
    barrier_wait(v_full + 8 * stage, parity);
    const unsigned long long v_operand = descriptor(smem_v + stage * kTileBytes<D>, D > 64 ? Bc * kRowBytes : 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < Bc / 16; ++kk) {  // 16 keys are 16 rows of V
      if constexpr (D == 64) {
        wgmma_pv_64<T>(o, p[kk], advance(v_operand, kk * 16 * kRowBytes));
      } else {
        wgmma_pv_128<T>(o, p[kk], advance(v_operand, kk * 16 * kRowBytes));
      }
    }
    wgmma_commit();
    wgmma_finish(o);
    if (lane == 0) {
      barrier_arrive(v_empty + 8 * stage);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0;
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
    const int row = row0 + 8 * r;
    if (row < sq) {
#pragma unroll
      for (int db = 0; db < D / 8; ++db) {
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

// cuTensorMapEncodeTiled of the driver, found at run time so that nothing has to be linked.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                              cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  const bool ok = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
}

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<__half> = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

// The map of a [batch, heads, rows, columns] tensor with strides in elements, for boxes of 64 columns and `box` rows.
// A dimension of one index is never moved along: it gets the stride of a tensor without gaps, which the driver accepts.
template <typename T>
cudaError_t make_tensor_map(TensorMap* map, const T* data, int columns, int rows, int heads, int batch,
                            long long stride_row, long long stride_h, long long stride_b, int box) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap), "a TensorMap holds a CUtensorMap");
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) {
    return cudaErrorNotSupported;
  }
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows > 0 ? rows : 1),
                                 static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const long long given[3] = {stride_row, stride_h, stride_b};
  cuuint64_t strides[3];  // in bytes
  cuuint64_t dense = extents[0] * sizeof(T);
  for (int axis = 0; axis < 3; ++axis) {
    strides[axis] = extents[axis + 1] > 1 ? static_cast<cuuint64_t>(given[axis]) * sizeof(T) : dense;
    dense = strides[axis] * extents[axis + 1];
  }
  const cuuint32_t boxes[4] = {64, static_cast<cuuint32_t>(box), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode(reinterpret_cast<CUtensorMap*>(map), kMapType<T>, 4, const_cast<T*>(data), extents,
                                 strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Instantiate for T = __half or __nv_bfloat16 and D = 64 or 128.
template <typename T, int D>
cudaError_t launch_flash_fwd_sm90_plain(const T* Q, const T* K, const T* V, T* O, float* LSE, long long q_stride_b,
                                        long long q_stride_h, long long q_stride_row, long long k_stride_b,
                                        long long k_stride_h, long long k_stride_row, long long v_stride_b,
                                        long long v_stride_h, long long v_stride_row, long long o_stride_b,
                                        long long o_stride_h, long long o_stride_row, int batch, int sq, int sk,
                                        int heads, int kv_heads, float scale, bool causal, cudaStream_t stream) {
  if (batch == 0 || heads == 0 || sq == 0) {
    return cudaSuccess;
  }
  constexpr float kLog2e = 1.4426950408889634f;
  const float scale_log2 = scale * kLog2e;
  TensorMap q_map, k_map, v_map;
  // Without keys nothing is read through the maps of K and V, but they must have an address.
  const T* k = sk > 0 ? K : Q;
  const T* v = sk > 0 ? V : Q;
  cudaError_t status = make_tensor_map(&q_map, Q, D, sq, heads, batch, q_stride_row, q_stride_h, q_stride_b, Br);
  if (status == cudaSuccess) {
    status = make_tensor_map(&k_map, k, D, sk, kv_heads, batch, k_stride_row, k_stride_h, k_stride_b, Bc);
  }
  if (status == cudaSuccess) {
    status = make_tensor_map(&v_map, v, D, sk, kv_heads, batch, v_stride_row, v_stride_h, v_stride_b, Bc);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(flash_fwd_sm90_plain<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSmemBytes<D>);
  }
  if (status != cudaSuccess) {
    return status;
  }
  const dim3 grid((sq + Br - 1) / Br, heads, batch);
  flash_fwd_sm90_plain<T, D><<<grid, kThreads, kSmemBytes<D>, stream>>>(
      q_map, k_map, v_map, O, LSE, o_stride_b, o_stride_h, o_stride_row, sq, sk, heads, kv_heads, scale_log2,
      static_cast<int>(causal));
  return cudaGetLastError();
}

#endif
