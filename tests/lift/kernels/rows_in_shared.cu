// Scores in shared memory; 16x16 threads; -FLT_MAX sentinel.
#include <cuda_runtime.h>
#include <float.h>
#define BM 32
#define BN 32
#define HD 64
#define NTHREADS 256

__global__ void attn_shared_scores(float const* Q, float const* K, float const* V, float* O, int N, int H, float scale,
                                   bool causal)
{
	__shared__ float sQ[BM * HD];
	__shared__ float sK[BN * (HD + 1)];
	__shared__ float sV[BN * HD];
	__shared__ float sS[BM][BN];
	__shared__ float sM[BM], sL[BM], sC[BM];
	int tid = threadIdx.x;
	int head = blockIdx.y % H;
	int batch = blockIdx.y / H;
	int q0 = blockIdx.x * BM;
	long base = ((long)batch * H + head) * N * HD;

	for (int i = tid; i < BM * HD; i += NTHREADS) {
		int r = i / HD, c = i % HD;
		sQ[i] = (q0 + r < N) ? Q[base + (q0 + r) * HD + c] : 0.f;
	}
	if (tid < BM) { sM[tid] = -FLT_MAX; sL[tid] = 0.f; }
	float acc[BM * HD / NTHREADS];
	for (int i = 0; i < BM * HD / NTHREADS; i++) acc[i] = 0.f;

	int end = causal ? min(N, q0 + BM) : N;
	for (int k0 = 0; k0 < end; k0 += BN) {
		__syncthreads();
		for (int i = tid; i < BN * HD; i += NTHREADS) {
			int r = i / HD, c = i % HD;
			sK[r * (HD + 1) + c] = (k0 + r < N) ? K[base + (k0 + r) * HD + c] : 0.f;
			sV[r * HD + c] = (k0 + r < N) ? V[base + (k0 + r) * HD + c] : 0.f;
		}
		__syncthreads();
		for (int i = tid; i < BM * BN; i += NTHREADS) {
			int r = i / BN, c = i % BN;
			float dot = 0.f;
			for (int x = 0; x < HD; x++) dot += sQ[r * HD + x] * sK[c * (HD + 1) + x];
			dot *= scale;
			if (k0 + c >= N || (causal && k0 + c > q0 + r)) dot = -FLT_MAX;
			sS[r][c] = dot;
		}
		__syncthreads();
		if (tid < BM) {
			float mx = sM[tid];
			for (int c = 0; c < BN; c++) mx = fmaxf(mx, sS[tid][c]);
			float sum = 0.f;
			for (int c = 0; c < BN; c++) {
				float p = expf(sS[tid][c] - mx);
				sS[tid][c] = p;
				sum += p;
			}
			float corr = expf(sM[tid] - mx);
			sL[tid] = sL[tid] * corr + sum;
			sM[tid] = mx;
			sC[tid] = corr;
		}
		__syncthreads();
		for (int i = 0; i < BM * HD / NTHREADS; i++) {
			int e = tid + i * NTHREADS;
			int r = e / HD, c = e % HD;
			float o = acc[i] * sC[r];
			for (int j = 0; j < BN; j++) o += sS[r][j] * sV[j * HD + c];
			acc[i] = o;
		}
	}
	for (int i = 0; i < BM * HD / NTHREADS; i++) {
		int e = tid + i * NTHREADS;
		int r = e / HD, c = e % HD;
		if (q0 + r < N) O[base + (q0 + r) * HD + c] = acc[i] / sL[r];
	}
}
