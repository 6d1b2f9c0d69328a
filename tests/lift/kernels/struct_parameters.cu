#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace fa {
namespace detail {
struct Params {
  const half* q;
  const half* k;
  const half* v;
  half* o;
  int seqlen_q, seqlen_k;
  int num_heads, num_heads_k;
  float scale;
};
__device__ inline float dot2(half2 a, half2 b, float acc) {
  float2 x = __half22float2(a), y = __half22float2(b);
  acc = fmaf(x.x, y.x, acc);
  return fmaf(x.y, y.y, acc);
}
}  // namespace detail

// Parameters in a struct, half in and out, fp32 softmax.
template <int D, int Br, int Bc>
__global__ void fwd(detail::Params p) {
  __shared__ half2 sk[Bc][D / 2];
  __shared__ half sv[Bc][D];
  const int tid = threadIdx.x;
  const int b = blockIdx.z;
  const int h = blockIdx.y;
  const int hk = h / (p.num_heads / p.num_heads_k);
  const int row = blockIdx.x * Br + tid;
  const half* qp = p.q + ((size_t)(b * p.num_heads + h) * p.seqlen_q) * D;
  const half* kp = p.k + ((size_t)(b * p.num_heads_k + hk) * p.seqlen_k) * D;
  const half* vp = p.v + ((size_t)(b * p.num_heads_k + hk) * p.seqlen_k) * D;
  half* op = p.o + ((size_t)(b * p.num_heads + h) * p.seqlen_q) * D;
  half2 q[D / 2];
  float o[D];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) {
    q[i] = row < p.seqlen_q ? reinterpret_cast<const half2*>(qp + (size_t)row * D)[i] : __float2half2_rn(0.f);
  }
#pragma unroll
  for (int i = 0; i < D; ++i) o[i] = 0.f;
  float m = -INFINITY, l = 0.f;
  for (int kv = 0; kv < p.seqlen_k; kv += Bc) {
    for (int i = tid; i < Bc * D / 2; i += Br) {
      const int r = i / (D / 2), c = i % (D / 2);
      const bool ok = kv + r < p.seqlen_k;
      sk[r][c] = ok ? reinterpret_cast<const half2*>(kp)[(kv + r) * (D / 2) + c] : __float2half2_rn(0.f);
      reinterpret_cast<half2*>(&sv[r][0])[c] =
          ok ? reinterpret_cast<const half2*>(vp)[(kv + r) * (D / 2) + c] : __float2half2_rn(0.f);
    }
    __syncthreads();
    float s[Bc];
    float mt = m;
#pragma unroll
    for (int j = 0; j < Bc; ++j) {
      float acc = 0.f;
#pragma unroll
      for (int i = 0; i < D / 2; ++i) acc = detail::dot2(q[i], sk[j][i], acc);
      s[j] = (kv + j < p.seqlen_k) ? acc * p.scale : -INFINITY;
      mt = fmaxf(mt, s[j]);
    }
    const float c = __expf(m - mt);
    l *= c;
#pragma unroll
    for (int i = 0; i < D; ++i) o[i] *= c;
#pragma unroll
    for (int j = 0; j < Bc; ++j) {
      const float pj = __expf(s[j] - mt);
      l += pj;
#pragma unroll
      for (int i = 0; i < D; ++i) o[i] += pj * __half2float(sv[j][i]);
    }
    m = mt;
    __syncthreads();
  }
  if (row < p.seqlen_q) {
    const float inv = 1.f / l;
#pragma unroll
    for (int i = 0; i < D; ++i) op[(size_t)row * D + i] = __float2half(o[i] * inv);
  }
}
template __global__ void fwd<64, 64, 32>(detail::Params);
}  // namespace fa
