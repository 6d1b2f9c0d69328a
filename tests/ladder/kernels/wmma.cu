// Tensor cores by the wmma interface: scores, weights and the output pass through shared memory.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

using namespace nvcuda;

constexpr int kRows = 64, kKeys = 32, kDim = 64, kWarps = 4;
constexpr int kPitch = kDim + 8, kScorePitch = kKeys, kOutPitch = kDim;

__global__ void __launch_bounds__(kWarps * 32)
    attend_wmma(const half* __restrict__ q, const half* __restrict__ k, const half* __restrict__ v,
                half* __restrict__ o, int sq, int sk, int heads, float scale) {
  __shared__ __align__(32) half q_tile[kRows * kPitch];
  __shared__ __align__(32) half k_tile[kKeys * kPitch];
  __shared__ __align__(32) half v_tile[kKeys * kPitch];
  __shared__ __align__(32) float scores[kRows * kScorePitch];
  __shared__ __align__(32) half weights[kRows * (kKeys + 8)];
  __shared__ __align__(32) float out[kRows * kOutPitch];
  __shared__ float row_max[kRows], row_sum[kRows], factor[kRows];
  const int tid = threadIdx.x, warp = tid / 32;
  const int first = blockIdx.x * kRows;
  const size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
  q += head * sq * kDim;
  o += head * sq * kDim;
  k += head * sk * kDim;
  v += head * sk * kDim;

  for (int at = tid; at < kRows * kDim; at += kWarps * 32) {
    const int r = at / kDim, c = at % kDim;
    q_tile[r * kPitch + c] = first + r < sq ? q[(size_t)(first + r) * kDim + c] : __float2half(0.f);
    out[r * kOutPitch + c] = 0.f;
  }
  if (tid < kRows) {
    row_max[tid] = -INFINITY;
    row_sum[tid] = 0.f;
  }

  for (int key = 0; key < sk; key += kKeys) {
    __syncthreads();
    for (int at = tid; at < kKeys * kDim; at += kWarps * 32) {
      const int r = at / kDim, c = at % kDim;
      const bool inside = key + r < sk;
      k_tile[r * kPitch + c] = inside ? k[(size_t)(key + r) * kDim + c] : __float2half(0.f);
      v_tile[r * kPitch + c] = inside ? v[(size_t)(key + r) * kDim + c] : __float2half(0.f);
    }
    __syncthreads();

    for (int n = 0; n < kKeys / 16; ++n) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
      wmma::fill_fragment(acc, 0.f);
      for (int d = 0; d < kDim / 16; ++d) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
        wmma::load_matrix_sync(a, q_tile + warp * 16 * kPitch + d * 16, kPitch);
        wmma::load_matrix_sync(b, k_tile + n * 16 * kPitch + d * 16, kPitch);
        wmma::mma_sync(acc, a, b, acc);
      }
      for (int e = 0; e < acc.num_elements; ++e) acc.x[e] *= scale;
      wmma::store_matrix_sync(scores + warp * 16 * kScorePitch + n * 16, acc, kScorePitch, wmma::mem_row_major);
    }
    __syncthreads();

    if (tid < kRows) {
      float* row = scores + tid * kScorePitch;
      float top = row_max[tid];
      for (int c = 0; c < kKeys; ++c) {
        if (key + c >= sk) row[c] = -INFINITY;
        top = fmaxf(top, row[c]);
      }
      float total = 0.f;
      for (int c = 0; c < kKeys; ++c) {
        const float p = expf(row[c] - top);
        weights[tid * (kKeys + 8) + c] = __float2half(p);
        total += p;
      }
      factor[tid] = expf(row_max[tid] - top);
      row_sum[tid] = row_sum[tid] * factor[tid] + total;
      row_max[tid] = top;
    }
    __syncthreads();

    for (int at = tid; at < kRows * kDim; at += kWarps * 32) {
      const int r = at / kDim, c = at % kDim;
      out[r * kOutPitch + c] *= factor[r];
    }
    __syncthreads();
    for (int n = 0; n < kDim / 16; ++n) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
      wmma::load_matrix_sync(acc, out + warp * 16 * kOutPitch + n * 16, kOutPitch, wmma::mem_row_major);
      for (int j = 0; j < kKeys / 16; ++j) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
        wmma::load_matrix_sync(a, weights + warp * 16 * (kKeys + 8) + j * 16, kKeys + 8);
        wmma::load_matrix_sync(b, v_tile + j * 16 * kPitch + n * 16, kPitch);
        wmma::mma_sync(acc, a, b, acc);
      }
      wmma::store_matrix_sync(out + warp * 16 * kOutPitch + n * 16, acc, kOutPitch, wmma::mem_row_major);
    }
  }
  __syncthreads();
  for (int at = tid; at < kRows * kDim; at += kWarps * 32) {
    const int r = at / kDim, c = at % kDim;
    if (first + r < sq) o[(size_t)(first + r) * kDim + c] = __float2half(out[r * kOutPitch + c] / row_sum[r]);
  }
}
