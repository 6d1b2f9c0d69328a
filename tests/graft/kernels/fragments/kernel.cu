// Attention on fragments, one warp for 16 rows: the last tile of keys alone, with the mask of its tail, then the others.
#include "fragments.h"

struct Attention_params {
  const float *q, *k, *v;
  float *o;
  int rows, cols, heads, group;
  float scale_log2;
};

template <int D, int Rows = 16>
__device__ void load(float (&tile)[Rows][D + 1], const float *from, int first, int limit) {
  for (int at = threadIdx.x; at < Rows * D; at += 32) {
    const int r = at / D, c = at % D;
    tile[r][c] = first + r < limit ? from[(long long)(first + r) * D + c] : 0.f;
  }
}

template <int D>
__device__ void attend(const Attention_params &params, const int batch, const int head, const int m_block) {
  constexpr int kRows = 16;
  constexpr int kCols = 16;
  __shared__ float q[kRows][D + 1], k[kCols][D + 1], v[kCols][D + 1], p[kRows][kCols + 1];
  const long long bh = (long long)batch * params.heads + head;
  const long long bg = ((long long)batch * params.heads + head) / params.group;
  load<D>(q, params.q + bh * params.rows * D, m_block * kRows, params.rows);

  tile::Fragment<float, 2 * D / 4> acc_o;
  acc_o.clear();
  tile::Softmax<2> softmax;

  auto values = [&](auto &acc_s) {
    tile::each(acc_s, [&](int e, float &x) { p[tile::Place::row(e)][tile::Place::col(e)] = x; });
    __syncwarp();
    for (int e = 0; e < size(acc_o); ++e) {
      for (int c = 0; c < kCols; ++c) {
        acc_o(e) = fmaf(p[threadIdx.x / 4 + (e & 1) * 8][c], v[c][threadIdx.x % 4 + (e >> 1) * 4], acc_o(e));
      }
    }
  };

  int n_block = (params.cols + kCols - 1) / kCols - 1;
  if (n_block >= 0) {
    load<D>(k, params.k + bg * params.cols * D, n_block * kCols, params.cols);
    load<D>(v, params.v + bg * params.cols * D, n_block * kCols, params.cols);
    __syncwarp();
    tile::Fragment<float, 8> acc_s;
    acc_s.clear();
    tile::gemm<D>(acc_s, q, k);
    tile::mask_tail(acc_s, n_block * kCols, params.cols);
    softmax.step(acc_s, acc_o, params.scale_log2);
    values(acc_s);
    __syncwarp();
  }
  for (--n_block; n_block >= 0; --n_block) {
    load<D>(k, params.k + bg * params.cols * D, n_block * kCols, params.cols);
    load<D>(v, params.v + bg * params.cols * D, n_block * kCols, params.cols);
    __syncwarp();
    tile::Fragment<float, 8> acc_s;
    acc_s.clear();
    tile::gemm<D>(acc_s, q, k);
    softmax.step(acc_s, acc_o, params.scale_log2);
    values(acc_s);
    __syncwarp();
  }

  for (int e = 0; e < size(acc_o); ++e) {
    const int row = m_block * kRows + threadIdx.x / 4 + (e & 1) * 8;
    const float total = (e & 1) ? softmax.total(1) : softmax.total(0);
    if (row < params.rows) {
      params.o[(bh * params.rows + row) * D + threadIdx.x % 4 + (e >> 1) * 4] = total > 0.f ? acc_o(e) / total : 0.f;
    }
  }
}

template <int D>
__global__ void attention(const Attention_params params) {
  attend<D>(params, blockIdx.z, blockIdx.y, blockIdx.x);
}
