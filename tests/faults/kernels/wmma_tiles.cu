// Tensor cores through nvcuda::wmma: S, P and O go through shared memory; a warp owns 16 query rows, two lanes a row.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

constexpr int kM = 32, kN = 32, kD = 64, kWarpSize = 32;
constexpr int kLdTile = kD + 8, kLdS = kN + 4, kLdP = kN + 8, kLdO = kD + 4;

// Rows [first, first + kRows) of a contiguous [rows, kD] matrix; rows at or beyond `rows` become zeros.
template <int kRows>
__device__ void load_rows(half (*dst)[kLdTile], const half* src, int first, int rows) {
  for (int i = threadIdx.x; i < kRows * (kD / 8); i += blockDim.x) {
    const int r = i / (kD / 8), c = i % (kD / 8) * 8;
    uint4 chunk = make_uint4(0u, 0u, 0u, 0u);
    if (first + r < rows) chunk = *reinterpret_cast<const uint4*>(src + (size_t)(first + r) * kD + c);
    *reinterpret_cast<uint4*>(&dst[r][c]) = chunk;
  }
}

__global__ void __launch_bounds__(kM / 16 * kWarpSize)
wmma_attention(const half* q, const half* k, const half* v, half* o, float* lse, int seqlen_q, int seqlen_k,
               int n_heads, int n_kv_heads, float sm_scale, int causal) {
  __shared__ __align__(128) half q_s[kM][kLdTile];
  __shared__ __align__(128) half k_s[kN][kLdTile];
  __shared__ __align__(128) half v_s[kN][kLdTile];
  __shared__ __align__(128) float s_s[kM][kLdS];
  __shared__ __align__(128) half p_s[kM][kLdP];
  __shared__ __align__(128) float o_s[kM][kLdO];

  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int r = warp * 16 + lane / 2, side = lane % 2;
  const int first_row = blockIdx.x * kM, head = blockIdx.y, batch = blockIdx.z;
  const int kv_head = head / (n_heads / n_kv_heads);
  const half* q_head = q + (size_t)(batch * n_heads + head) * seqlen_q * kD;
  const half* k_head = k + (size_t)(batch * n_kv_heads + kv_head) * seqlen_k * kD;
  const half* v_head = v + (size_t)(batch * n_kv_heads + kv_head) * seqlen_k * kD;
  const int row = first_row + r;
  const int shift = seqlen_k - seqlen_q;  // causal: key j is seen by query i when j <= i + shift

  load_rows<kM>(q_s, q_head, first_row, seqlen_q);
  for (int c = 0; c < kD / 2; ++c) o_s[r][side * (kD / 2) + c] = 0.f;
  float row_max = -INFINITY, row_sum = 0.f;

  int last_key = seqlen_k;
  if (causal) last_key = min(seqlen_k, first_row + kM + shift);
  for (int start = 0; start < last_key; start += kN) {
    load_rows<kN>(k_s, k_head, start, seqlen_k);
    load_rows<kN>(v_s, v_head, start, seqlen_k);
    __syncthreads();

    for (int n = 0; n < kN / 16; ++n) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> scores;
      wmma::fill_fragment(scores, 0.f);
      for (int d = 0; d < kD; d += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
        wmma::load_matrix_sync(a, &q_s[warp * 16][d], kLdTile);
        wmma::load_matrix_sync(b, &k_s[n * 16][d], kLdTile);
        wmma::mma_sync(scores, a, b, scores);
      }
      wmma::store_matrix_sync(&s_s[warp * 16][n * 16], scores, kLdS, wmma::mem_row_major);
    }
    __syncwarp();

    float tile_max = -INFINITY;
    for (int c = 0; c < kN / 2; ++c) {
      const int j = side * (kN / 2) + c, key = start + j;
      float x = s_s[r][j] * sm_scale;
      if (key >= seqlen_k || (causal && key > row + shift)) x = -INFINITY;
      s_s[r][j] = x;
      tile_max = fmaxf(tile_max, x);
    }
    tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 1));
    const float next_max = fmaxf(row_max, tile_max);
    const float base = next_max == -INFINITY ? 0.f : next_max;
    const float rescale = __expf(row_max - base);
    row_max = next_max;
    float tile_sum = 0.f;
    for (int c = 0; c < kN / 2; ++c) {
      const int j = side * (kN / 2) + c;
      const float e = __expf(s_s[r][j] - base);
      p_s[r][j] = __float2half(e);
      tile_sum += e;
    }
    tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, 1);
    row_sum = row_sum * rescale + tile_sum;
    for (int c = 0; c < kD / 2; ++c) o_s[r][side * (kD / 2) + c] *= rescale;
    __syncwarp();

    for (int d = 0; d < kD; d += 16) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> out;
      wmma::load_matrix_sync(out, &o_s[warp * 16][d], kLdO, wmma::mem_row_major);
      for (int n = 0; n < kN; n += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> p;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
        wmma::load_matrix_sync(p, &p_s[warp * 16][n], kLdP);
        wmma::load_matrix_sync(b, &v_s[n][d], kLdTile);
        wmma::mma_sync(out, p, b, out);
      }
      wmma::store_matrix_sync(&o_s[warp * 16][d], out, kLdO, wmma::mem_row_major);
    }
    __syncthreads();
  }
  if (row < seqlen_q) {
    half* o_row = o + ((size_t)(batch * n_heads + head) * seqlen_q + row) * kD;
    const float norm = row_sum == 0.f ? 0.f : 1.f / row_sum;
    for (int c = 0; c < kD / 2; ++c) o_row[side * (kD / 2) + c] = __float2half(o_s[r][side * (kD / 2) + c] * norm);
    if (side == 0)
      lse[(size_t)(batch * n_heads + head) * seqlen_q + row] = row_sum == 0.f ? -INFINITY : row_max + logf(row_sum);
  }
}

void launch(const half* q, const half* k, const half* v, half* o, float* lse, int b, int hq, int hkv, int sq, int sk,
            float scale, bool causal, cudaStream_t stream) {
  wmma_attention<<<dim3((sq + kM - 1) / kM, hq, b), kM / 16 * kWarpSize, 0, stream>>>(q, k, v, o, lse, sq, sk, hq, hkv,
                                                                                    scale, causal);
}
