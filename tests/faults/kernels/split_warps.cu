// One query per CTA: every warp takes a slice of the keys with an online softmax of its own, the slices meet at the end.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace decode {
constexpr int kHeadDim = 64, kSlices = 4, kLanes = 32, kPerLane = kHeadDim / kLanes;

__device__ __forceinline__ float all_lanes(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__global__ void __launch_bounds__(kSlices * kLanes)
one_query(const half* __restrict__ query, const half* __restrict__ key_cache, const half* __restrict__ value_cache,
          half* __restrict__ out, int q_heads, int kv_heads, int cache_len, float softmax_scale) {
  __shared__ float part_m[kSlices], part_l[kSlices];
  __shared__ float part_o[kSlices][kHeadDim];
  const int slice = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int head = blockIdx.x, entry = blockIdx.y;
  const int kv_head = head / (q_heads / kv_heads);
  const size_t cache = ((size_t)entry * kv_heads + kv_head) * cache_len * kHeadDim;
  const half2 pair = *reinterpret_cast<const half2*>(query + ((size_t)entry * q_heads + head) * kHeadDim + kPerLane * lane);
  const float2 q = __half22float2(pair);

  const int share = (cache_len + kSlices - 1) / kSlices;
  const int from = slice * share, to = min(from + share, cache_len);
  float m = -INFINITY, l = 0.f, o0 = 0.f, o1 = 0.f;
  for (int j = from; j < to; ++j) {
    const float2 k = __half22float2(*reinterpret_cast<const half2*>(key_cache + cache + (size_t)j * kHeadDim + kPerLane * lane));
    const float2 v = __half22float2(*reinterpret_cast<const half2*>(value_cache + cache + (size_t)j * kHeadDim + kPerLane * lane));
    const float s = all_lanes(q.x * k.x + q.y * k.y) * softmax_scale;
    const float top = fmaxf(m, s);
    const float fade = expf(m - top), p = expf(s - top);
    m = top;
    l = l * fade + p;
    o0 = o0 * fade + p * v.x;
    o1 = o1 * fade + p * v.y;
  }
  if (lane == 0) {
    part_m[slice] = m;
    part_l[slice] = l;
  }
  part_o[slice][kPerLane * lane] = o0;
  part_o[slice][kPerLane * lane + 1] = o1;
  __syncthreads();

  if (slice == 0) {
    float top = -INFINITY;
    for (int w = 0; w < kSlices; ++w) top = fmaxf(top, part_m[w]);
    if (top == -INFINITY) top = 0.f;
    float total = 0.f, x = 0.f, y = 0.f;
    for (int w = 0; w < kSlices; ++w) {
      const float weight = expf(part_m[w] - top);
      total += part_l[w] * weight;
      x += part_o[w][kPerLane * lane] * weight;
      y += part_o[w][kPerLane * lane + 1] * weight;
    }
    const float norm = total > 0.f ? 1.f / total : 0.f;
    half* row = out + ((size_t)entry * q_heads + head) * kHeadDim;
    *reinterpret_cast<half2*>(row + kPerLane * lane) = __floats2half2_rn(x * norm, y * norm);
  }
}
}  // namespace decode

void launch(const half* q, const half* k, const half* v, half* o, int batch, int hq, int hkv, int len, float scale) {
  decode::one_query<<<dim3(hq, batch), decode::kSlices * decode::kLanes>>>(q, k, v, o, hq, hkv, len, scale);
}
