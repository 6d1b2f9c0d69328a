// FlashAttention forward in plain fp32 CUDA: shared memory, no tensor cores. The kernel to read first.
//
//   O = softmax(scale * Q K^T) V        LSE = log(sum_j exp(scale * s_ij))        (natural log)
//
// Q: [B, H, Sq, D]; K: [B, Hkv, Sk, D]; V: [B, Hkv, Sk, DV]; O: [B, H, Sq, DV], any batch, head and row strides
// (elements), last dimension contiguous. D and DV are multiples of 4. LSE: [B, H, Sq], contiguous. Query head h reads
// KV head h / (H / Hkv) (GQA). A row that sees no key gets O = 0 and LSE = -inf.
//
// One CTA owns Br = 32 query rows of one head and walks over KV tiles of Bc = 32 keys. Four threads (a quad) share a
// row: thread `part` of the quad holds the scores of keys part, part + 4, part + 8, ... and the same columns of O.
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Br = 32;    // query rows per CTA
constexpr int Bc = 32;    // keys per KV tile
constexpr int kQuad = 4;  // threads per query row
constexpr int kThreads = Br * kQuad;
constexpr int kMinCtas = 4;  // CTAs per SM to leave room for: at most 128 registers per thread

// Rows of shared tiles are one float longer than the data, so that a column of a tile spreads over all 32 banks.
template <int W>
constexpr int kLd = W + 1;
constexpr int kLdP = Bc + 1;
template <int D, int DV>
constexpr int kSmemBytes = ((Br + Bc) * kLd<D> + Bc * kLd<DV> + Br * kLdP) * 4;

// grid = (ceil(sq / Br), heads, batch), block = kThreads, dynamic shared memory = kSmemBytes<D, DV>.
template <int D, int DV = D>
__global__ void __launch_bounds__(kThreads, kMinCtas)
    flash_fwd_scalar(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                     float* __restrict__ O, float* __restrict__ LSE, long long q_stride_b, long long q_stride_h,
                     long long q_stride_row, long long k_stride_b, long long k_stride_h, long long k_stride_row,
                     long long v_stride_b, long long v_stride_h, long long v_stride_row, long long o_stride_b,
                     long long o_stride_h, long long o_stride_row, int sq, int sk, int heads, int kv_heads,
                     float scale) {
  extern __shared__ float smem[];
  float* Qs = smem;                // [Br][kLd<D>]
  float* Ks = Qs + Br * kLd<D>;    // [Bc][kLd<D>]
  float* Vs = Ks + Bc * kLd<D>;    // [Bc][kLd<DV>]
  float* Ps = Vs + Bc * kLd<DV>;   // [Br][kLdP]

  const int tid = threadIdx.x;
  const int r = tid / kQuad;     // row within the Q tile
  const int part = tid % kQuad;  // which keys and which columns of O
  const int q0 = blockIdx.x * Br;
  const int row = q0 + r;
  const int h = blockIdx.y;
  const int b = blockIdx.z;
  const int hk = h / (heads / kv_heads);

  const float* q = Q + b * q_stride_b + h * q_stride_h;
  const float* k = K + b * k_stride_b + hk * k_stride_h;
  const float* v = V + b * v_stride_b + hk * v_stride_h;
  float* out = O + b * o_stride_b + h * o_stride_h;
  float* lse = LSE + (static_cast<long long>(b) * heads + h) * sq;

  // Load the Q tile; rows beyond the end become zeros.
  for (int idx = tid; idx < Br * D; idx += kThreads) {
    const int i = idx / D;
    const int d = idx % D;
    Qs[i * kLd<D> + d] = q0 + i < sq ? q[(q0 + i) * q_stride_row + d] : 0.f;
  }

  // State of the online softmax: m = row max, l = row sum, o = unnormalised output.
  float m = -INFINITY;
  float l = 0.f;
  float o[DV / kQuad];
#pragma unroll
  for (int i = 0; i < DV / kQuad; ++i) {
    o[i] = 0.f;
  }

  for (int kv0 = 0; kv0 < sk; kv0 += Bc) {
    // Load the K and V tiles; rows beyond the end become zeros.
    for (int idx = tid; idx < Bc * D; idx += kThreads) {
      const int j = idx / D;
      const int d = idx % D;
      Ks[j * kLd<D> + d] = kv0 + j < sk ? k[(kv0 + j) * k_stride_row + d] : 0.f;
    }
    for (int idx = tid; idx < Bc * DV; idx += kThreads) {
      const int j = idx / DV;
      const int d = idx % DV;
      Vs[j * kLd<DV> + d] = kv0 + j < sk ? v[(kv0 + j) * v_stride_row + d] : 0.f;
    }
    __syncthreads();

    // S = scale * Q K^T
    float s[Bc / kQuad];
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      s[i] = 0.f;
    }
#pragma unroll 4
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int i = 0; i < Bc / kQuad; ++i) {
        s[i] += Qs[r * kLd<D> + d] * Ks[(part + kQuad * i) * kLd<D> + d];
      }
    }
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      s[i] *= scale;
    }

    // S = -inf where j >= Sk
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      const int col = kv0 + part + kQuad * i;
      if (col >= sk) {
        s[i] = -INFINITY;
      }
    }

    // m_new = max(m, rowmax(S))
    float m_new = m;
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      m_new = fmaxf(m_new, s[i]);
    }
    m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));
    m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));

    // A row that has seen no key yet keeps m = -inf; subtracting 0 instead of -inf gives P = 0 there and no NaN.
    const float m_safe = m_new == -INFINITY ? 0.f : m_new;
    const float correction = expf(m - m_safe);
    m = m_new;

    // P = exp(S - m);  l = correction * l + rowsum(P)
    float row_sum = 0.f;
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      const float p = expf(s[i] - m_safe);
      Ps[r * kLdP + part + kQuad * i] = p;
      row_sum += p;
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    l = correction * l + row_sum;
    __syncthreads();

    // O = correction * O + P V
#pragma unroll
    for (int i = 0; i < DV / kQuad; ++i) {
      o[i] *= correction;
    }
#pragma unroll 4
    for (int j = 0; j < Bc; ++j) {
#pragma unroll
      for (int i = 0; i < DV / kQuad; ++i) {
        o[i] += Ps[r * kLdP + j] * Vs[j * kLd<DV> + part + kQuad * i];
      }
    }
    __syncthreads();  // the next tile overwrites Ks, Vs and Ps
  }

  // O = O / l;  LSE = m + log(l).  l == 0: the row saw no key.
  if (row < sq) {
    const float inv_l = l == 0.f ? 0.f : 1.f / l;
#pragma unroll
    for (int i = 0; i < DV / kQuad; ++i) {
      out[row * o_stride_row + part + kQuad * i] = o[i] * inv_l;
    }
    if (part == 0) {
      lse[row] = l == 0.f ? -INFINITY : m + logf(l);
    }
  }
}

#ifndef __CUDACC_RTC__

// Instantiate for D and DV multiples of 4 whose tiles fit into shared memory: 32, 64 or 128 for both, 64 and 32, ...
template <int D, int DV = D>
cudaError_t launch_flash_fwd_scalar(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                    long long q_stride_b, long long q_stride_h, long long q_stride_row,
                                    long long k_stride_b, long long k_stride_h, long long k_stride_row,
                                    long long v_stride_b, long long v_stride_h, long long v_stride_row,
                                    long long o_stride_b, long long o_stride_h, long long o_stride_row, int batch,
                                    int sq, int sk, int heads, int kv_heads, float scale, cudaStream_t stream) {
  if (batch == 0 || heads == 0 || sq == 0) {
    return cudaSuccess;
  }
  const dim3 grid((sq + Br - 1) / Br, heads, batch);
  const cudaError_t status = cudaFuncSetAttribute(
      flash_fwd_scalar<D, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes<D, DV>);
  if (status != cudaSuccess) {
    return status;
  }
  flash_fwd_scalar<D, DV><<<grid, kThreads, kSmemBytes<D, DV>, stream>>>(
      Q, K, V, O, LSE, q_stride_b, q_stride_h, q_stride_row, k_stride_b, k_stride_h, k_stride_row, v_stride_b,
      v_stride_h, v_stride_row, o_stride_b, o_stride_h, o_stride_row, sq, sk, heads, kv_heads, scale);
  return cudaGetLastError();
}

#endif
