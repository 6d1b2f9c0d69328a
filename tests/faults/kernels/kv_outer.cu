// The order of FlashAttention-1: one CTA per head walks the KV tiles outside and the query tiles inside; row maxima, row
// sums and the normalised output live in global memory between two KV tiles.
#include <cuda_runtime.h>
#define BLOCK 32
#define DIM 32

__global__ void fa1_forward(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                            float* O, float* row_max, float* row_sum, int len_q, int len_k, int heads, float tau) {
  __shared__ float Kt[BLOCK][DIM + 1];
  __shared__ float Vt[BLOCK][DIM + 1];
  __shared__ float Qt[BLOCK][DIM + 1];
  const int t = threadIdx.x;
  const size_t bh = (size_t)blockIdx.y * heads + blockIdx.x;
  const float* q = Q + bh * len_q * DIM;
  const float* k = K + bh * len_k * DIM;
  const float* v = V + bh * len_k * DIM;
  float* o = O + bh * len_q * DIM;
  float* m = row_max + bh * len_q;
  float* l = row_sum + bh * len_q;
  float s[BLOCK];

  for (int j0 = 0; j0 < len_k; j0 += BLOCK) {
    for (int e = t; e < BLOCK * DIM; e += BLOCK) {
      const int y = e / DIM, x = e % DIM;
      Kt[y][x] = j0 + y < len_k ? k[(size_t)(j0 + y) * DIM + x] : 0.f;
      Vt[y][x] = j0 + y < len_k ? v[(size_t)(j0 + y) * DIM + x] : 0.f;
    }
    for (int i0 = 0; i0 < len_q; i0 += BLOCK) {
      for (int e = t; e < BLOCK * DIM; e += BLOCK) {
        const int y = e / DIM, x = e % DIM;
        Qt[y][x] = i0 + y < len_q ? q[(size_t)(i0 + y) * DIM + x] : 0.f;
      }
      __syncthreads();
      const int i = i0 + t;
      if (i < len_q) {
        float m_tile = -INFINITY, l_tile = 0.f;
        for (int y = 0; y < BLOCK; ++y) {
          float dot = 0.f;
          for (int x = 0; x < DIM; ++x) dot += Qt[t][x] * Kt[y][x];
          dot *= tau;
          if (j0 + y >= len_k) dot = -INFINITY;
          s[y] = dot;
          m_tile = fmaxf(m_tile, dot);
        }
        for (int y = 0; y < BLOCK; ++y) {
          s[y] = __expf(s[y] - m_tile);
          l_tile += s[y];
        }
        const float m_old = j0 == 0 ? -INFINITY : m[i];
        const float l_old = j0 == 0 ? 0.f : l[i];
        const float m_new = fmaxf(m_old, m_tile);
        const float keep = __expf(m_old - m_new), take = __expf(m_tile - m_new);
        const float l_new = keep * l_old + take * l_tile;
        for (int x = 0; x < DIM; ++x) {
          float pv = 0.f;
          for (int y = 0; y < BLOCK; ++y) pv += s[y] * Vt[y][x];
          const float before = j0 == 0 ? 0.f : o[(size_t)i * DIM + x];
          o[(size_t)i * DIM + x] = (l_old * keep * before + take * pv) / l_new;
        }
        m[i] = m_new;
        l[i] = l_new;
      }
      __syncthreads();
    }
  }
}

void forward(const float* Q, const float* K, const float* V, float* O, float* m, float* l, int batch, int heads, int lq,
             int lk, float tau) {
  fa1_forward<<<dim3(heads, batch), BLOCK>>>(Q, K, V, O, m, l, lq, lk, heads, tau);
}
