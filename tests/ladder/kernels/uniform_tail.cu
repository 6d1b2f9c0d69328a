// One thread per query row; the last tile of keys is walked to its end only: no score is masked.
#include <cuda_runtime.h>

constexpr int kTile = 32, kWide = 32, kThreads = 64;

__global__ void __launch_bounds__(kThreads)
    attend_to_the_end(const float* q, const float* k, const float* v, float* o, int n_q, int n_k, int heads, float scale) {
  __shared__ float ks[kTile][kWide], vs[kTile][kWide];
  const int row = blockIdx.x * kThreads + threadIdx.x;
  const size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
  q += head * n_q * kWide;
  k += head * n_k * kWide;
  v += head * n_k * kWide;
  o += head * n_q * kWide;
  float mine[kWide], acc[kWide], m = -INFINITY, l = 0.f;
  for (int d = 0; d < kWide; ++d) {
    mine[d] = row < n_q ? q[(size_t)row * kWide + d] : 0.f;
    acc[d] = 0.f;
  }
  for (int first = 0; first < n_k; first += kTile) {
    __syncthreads();
    for (int at = threadIdx.x; at < kTile * kWide; at += kThreads) {
      const int r = at / kWide, d = at % kWide;
      if (first + r < n_k) {
        ks[r][d] = k[(size_t)(first + r) * kWide + d];
        vs[r][d] = v[(size_t)(first + r) * kWide + d];
      }
    }
    __syncthreads();
    const int end = min(kTile, n_k - first);
    float s[kTile];
    float m_new = m;
    for (int j = 0; j < end; ++j) {
      float dot = 0.f;
      for (int d = 0; d < kWide; ++d) dot += mine[d] * ks[j][d];
      s[j] = dot * scale;
      m_new = fmaxf(m_new, s[j]);
    }
    const float factor = expf(m - m_new);
    l *= factor;
    for (int d = 0; d < kWide; ++d) acc[d] *= factor;
    for (int j = 0; j < end; ++j) {
      const float p = expf(s[j] - m_new);
      l += p;
      for (int d = 0; d < kWide; ++d) acc[d] += p * vs[j][d];
    }
    m = m_new;
  }
  if (row < n_q)
    for (int d = 0; d < kWide; ++d) o[(size_t)row * kWide + d] = acc[d] / l;
}
