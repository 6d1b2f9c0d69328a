// Fragments of a 16 x 16 tile of scores over one warp, and the steps on them: templates all the way down.
#pragma once

namespace tile {

template <class T, int N>
class Fragment {
 public:
  __device__ T& operator()(int e) { return data_[e]; }
  __device__ const T& operator()(int e) const { return data_[e]; }
  __device__ void clear() {
#pragma unroll
    for (int e = 0; e < N; ++e) data_[e] = T(0);
  }

 private:
  T data_[N];
};

template <class T, int N>
__device__ constexpr int size(const Fragment<T, N>&) {
  return N;
}

// Element e of a lane: row lane / 4, eight further down for bit 1; column 2 (lane % 4), the next for bit 0, and eight
// further for bit 2.
struct Place {
  static __device__ int row(int e) { return threadIdx.x / 4 + (e >> 1 & 1) * 8; }
  static __device__ int col(int e) { return threadIdx.x % 4 * 2 + (e & 1) + (e >> 2) * 8; }
};

template <int D, class Tile, class Acc>
__device__ void gemm(Acc& acc, const Tile& a, const Tile& b) {
  for (int e = 0; e < size(acc); ++e) {
    for (int d = 0; d < D; ++d) acc(e) = fmaf(a[Place::row(e)][d], b[Place::col(e)][d], acc(e));
  }
}

template <class Acc, class Visit>
__device__ void each(Acc& acc, Visit&& visit) {
#pragma unroll
  for (int e = 0; e < size(acc); ++e) visit(e, acc(e));
}

template <class Acc>
__device__ void mask_tail(Acc& acc, int col0, int cols) {
  each(acc, [&](int e, float& x) {
    if (col0 + Place::col(e) >= cols) x = -INFINITY;
  });
}

template <int Rows>
struct Softmax {
  float top[Rows], sum[Rows];

  __device__ Softmax() {
    for (int r = 0; r < Rows; ++r) top[r] = -INFINITY, sum[r] = 0.f;
  }

  template <class Acc, class Out>
  __device__ void step(Acc& acc, Out& out, float scale_log2) {
    for (int r = 0; r < Rows; ++r) {
      float best = top[r];
      for (int e = 0; e < size(acc); ++e) best = (e >> 1 & 1) == r ? fmaxf(best, acc(e)) : best;
      best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffff, best, 2));
      const float safe = best == -INFINITY ? 0.f : best;
      const float fade = exp2f((top[r] - safe) * scale_log2);
      top[r] = best;
      sum[r] *= fade;
      for (int e = 0; e < size(out); ++e) out(e) *= (e & 1) == r ? fade : 1.f;
      for (int e = 0; e < size(acc); ++e) {
        if ((e >> 1 & 1) != r) continue;
        acc(e) = exp2f((acc(e) - safe) * scale_log2);
        sum[r] += acc(e);
      }
    }
  }

  __device__ float total(int r) const {
    const float pair = sum[r] + __shfl_xor_sync(0xffffffff, sum[r], 1);
    return pair + __shfl_xor_sync(0xffffffff, pair, 2);
  }
};

}  // namespace tile
