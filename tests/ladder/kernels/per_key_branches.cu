// A thread per query. A new maximum rescales what is there, any other key only adds: no exponential of 0 is computed.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <float.h>

#define CHUNK 16

template <int HD>
__global__ __launch_bounds__(64) void attend_online(const half *query, const half *key, const half *value, half *result,
                                                     float *logsum, int q_len, int kv_len, int q_heads, int kv_heads,
                                                     float sm_scale) {
  __shared__ half kc[CHUNK][HD];
  __shared__ half vc[CHUNK][HD];
  const int head = blockIdx.y, batch = blockIdx.z;
  const int shared_head = head / (q_heads / kv_heads);
  const int me = blockIdx.x * 64 + threadIdx.x;
  const half *kh = key + (size_t)(batch * kv_heads + shared_head) * kv_len * HD;
  const half *vh = value + (size_t)(batch * kv_heads + shared_head) * kv_len * HD;
  const size_t mine = ((size_t)(batch * q_heads + head) * q_len + me) * HD;

  float q[HD], out[HD];
#pragma unroll
  for (int d = 0; d < HD; ++d) {
    q[d] = me < q_len ? __half2float(query[mine + d]) : 0.f;
    out[d] = 0.f;
  }
  float best = -FLT_MAX, sum = 0.f;

  for (int first = 0; first < kv_len; first += CHUNK) {
    __syncthreads();
    for (int e = threadIdx.x; e < CHUNK * HD; e += 64) {
      const int r = e / HD, c = e % HD;
      const bool inside = first + r < kv_len;
      kc[r][c] = inside ? kh[(size_t)(first + r) * HD + c] : __float2half(0.f);
      vc[r][c] = inside ? vh[(size_t)(first + r) * HD + c] : __float2half(0.f);
    }
    __syncthreads();

    for (int r = 0; r < CHUNK; ++r) {
      float s = 0.f;
#pragma unroll
      for (int d = 0; d < HD; ++d) s += q[d] * __half2float(kc[r][d]);
      s *= sm_scale;
      if (first + r >= kv_len) s = -FLT_MAX;
      if (s > best) {
        const float fade = __expf(best - s);
        sum = sum * fade + 1.f;
#pragma unroll
        for (int d = 0; d < HD; ++d) out[d] = out[d] * fade + __half2float(vc[r][d]);
        best = s;
      } else {
        const float w = __expf(s - best);
        sum += w;
#pragma unroll
        for (int d = 0; d < HD; ++d) out[d] += w * __half2float(vc[r][d]);
      }
    }
  }

  if (me < q_len) {
    const float norm = sum > 0.f ? 1.f / sum : 0.f;
#pragma unroll
    for (int d = 0; d < HD; ++d) result[mine + d] = __float2half(out[d] * norm);
    logsum[(size_t)(batch * q_heads + head) * q_len + me] = best + logf(sum);
  }
}

void run(const half *query, const half *key, const half *value, half *result, float *logsum, int batch, int q_heads,
         int kv_heads, int q_len, int kv_len) {
  attend_online<32><<<dim3((q_len + 63) / 64, q_heads, batch), 64>>>(query, key, value, result, logsum, q_len, kv_len,
                                                                     q_heads, kv_heads, 0.1767767f);
}
