// No shared memory: a thread per query reads every key and value from global memory, one after the other.
#include <cuda_runtime.h>

constexpr int kWidth = 32;
constexpr int kThreads = 64;

__global__ void attention_rowwise(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                                  float* __restrict__ o, int n_q, int n_kv, int n_heads, float scale) {
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= n_q) return;
  const int bh = blockIdx.z * n_heads + blockIdx.y;
  const float* qr = q + ((size_t)bh * n_q + row) * kWidth;
  const float* kb = k + (size_t)bh * n_kv * kWidth;
  const float* vb = v + (size_t)bh * n_kv * kWidth;

  float acc[kWidth] = {0.f};
  float m = -INFINITY;
  float l = 0.f;
  for (int j = 0; j < n_kv; ++j) {
    float dot = 0.f;
    for (int d = 0; d < kWidth; ++d) dot += qr[d] * kb[(size_t)j * kWidth + d];
    const float s = dot * scale;
    const float m_new = fmaxf(m, s);
    const float alpha = expf(m - m_new);
    const float p = expf(s - m_new);
    l = l * alpha + p;
    for (int d = 0; d < kWidth; ++d) acc[d] = acc[d] * alpha + p * vb[(size_t)j * kWidth + d];
    m = m_new;
  }
  float* out = o + ((size_t)bh * n_q + row) * kWidth;
  for (int d = 0; d < kWidth; ++d) out[d] = acc[d] / l;
}

void launch(const float* q, const float* k, const float* v, float* o, int batch, int heads, int n_q, int n_kv) {
  dim3 grid((n_q + kThreads - 1) / kThreads, heads, batch);
  attention_rowwise<<<grid, kThreads>>>(q, k, v, o, n_q, n_kv, heads, 0.1767767f);
}
