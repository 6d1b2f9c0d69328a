// One thread per query, online softmax per key, K and V tiles in shared memory.
#include <cuda_runtime.h>
template <int D, int BC>
__global__ void per_key(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                        float* __restrict__ O, int H, int N, float scale) {
  __shared__ float sk[BC][D], sv[BC][D];
  const size_t base = (size_t)(blockIdx.z * H + blockIdx.y) * N * D;
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  float q[D], acc[D], m = -INFINITY, l = 0.f;
  for (int d = 0; d < D; d++) { q[d] = row < N ? Q[base + row * D + d] * scale : 0.f; acc[d] = 0.f; }
  for (int t = 0; t < N; t += BC) {
    for (int i = threadIdx.x; i < BC * D; i += blockDim.x) {
      sk[i / D][i % D] = t + i / D < N ? K[base + t * D + i] : 0.f;
      sv[i / D][i % D] = t + i / D < N ? V[base + t * D + i] : 0.f;
    }
    __syncthreads();
    for (int j = 0; j < BC && t + j < N; j++) {
      float s = 0.f;
      for (int d = 0; d < D; d++) s += q[d] * sk[j][d];
      float mn = fmaxf(m, s);
      float a = __expf(m - mn), p = __expf(s - mn);
      l = l * a + p;
      for (int d = 0; d < D; d++) acc[d] = acc[d] * a + p * sv[j][d];
      m = mn;
    }
    __syncthreads();
  }
  if (row < N)
    for (int d = 0; d < D; d++) O[base + row * D + d] = acc[d] / l;
}
template __global__ void per_key<32, 16>(const float*, const float*, const float*, float*, int, int, float);
void go(const float* q, const float* k, const float* v, float* o, int B, int H, int N) {
  per_key<32, 16><<<dim3((N + 63) / 64, H, B), 64>>>(q, k, v, o, H, N, 0.1767767f);
}
