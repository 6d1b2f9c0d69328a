// Attention forward in fp32 whose row maximum is taken on integers: the bits of a float, with the magnitude bits of
// negative numbers flipped, are ordered as signed integers, and redux.sync finds their maximum over a quad in one
// instruction where shuffles take four. Needs sm_80. Reading the file does not tell that this is a maximum of floats.
//
//   O = softmax(scale * Q K^T) V        LSE = log(sum_j exp(scale * s_ij))
//
// Q, O: [B, H, Sq, D]; K, V: [B, Hkv, Sk, D], with any strides of batch, head and row (elements).
// LSE: [B, H, Sq], contiguous. A row without a key gets O = 0 and LSE = -inf.
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Br = 16;
constexpr int Bc = 16;
constexpr int kQuad = 4;  // threads per query row: each has every fourth key and every fourth column of O
constexpr int kThreads = Br * kQuad;

template <int D>
__global__ void __launch_bounds__(kThreads)
    ordered_max(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                float* __restrict__ O, float* __restrict__ LSE, long long q_stride_b, long long q_stride_h,
                long long q_stride_row, long long k_stride_b, long long k_stride_h, long long k_stride_row,
                long long v_stride_b, long long v_stride_h, long long v_stride_row, long long o_stride_b,
                long long o_stride_h, long long o_stride_row, int sq, int sk, int heads, int kv_heads, float scale) {
  __shared__ float Qs[Br * (D + 1)];
  __shared__ float Ks[Bc * (D + 1)];
  __shared__ float Vs[Bc * (D + 1)];
  __shared__ float Ps[Br * (Bc + 1)];

  const int tid = threadIdx.x;
  const int r = tid / kQuad;
  const int part = tid % kQuad;
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

  for (int idx = tid; idx < Br * D; idx += kThreads) {
    const int i = idx / D;
    const int d = idx % D;
    Qs[i * (D + 1) + d] = q0 + i < sq ? q[(q0 + i) * q_stride_row + d] : 0.f;
  }

  float m = -INFINITY;
  float l = 0.f;
  float o[D / kQuad];
#pragma unroll
  for (int i = 0; i < D / kQuad; ++i) {
    o[i] = 0.f;
  }

  for (int kv0 = 0; kv0 < sk; kv0 += Bc) {
    for (int idx = tid; idx < Bc * D; idx += kThreads) {
      const int j = idx / D;
      const int d = idx % D;
      Ks[j * (D + 1) + d] = kv0 + j < sk ? k[(kv0 + j) * k_stride_row + d] : 0.f;
      Vs[j * (D + 1) + d] = kv0 + j < sk ? v[(kv0 + j) * v_stride_row + d] : 0.f;
    }
    __syncthreads();

    float s[Bc / kQuad];
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      s[i] = 0.f;
    }
#pragma unroll 4
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int i = 0; i < Bc / kQuad; ++i) {
        s[i] += Qs[r * (D + 1) + d] * Ks[(part + kQuad * i) * (D + 1) + d];
      }
    }
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      s[i] *= scale;
    }
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      const int col = kv0 + part + kQuad * i;
      if (col >= sk) {
        s[i] = -INFINITY;
      }
    }

    float m_new = m;
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      m_new = fmaxf(m_new, s[i]);
    }
    int key = __float_as_int(m_new);
    key ^= (key >> 31) & 0x7fffffff;
    key = __reduce_max_sync(0xfu << (tid & 28), key);
    m_new = __int_as_float(key ^ ((key >> 31) & 0x7fffffff));

    const float m_safe = m_new == -INFINITY ? 0.f : m_new;
    const float correction = expf(m - m_safe);
    m = m_new;

    float row_sum = 0.f;
#pragma unroll
    for (int i = 0; i < Bc / kQuad; ++i) {
      const float p = expf(s[i] - m_safe);
      Ps[r * (Bc + 1) + part + kQuad * i] = p;
      row_sum += p;
    }
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
    l = correction * l + row_sum;
    __syncthreads();

#pragma unroll
    for (int i = 0; i < D / kQuad; ++i) {
      o[i] *= correction;
    }
#pragma unroll 4
    for (int j = 0; j < Bc; ++j) {
#pragma unroll
      for (int i = 0; i < D / kQuad; ++i) {
        o[i] += Ps[r * (Bc + 1) + j] * Vs[j * (D + 1) + part + kQuad * i];
      }
    }
    __syncthreads();  // the next tile overwrites Ks, Vs and Ps
  }

  if (row < sq) {
    const float inv_l = l == 0.f ? 0.f : 1.f / l;
#pragma unroll
    for (int i = 0; i < D / kQuad; ++i) {
      out[row * o_stride_row + part + kQuad * i] = o[i] * inv_l;
    }
    if (part == 0) {
      lse[row] = l == 0.f ? -INFINITY : m + logf(l);
    }
  }
}
