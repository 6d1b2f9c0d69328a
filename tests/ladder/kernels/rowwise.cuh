// What helpers_in_header.cu keeps in a header: sizes, the arguments, the steps of the softmax.
#pragma once
#include <cuda_runtime.h>

#define ROWS 32
#define KEYS 32
#define ROW_THREADS 4
#define EACH (KEYS / ROW_THREADS)

namespace rowwise {

struct Shape {
  int queries, keys, heads;
};

struct Arguments : Shape {
  const float* query;
  const float* key;
  const float* value;
  float* result;
  float scale;
};

__device__ __forceinline__ float widest(float x) {
#pragma unroll
  for (int step = ROW_THREADS / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

__device__ __forceinline__ float total(float x) {
#pragma unroll
  for (int step = ROW_THREADS / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <int W>
__device__ __forceinline__ float dot(const float* a, const float* b) {
  float sum = 0.f;
#pragma unroll
  for (int c = 0; c < W; ++c) sum += a[c] * b[c];
  return sum;
}

template <int W, int COUNT>
__device__ void bring(float (*tile)[W + 1], const float* from, int first, int end) {
  for (int at = threadIdx.x; at < COUNT * W; at += ROWS * ROW_THREADS) {
    const int r = at / W, c = at % W;
    tile[r][c] = first + r < end ? from[(size_t)(first + r) * W + c] : 0.f;
  }
}

}  // namespace rowwise
