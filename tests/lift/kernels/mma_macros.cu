// Hand-unrolled tensor-core attention with PTX macros, padded shared memory, one K and one V buffer,
// K and V waited separately. Each warp owns 16 query rows.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define CP_ASYNC_COMMIT_GROUP() asm volatile("cp.async.commit_group;\n" ::)
#define CP_ASYNC_WAIT_GROUP(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n))
#define CP_ASYNC_CG(dst, src, bytes) \
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;\n" ::"r"(dst), "l"(src), "n"(bytes))
#define LDMATRIX_X4(R0, R1, R2, R3, addr)                                                 \
  asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];\n"       \
               : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3)                                   \
               : "r"(addr))
#define LDMATRIX_X2(R0, R1, addr) \
  asm volatile("ldmatrix.sync.aligned.x2.m8n8.shared.b16 {%0, %1}, [%2];\n" : "=r"(R0), "=r"(R1) : "r"(addr))
#define LDMATRIX_X2_T(R0, R1, addr) \
  asm volatile("ldmatrix.sync.aligned.x2.trans.m8n8.shared.b16 {%0, %1}, [%2];\n" : "=r"(R0), "=r"(R1) : "r"(addr))
#define HMMA16816F32(RD0, RD1, RD2, RD3, RA0, RA1, RA2, RA3, RB0, RB1, RC0, RC1, RC2, RC3)             \
  asm volatile(                                                                                        \
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,  %1,  %2,  %3}, {%4, %5, %6, %7}, {%8, " \
      "%9}, {%10, %11, %12, %13};\n"                                                                   \
      : "=r"(RD0), "=r"(RD1), "=r"(RD2), "=r"(RD3)                                                     \
      : "r"(RA0), "r"(RA1), "r"(RA2), "r"(RA3), "r"(RB0), "r"(RB1), "r"(RC0), "r"(RC1), "r"(RC2), "r"(RC3))
#define HALF2(value) (reinterpret_cast<half2*>(&(value))[0])

template <const int kHeadDim, const int kPad>
__global__ void __launch_bounds__(128)
    mma_stage_kernel(half* Q, half* K, half* V, half* O, int QKV_seqlen, int QKV_head, float scale) {
  constexpr int Br = 64, Bc = 64, kMmaK = 16;
  const int QKV_batch_id = blockIdx.y / QKV_head;
  const int QKV_head_id = blockIdx.y % QKV_head;
  const int Q_tile_id = blockIdx.x;
  const int tid = threadIdx.x;
  const int warp_id = tid / 32;
  const int lane_id = tid % 32;
  const int gmem_offset = (QKV_batch_id * QKV_head * QKV_seqlen * kHeadDim) + (QKV_head_id * QKV_seqlen * kHeadDim);
  const int Tc = (QKV_seqlen + Bc - 1) / Bc;

  extern __shared__ half smem[];
  half* Q_tile_smem = smem;
  half* K_tile_smem = Q_tile_smem + Br * (kHeadDim + kPad);
  half* V_tile_smem = K_tile_smem + Bc * (kHeadDim + kPad);
  uint32_t smem_Q = __cvta_generic_to_shared(Q_tile_smem);
  uint32_t smem_K = __cvta_generic_to_shared(K_tile_smem);
  uint32_t smem_V = __cvta_generic_to_shared(V_tile_smem);

  float m_old[2] = {-INFINITY, -INFINITY};
  float l_old[2] = {0.f, 0.f};
  uint32_t R_Q[4];
  uint32_t R_S[Bc / 8][4];
  uint32_t R_D[kHeadDim / 8][4];
#pragma unroll
  for (int j = 0; j < kHeadDim / 8; ++j) {
    R_D[j][0] = 0; R_D[j][1] = 0; R_D[j][2] = 0; R_D[j][3] = 0;
  }
  const int load_r = tid / 2;
  const int load_c = (tid % 2) * (kHeadDim / 2);
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; i += 8) {
    CP_ASYNC_CG(smem_Q + (load_r * (kHeadDim + kPad) + load_c + i) * 2,
                &Q[gmem_offset + (Q_tile_id * Br + load_r) * kHeadDim + load_c + i], 16);
  }
  CP_ASYNC_COMMIT_GROUP();

#pragma unroll 1
  for (int tile = 0; tile < Tc; ++tile) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; i += 8) {
      CP_ASYNC_CG(smem_K + (load_r * (kHeadDim + kPad) + load_c + i) * 2,
                  &K[gmem_offset + (tile * Bc + load_r) * kHeadDim + load_c + i], 16);
    }
    CP_ASYNC_COMMIT_GROUP();
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; i += 8) {
      CP_ASYNC_CG(smem_V + (load_r * (kHeadDim + kPad) + load_c + i) * 2,
                  &V[gmem_offset + (tile * Bc + load_r) * kHeadDim + load_c + i], 16);
    }
    CP_ASYNC_COMMIT_GROUP();
    CP_ASYNC_WAIT_GROUP(1);
    __syncthreads();

#pragma unroll
    for (int j = 0; j < Bc / 8; ++j) {
      R_S[j][0] = 0; R_S[j][1] = 0; R_S[j][2] = 0; R_S[j][3] = 0;
    }
#pragma unroll
    for (int kk = 0; kk < kHeadDim / kMmaK; ++kk) {
      uint32_t q_ptr = smem_Q + ((warp_id * 16 + lane_id % 16) * (kHeadDim + kPad) + kk * kMmaK + (lane_id / 16) * 8) * 2;
      LDMATRIX_X4(R_Q[0], R_Q[1], R_Q[2], R_Q[3], q_ptr);
#pragma unroll
      for (int j = 0; j < Bc / 8; ++j) {
        uint32_t R_K[2];
        uint32_t k_ptr = smem_K + ((j * 8 + lane_id % 8) * (kHeadDim + kPad) + kk * kMmaK + ((lane_id / 8) % 2) * 8) * 2;
        LDMATRIX_X2(R_K[0], R_K[1], k_ptr);
        HMMA16816F32(R_S[j][0], R_S[j][1], R_S[j][2], R_S[j][3], R_Q[0], R_Q[1], R_Q[2], R_Q[3], R_K[0], R_K[1],
                     R_S[j][0], R_S[j][1], R_S[j][2], R_S[j][3]);
      }
    }
    float m_new[2] = {-INFINITY, -INFINITY};
    float l_new[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < Bc / 8; ++j) {
      float* t = reinterpret_cast<float*>(&(R_S[j][0]));
      m_new[0] = fmaxf(m_new[0], fmaxf(t[0], t[1]) * scale);
      m_new[1] = fmaxf(m_new[1], fmaxf(t[2], t[3]) * scale);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffff, m_new[r], 1, 4));
      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffff, m_new[r], 2, 4));
      m_new[r] = fmaxf(m_old[r], m_new[r]);
    }
#pragma unroll
    for (int j = 0; j < Bc / 8; ++j) {
      float* t = reinterpret_cast<float*>(&(R_S[j][0]));
      t[0] = __expf(__fmaf_rn(t[0], scale, -m_new[0]));
      t[1] = __expf(__fmaf_rn(t[1], scale, -m_new[0]));
      t[2] = __expf(__fmaf_rn(t[2], scale, -m_new[1]));
      t[3] = __expf(__fmaf_rn(t[3], scale, -m_new[1]));
      l_new[0] += t[0] + t[1];
      l_new[1] += t[2] + t[3];
      HALF2(R_S[j][0]) = __float22half2_rn(make_float2(t[0], t[1]));
      HALF2(R_S[j][1]) = __float22half2_rn(make_float2(t[2], t[3]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l_new[r] += __shfl_xor_sync(0xffffffff, l_new[r], 1, 4);
      l_new[r] += __shfl_xor_sync(0xffffffff, l_new[r], 2, 4);
    }
    CP_ASYNC_WAIT_GROUP(0);
    __syncthreads();
    float rescale[2] = {__expf(m_old[0] - m_new[0]), __expf(m_old[1] - m_new[1])};
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      float* t = reinterpret_cast<float*>(&(R_D[j][0]));
      t[0] *= rescale[0]; t[1] *= rescale[0]; t[2] *= rescale[1]; t[3] *= rescale[1];
    }
#pragma unroll
    for (int kk = 0; kk < Bc / kMmaK; ++kk) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        uint32_t R_V[2];
        uint32_t v_ptr = smem_V + ((kk * 16 + lane_id % 16) * (kHeadDim + kPad) + j * 8) * 2;
        LDMATRIX_X2_T(R_V[0], R_V[1], v_ptr);
        HMMA16816F32(R_D[j][0], R_D[j][1], R_D[j][2], R_D[j][3], R_S[2 * kk][0], R_S[2 * kk][1], R_S[2 * kk + 1][0],
                     R_S[2 * kk + 1][1], R_V[0], R_V[1], R_D[j][0], R_D[j][1], R_D[j][2], R_D[j][3]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l_old[r] = rescale[r] * l_old[r] + l_new[r];
      m_old[r] = m_new[r];
    }
    __syncthreads();
  }
  float inv[2] = {__frcp_rn(l_old[0]), __frcp_rn(l_old[1])};
  const int row = Q_tile_id * Br + warp_id * 16 + lane_id / 4;
#pragma unroll
  for (int j = 0; j < kHeadDim / 8; ++j) {
    float* t = reinterpret_cast<float*>(&(R_D[j][0]));
    const int col = j * 8 + (lane_id % 4) * 2;
    HALF2(O[gmem_offset + row * kHeadDim + col]) = __floats2half2_rn(t[0] * inv[0], t[1] * inv[0]);
    HALF2(O[gmem_offset + (row + 8) * kHeadDim + col]) = __floats2half2_rn(t[2] * inv[1], t[3] * inv[1]);
  }
}

void launch(half* Q, half* K, half* V, half* O, int B, int H, int N, float scale) {
  const int smem = 3 * 64 * (64 + 8) * sizeof(half);
  cudaFuncSetAttribute(mma_stage_kernel<64, 8>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  mma_stage_kernel<64, 8><<<dim3((N + 63) / 64, B * H), 128, smem>>>(Q, K, V, O, N, H, scale);
}
