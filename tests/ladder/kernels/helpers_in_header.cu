// Four threads per query row; the arguments come in a struct, and most of the work is in functions of a header.
#include "rowwise.cuh"

namespace rowwise {

template <int W>
__global__ void __launch_bounds__(ROWS* ROW_THREADS) attend_by_helpers(const Arguments args) {
  extern __shared__ float memory[];
  float(*queries)[W + 1] = reinterpret_cast<float(*)[W + 1]>(memory);
  float(*keys)[W + 1] = queries + ROWS;
  float(*values)[W + 1] = keys + KEYS;
  float(*weights)[KEYS + 1] = reinterpret_cast<float(*)[KEYS + 1]>(values + KEYS);
  const int mine = threadIdx.x / ROW_THREADS, part = threadIdx.x % ROW_THREADS;
  const int first = blockIdx.x * ROWS;
  const size_t head = (size_t)blockIdx.z * args.heads + blockIdx.y;
  bring<W, ROWS>(queries, args.query + head * args.queries * W, first, args.queries);

  float acc[W / ROW_THREADS] = {};
  float top = -INFINITY, sum = 0.f;
  for (int key = 0; key < args.keys; key += KEYS) {
    __syncthreads();
    bring<W, KEYS>(keys, args.key + head * args.keys * W, key, args.keys);
    bring<W, KEYS>(values, args.value + head * args.keys * W, key, args.keys);
    __syncthreads();
    float s[EACH];
    float now = top;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int c = part + e * ROW_THREADS;
      s[e] = key + c < args.keys ? dot<W>(queries[mine], keys[c]) * args.scale : -INFINITY;
      now = fmaxf(now, s[e]);
    }
    now = widest(now);
    const float factor = expf(top - now);
    float added = 0.f;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      s[e] = expf(s[e] - now);
      added += s[e];
      weights[mine][part + e * ROW_THREADS] = s[e];
    }
    sum = sum * factor + total(added);
    top = now;
    __syncwarp();
#pragma unroll
    for (int e = 0; e < W / ROW_THREADS; ++e) {
      float o = acc[e] * factor;
      for (int c = 0; c < KEYS; ++c) o += weights[mine][c] * values[c][part + e * ROW_THREADS];
      acc[e] = o;
    }
  }
  if (first + mine < args.queries) {
    float* to = args.result + (head * args.queries + first + mine) * W;
#pragma unroll
    for (int e = 0; e < W / ROW_THREADS; ++e) to[part + e * ROW_THREADS] = acc[e] / sum;
  }
}

}  // namespace rowwise

template __global__ void rowwise::attend_by_helpers<32>(const rowwise::Arguments);
