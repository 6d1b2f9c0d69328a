// FA2 loop order, normalised every step the FA1 way; contiguous [B, H, S, D] with one length; 1-D grid.
#include <cuda_runtime.h>
constexpr int D = 32, BR = 64, BC = 32;
__global__ void __launch_bounds__(BR) attention_fwd(const float* q, const float* k, const float* v, float* o,
                                                     int seq_len, float scale) {
  extern __shared__ float smem[];
  float* ks = smem;
  float* vs = smem + BC * D;
  const int n_tiles = (seq_len + BR - 1) / BR;
  const int bh = blockIdx.x / n_tiles;
  const int i = (blockIdx.x % n_tiles) * BR + threadIdx.x;
  const float* qi = q + (bh * seq_len + i) * D;
  float qr[D], acc[D];
  for (int d = 0; d < D; ++d) { qr[d] = i < seq_len ? qi[d] : 0.f; acc[d] = 0.f; }
  float m = -1e20f, l = 0.f;
  for (int j0 = 0; j0 < seq_len; j0 += BC) {
    __syncthreads();
    for (int t = threadIdx.x; t < BC * D; t += blockDim.x) {
      int r = t / D;
      int c = t - r * D;
      ks[t] = j0 + r < seq_len ? k[(bh * seq_len + j0 + r) * D + c] : 0.f;
      vs[t] = j0 + r < seq_len ? v[(bh * seq_len + j0 + r) * D + c] : 0.f;
    }
    __syncthreads();
    float s[BC];
    float mt = -1e20f;
    for (int j = 0; j < BC; ++j) {
      s[j] = 0.f;
      for (int d = 0; d < D; ++d) s[j] += qr[d] * ks[j * D + d];
      s[j] = j0 + j < seq_len ? s[j] * scale : -1e20f;
      mt = max(mt, s[j]);
    }
    float lt = 0.f;
    for (int j = 0; j < BC; ++j) { s[j] = expf(s[j] - mt); lt += s[j]; }
    const float m_new = max(m, mt);
    const float a = expf(m - m_new), b = expf(mt - m_new);
    const float l_new = a * l + b * lt;
    for (int d = 0; d < D; ++d) {
      float pv = 0.f;
      for (int j = 0; j < BC; ++j) pv += s[j] * vs[j * D + d];
      acc[d] = (l * a * acc[d] + b * pv) / l_new;
    }
    m = m_new;
    l = l_new;
  }
  if (i < seq_len)
    for (int d = 0; d < D; ++d) o[(bh * seq_len + i) * D + d] = acc[d];
}
