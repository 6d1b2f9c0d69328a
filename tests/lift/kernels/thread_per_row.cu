// Flash attention v2, one thread per query row. Toy version for learning.
#include <cuda_runtime.h>
#include <math.h>
#define TILE 32
#define HEAD_DIM 32

__global__ void flash_attn_v2(const float *Q, const float *K, const float *V, float *O,
							  const int N, const int nh, const float softmax_scale)
{
	int tx = threadIdx.x;
	int bx = blockIdx.x, by = blockIdx.y;   // batch and head index
	int row = blockIdx.z * TILE + tx;
	int qkv_offset = (bx * nh + by) * N * HEAD_DIM;

	__shared__ float Kj[TILE][HEAD_DIM];
	__shared__ float Vj[TILE][HEAD_DIM];

	float q[HEAD_DIM], acc[HEAD_DIM];
	for (int x = 0; x < HEAD_DIM; x++) {
		q[x] = (row < N) ? Q[qkv_offset + row * HEAD_DIM + x] : 0.0f;
		acc[x] = 0.0f;
	}
	float row_m = -INFINITY;
	float row_l = 0.0f;
	const int Tc = (N + TILE - 1) / TILE;

	for (int j = 0; j < Tc; j++) {
		for (int x = 0; x < HEAD_DIM; x++) {
			int kr = j * TILE + tx;
			if (kr < N) {
				Kj[tx][x] = K[qkv_offset + kr * HEAD_DIM + x];
				Vj[tx][x] = V[qkv_offset + kr * HEAD_DIM + x];
			} else {
				Kj[tx][x] = 0.0f;
				Vj[tx][x] = 0.0f;
			}
		}
		__syncthreads();

		float S[TILE];
		float m_new = row_m;
		for (int y = 0; y < TILE; y++) {
			float sum = 0;
			for (int x = 0; x < HEAD_DIM; x++)
				sum += q[x] * Kj[y][x];
			sum *= softmax_scale;
			if (j * TILE + y >= N)
				sum = -INFINITY;
			S[y] = sum;
			if (sum > m_new)
				m_new = sum;
		}

		float l_new = 0;
		for (int y = 0; y < TILE; y++) {
			S[y] = __expf(S[y] - m_new);
			l_new += S[y];
		}
		float alpha = __expf(row_m - m_new);
		for (int x = 0; x < HEAD_DIM; x++) {
			float pv = 0;
			for (int y = 0; y < TILE; y++)
				pv += S[y] * Vj[y][x];
			acc[x] = alpha * acc[x] + pv;
		}
		row_l = alpha * row_l + l_new;
		row_m = m_new;
		__syncthreads();
	}

	if (row < N) {
		for (int x = 0; x < HEAD_DIM; x++)
			O[qkv_offset + row * HEAD_DIM + x] = acc[x] / row_l;
	}
}

void forward(const float *Q, const float *K, const float *V, float *O, int B, int nh, int N)
{
	dim3 grid(B, nh, (N + TILE - 1) / TILE);
	flash_attn_v2<<<grid, TILE>>>(Q, K, V, O, N, nh, 1.0f / sqrtf(HEAD_DIM));
}
