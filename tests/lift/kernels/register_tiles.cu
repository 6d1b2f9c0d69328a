// Register-tiled fp32 attention: 16x16 threads, 4x4 scores each, float4 loads.
#include <cuda_runtime.h>
#define FETCH_FLOAT4(p) (reinterpret_cast<float4*>(&(p))[0])
#define CFETCH_FLOAT4(p) (reinterpret_cast<const float4*>(&(p))[0])
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

template <int BM = 64, int BN = 32, int DIM = 64, int TM = 4, int TN = 2>
__global__ void sgemm_like_attention(const float* __restrict__ Q, const float* __restrict__ K,
                                     const float* __restrict__ V, float* __restrict__ O, int seq_q, int seq_k,
                                     float scale) {
  __shared__ float Qs[BM][DIM + 4];
  __shared__ float Ks[BN][DIM + 4];
  __shared__ float Vs[BN][DIM + 4];
  __shared__ float Ps[BM][BN + 4];
  const int tid = threadIdx.y * blockDim.x + threadIdx.x;
  const int bh = blockIdx.y;
  const float* Qb = Q + bh * seq_q * DIM;
  const float* Kb = K + bh * seq_k * DIM;
  const float* Vb = V + bh * seq_k * DIM;
  float* Ob = O + bh * seq_q * DIM;
  const int q_start = blockIdx.x * BM;

#pragma unroll
  for (int i = 0; i < BM * DIM / 4 / 256; i++) {
    int v = tid + i * 256;
    int r = v / (DIM / 4), c = (v % (DIM / 4)) * 4;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (q_start + r < seq_q) x = CFETCH_FLOAT4(Qb[(q_start + r) * DIM + c]);
    FETCH_FLOAT4(Qs[r][c]) = x;
  }
  float o[TM][4] = {};
  float m_i[TM], l_i[TM];
#pragma unroll
  for (int i = 0; i < TM; i++) {
    m_i[i] = -1e30f;
    l_i[i] = 0.f;
  }
  for (int kt = 0; kt < CEIL_DIV(seq_k, BN); kt++) {
    const int k_start = kt * BN;
#pragma unroll
    for (int i = 0; i < BN * DIM / 4 / 256; i++) {
      int v = tid + i * 256;
      int r = v / (DIM / 4), c = (v % (DIM / 4)) * 4;
      float4 x = make_float4(0.f, 0.f, 0.f, 0.f), y = x;
      if (k_start + r < seq_k) {
        x = CFETCH_FLOAT4(Kb[(k_start + r) * DIM + c]);
        y = CFETCH_FLOAT4(Vb[(k_start + r) * DIM + c]);
      }
      FETCH_FLOAT4(Ks[r][c]) = x;
      FETCH_FLOAT4(Vs[r][c]) = y;
    }
    __syncthreads();
    float s[TM][TN] = {};
#pragma unroll
    for (int d = 0; d < DIM; d += 4) {
#pragma unroll
      for (int i = 0; i < TM; i++) {
        float4 a = FETCH_FLOAT4(Qs[threadIdx.y * TM + i][d]);
#pragma unroll
        for (int j = 0; j < TN; j++) {
          float4 b = FETCH_FLOAT4(Ks[threadIdx.x + j * 16][d]);
          s[i][j] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < TM; i++) {
      float mx = m_i[i];
#pragma unroll
      for (int j = 0; j < TN; j++) {
        s[i][j] = (k_start + threadIdx.x + j * 16 < seq_k) ? s[i][j] * scale : -1e30f;
        mx = max(mx, s[i][j]);
      }
#pragma unroll
      for (int w = 8; w >= 1; w >>= 1) mx = max(mx, __shfl_xor_sync(0xffffffff, mx, w, 16));
      float corr = __expf(m_i[i] - mx);
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < TN; j++) {
        s[i][j] = __expf(s[i][j] - mx);
        sum += s[i][j];
        Ps[threadIdx.y * TM + i][threadIdx.x + j * 16] = s[i][j];
      }
#pragma unroll
      for (int w = 8; w >= 1; w >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, w, 16);
      l_i[i] = l_i[i] * corr + sum;
      m_i[i] = mx;
#pragma unroll
      for (int c = 0; c < 4; c++) o[i][c] *= corr;
    }
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < BN; j++) {
      float4 b = FETCH_FLOAT4(Vs[j][threadIdx.x * 4]);
#pragma unroll
      for (int i = 0; i < TM; i++) {
        float p = Ps[threadIdx.y * TM + i][j];
        o[i][0] += p * b.x;
        o[i][1] += p * b.y;
        o[i][2] += p * b.z;
        o[i][3] += p * b.w;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; i++) {
    int row = q_start + threadIdx.y * TM + i;
    if (row < seq_q) {
      float inv = 1.f / l_i[i];
      FETCH_FLOAT4(Ob[row * DIM + threadIdx.x * 4]) =
          make_float4(o[i][0] * inv, o[i][1] * inv, o[i][2] * inv, o[i][3] * inv);
    }
  }
}

void launch(const float* Q, const float* K, const float* V, float* O, int bh, int sq, int sk, float scale) {
  dim3 block(16, 16);
  dim3 grid(CEIL_DIV(sq, 64), bh);
  sgemm_like_attention<64, 32, 64, 4, 2><<<grid, block>>>(Q, K, V, O, sq, sk, scale);
}
