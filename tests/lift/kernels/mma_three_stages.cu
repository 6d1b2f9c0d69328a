// Three-stage cp.async ring, swizzled, m16n8k16; Q fragments read again for every tile; [B, S, H, D] layout.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
constexpr int D = 64, BQ = 128, BK = 64, STAGES = 3, NT = 256;
__device__ __forceinline__ int swz(int r, int c) { return r * D + ((c ^ (r & 7)) << 3); }
struct Frag { unsigned x[4]; };

__device__ __forceinline__ void fetch(half* s, const half* g, int first, int limit, int ld, int rows) {
  for (int t = threadIdx.x; t < rows * (D / 8); t += NT) {
    const int r = t >> 3, c = t & 7;
    const unsigned dst = (unsigned)__cvta_generic_to_shared(s + swz(r, c));
    const int n = first + r < limit ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(g + (size_t)(first + r) * ld + c * 8), "r"(n));
  }
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

__global__ __launch_bounds__(NT) void attn3(const half* Q, const half* K, const half* V, half* O, int N, int H, float c) {
  extern __shared__ __align__(16) unsigned char raw[];
  half* sq = reinterpret_cast<half*>(raw);
  half* sk = sq + BQ * D;
  half* sv = sk + STAGES * BK * D;
  const int ld = H * D, q0 = blockIdx.x * BQ, h = blockIdx.y, b = blockIdx.z;
  const half* kg = K + (size_t)b * N * ld + h * D;
  const half* vg = V + (size_t)b * N * ld + h * D;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int tiles = (N + BK - 1) / BK;
  fetch(sq, Q + (size_t)b * N * ld + h * D, q0, N, ld, BQ);
  fetch(sk, kg, 0, N, ld, BK);
  fetch(sv, vg, 0, N, ld, BK);
  commit();
  fetch(sk + BK * D, kg, BK, N, ld, BK);
  fetch(sv + BK * D, vg, BK, N, ld, BK);
  commit();
  float o[D / 8][4];
  for (int i = 0; i < D / 8; i++) for (int e = 0; e < 4; e++) o[i][e] = 0.f;
  float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;
  for (int t = 0; t < tiles; t++) {
    wait<1>();
    __syncthreads();
    if (t + 2 < tiles) {
      const int st = (t + 2) % STAGES;
      fetch(sk + st * BK * D, kg, (t + 2) * BK, N, ld, BK);
      fetch(sv + st * BK * D, vg, (t + 2) * BK, N, ld, BK);
    }
    commit();
    const half* kt = sk + t % STAGES * BK * D;
    const half* vt = sv + t % STAGES * BK * D;
    float s[BK / 8][4];
    for (int i = 0; i < BK / 8; i++) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.f;
    for (int kk = 0; kk < D / 16; kk++) {
      unsigned a0, a1, a2, a3;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                   : "r"((unsigned)__cvta_generic_to_shared(sq + swz(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)))));
      for (int n = 0; n < BK / 8; n++) {
        unsigned b0, b1;
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1)
                     : "r"((unsigned)__cvta_generic_to_shared(kt + swz(n * 8 + (lane & 7), kk * 2 + ((lane >> 3) & 1)))));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
      }
    }
    float x0 = m0, x1 = m1;
    for (int n = 0; n < BK / 8; n++) {
      const int j = t * BK + n * 8 + (lane & 3) * 2;
      if (j >= N) s[n][0] = s[n][2] = -INFINITY;
      if (j + 1 >= N) s[n][1] = s[n][3] = -INFINITY;
      x0 = fmaxf(x0, fmaxf(s[n][0], s[n][1]));
      x1 = fmaxf(x1, fmaxf(s[n][2], s[n][3]));
    }
    x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 1)); x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 2));
    x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, 1)); x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, 2));
    const float f0 = exp2f((m0 - x0) * c), f1 = exp2f((m1 - x1) * c);
    m0 = x0; m1 = x1; l0 *= f0; l1 *= f1;
    unsigned p[BK / 8][2];
    for (int n = 0; n < BK / 8; n++) {
      const float e0 = exp2f((s[n][0] - m0) * c), e1 = exp2f((s[n][1] - m0) * c);
      const float e2 = exp2f((s[n][2] - m1) * c), e3 = exp2f((s[n][3] - m1) * c);
      l0 += e0 + e1; l1 += e2 + e3;
      half2 lo = __floats2half2_rn(e0, e1), hi = __floats2half2_rn(e2, e3);
      p[n][0] = *(unsigned*)&lo; p[n][1] = *(unsigned*)&hi;
    }
    for (int i = 0; i < D / 8; i++) { o[i][0] *= f0; o[i][1] *= f0; o[i][2] *= f1; o[i][3] *= f1; }
    for (int kk = 0; kk < BK / 16; kk++)
      for (int i = 0; i < D / 8; i++) {
        unsigned b0, b1;
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1)
                     : "r"((unsigned)__cvta_generic_to_shared(vt + swz(kk * 16 + (lane & 15), i))));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(o[i][0]), "+f"(o[i][1]), "+f"(o[i][2]), "+f"(o[i][3])
                     : "r"(p[2 * kk][0]), "r"(p[2 * kk][1]), "r"(p[2 * kk + 1][0]), "r"(p[2 * kk + 1][1]), "r"(b0), "r"(b1));
      }
  }
  l0 += __shfl_xor_sync(0xffffffffu, l0, 1); l0 += __shfl_xor_sync(0xffffffffu, l0, 2);
  l1 += __shfl_xor_sync(0xffffffffu, l1, 1); l1 += __shfl_xor_sync(0xffffffffu, l1, 2);
  const int r0 = q0 + warp * 16 + (lane >> 2), r1 = r0 + 8;
  half* og = O + (size_t)b * N * ld + h * D;
  for (int i = 0; i < D / 8; i++) {
    if (r0 < N) *reinterpret_cast<half2*>(og + (size_t)r0 * ld + i * 8 + (lane & 3) * 2) = __floats2half2_rn(o[i][0] / l0, o[i][1] / l0);
    if (r1 < N) *reinterpret_cast<half2*>(og + (size_t)r1 * ld + i * 8 + (lane & 3) * 2) = __floats2half2_rn(o[i][2] / l1, o[i][3] / l1);
  }
}
