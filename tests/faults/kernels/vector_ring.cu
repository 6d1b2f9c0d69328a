// fp32 with 16-byte cp.async into two buffers that swap; two threads share a query row and swap their probabilities by
// shuffle; log2 units; causal to the bottom right; grouped KV heads; strides of the caller.
#include <cuda_runtime.h>
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

constexpr int ROWS = 32, KEYS = 16, WIDTH = 32, VEC = 4;

__device__ __forceinline__ void copy16(float* shared, const float* global, bool inside) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(global), "r"(bytes));
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;\n"); }
__device__ __forceinline__ void all_landed() { asm volatile("cp.async.wait_group 0;\n"); }

__device__ __forceinline__ void start_tile(float (*k_dst)[WIDTH], float (*v_dst)[WIDTH], const float* k, const float* v,
                                           int k_step, int v_step, int first, int n) {
  for (int i = threadIdx.x; i < KEYS * WIDTH / VEC; i += 2 * ROWS) {
    const int r = i / (WIDTH / VEC), c = i % (WIDTH / VEC) * VEC;
    copy16(&k_dst[r][c], k + (long long)(first + r) * k_step + c, first + r < n);
    copy16(&v_dst[r][c], v + (long long)(first + r) * v_step + c, first + r < n);
  }
  end_group();
}

__global__ void __launch_bounds__(2 * ROWS)
ring_attention(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
               float* __restrict__ O, float* __restrict__ L, int M, int N, int H, int G, float scale, bool causal,
               int q_row, int k_row, int v_row, int o_row, long long q_head, long long k_head, long long v_head,
               long long o_head, long long q_batch, long long k_batch, long long v_batch, long long o_batch) {
  __shared__ __align__(16) float k_tile[2][KEYS][WIDTH];
  __shared__ __align__(16) float v_tile[2][KEYS][WIDTH];
  const int r = threadIdx.x >> 1, half = threadIdx.x & 1;
  const int h = blockIdx.y, b = blockIdx.z, g = h / (H / G);
  const int row = blockIdx.x * ROWS + r, off = N - M;
  const float* k = K + b * k_batch + g * k_head;
  const float* v = V + b * v_batch + g * v_head;
  const float* q = Q + b * q_batch + h * q_head + (long long)row * q_row;

  float qr[WIDTH];
  for (int d = 0; d < WIDTH; d += VEC) {
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row < M) x = *reinterpret_cast<const float4*>(q + d);
    qr[d] = x.x * (scale * LOG2E), qr[d + 1] = x.y * (scale * LOG2E);
    qr[d + 2] = x.z * (scale * LOG2E), qr[d + 3] = x.w * (scale * LOG2E);
  }
  float acc[WIDTH / 2];
  for (int d = 0; d < WIDTH / 2; ++d) acc[d] = 0.f;
  float m = -INFINITY, l = 0.f;

  int end = N;
  if (causal) end = min(N, (int)(blockIdx.x + 1) * ROWS + off);
  if (end > 0) start_tile(k_tile[0], v_tile[0], k, v, k_row, v_row, 0, N);
  int buf = 0;
  for (int j0 = 0; j0 < end; j0 += KEYS) {
    all_landed();
    __syncthreads();
    if (j0 + KEYS < end) start_tile(k_tile[buf ^ 1], v_tile[buf ^ 1], k, v, k_row, v_row, j0 + KEYS, N);

    float p[KEYS / 2];
    float top = m;
    for (int i = 0; i < KEYS / 2; ++i) {
      const int j = 2 * i + half;
      float s = 0.f;
      for (int d = 0; d < WIDTH; ++d) s = fmaf(qr[d], k_tile[buf][j][d], s);
      if (j0 + j >= N || (causal && j0 + j > row + off)) s = -INFINITY;
      p[i] = s;
      top = fmaxf(top, s);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    const float ref = top == -INFINITY ? 0.f : top;
    const float fade = exp2f(m - ref);
    m = top;
    l *= fade;
    for (int i = 0; i < KEYS / 2; ++i) {
      p[i] = exp2f(p[i] - ref);
      l += p[i];
    }
    for (int d = 0; d < WIDTH / 2; ++d) acc[d] *= fade;
    for (int i = 0; i < KEYS / 2; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, p[i], 1);
      const float even = half ? other : p[i], odd = half ? p[i] : other;
      for (int d = 0; d < WIDTH / 2; ++d) {
        acc[d] += even * v_tile[buf][2 * i][half * (WIDTH / 2) + d];
        acc[d] += odd * v_tile[buf][2 * i + 1][half * (WIDTH / 2) + d];
      }
    }
    buf ^= 1;
  }
  l += __shfl_xor_sync(0xffffffffu, l, 1);
  if (row >= M) return;
  const float norm = l > 0.f ? 1.f / l : 0.f;
  float* o = O + b * o_batch + h * o_head + (long long)row * o_row + half * (WIDTH / 2);
  for (int d = 0; d < WIDTH / 2; d += VEC)
    *reinterpret_cast<float4*>(o + d) = make_float4(acc[d] * norm, acc[d + 1] * norm, acc[d + 2] * norm, acc[d + 3] * norm);
  if (half == 0) L[(long long)(b * H + h) * M + row] = l > 0.f ? (m + log2f(l)) * LN2 : -INFINITY;
}

void launch(const float* Q, const float* K, const float* V, float* O, float* L, int B, int H, int G, int M, int N,
            float scale, bool causal) {
  const long long q_head = (long long)M * WIDTH, k_head = (long long)N * WIDTH;
  ring_attention<<<dim3((M + ROWS - 1) / ROWS, H, B), 2 * ROWS>>>(
      Q, K, V, O, L, M, N, H, G, scale, causal, WIDTH, WIDTH, WIDTH, WIDTH, q_head, k_head, k_head, q_head, H * q_head,
      G * k_head, G * k_head, H * q_head);
}
