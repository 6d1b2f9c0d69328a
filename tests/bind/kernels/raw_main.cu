// A program: memory by cudaMalloc, a launch with macros and sizes of its own.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#define HEAD_DIM 32
#define BLOCK_M 64
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

__global__ void causal_rows(const float* Q, const float* K, const float* V, float* O, int seq_len, int num_heads,
                            float scale) {
    const int row = blockIdx.x * BLOCK_M + threadIdx.x;
    if (row >= seq_len) return;
    const size_t base = ((size_t)blockIdx.z * num_heads + blockIdx.y) * seq_len * HEAD_DIM;
    float acc[HEAD_DIM] = {}, top = -INFINITY, total = 0.f;
    for (int j = 0; j <= row; ++j) {
        float score = 0.f;
        for (int x = 0; x < HEAD_DIM; ++x) score += Q[base + (size_t)row * HEAD_DIM + x] * K[base + (size_t)j * HEAD_DIM + x];
        score *= scale;
        const float next = fmaxf(top, score), before = expf(top - next), weight = expf(score - next);
        total = total * before + weight;
        for (int x = 0; x < HEAD_DIM; ++x) acc[x] = acc[x] * before + weight * V[base + (size_t)j * HEAD_DIM + x];
        top = next;
    }
    for (int x = 0; x < HEAD_DIM; ++x) O[base + (size_t)row * HEAD_DIM + x] = acc[x] / total;
}

int main(int argc, char** argv) {
    int batch_size = 2, num_heads = 8;
    int seq_len = argc > 1 ? atoi(argv[1]) : 1024;
    size_t count = (size_t)batch_size * num_heads * seq_len * HEAD_DIM;
    std::vector<float> host(count, 1.f);
    float *d_Q, *d_K, *d_V, *d_O;
    cudaMalloc(&d_Q, count * sizeof(float));
    cudaMalloc(&d_K, count * sizeof(float));
    cudaMalloc(&d_V, count * sizeof(float));
    cudaMalloc(&d_O, count * sizeof(float));
    cudaMemcpy(d_Q, host.data(), count * sizeof(float), cudaMemcpyHostToDevice);
    dim3 threads(BLOCK_M);
    dim3 blocks(CEIL_DIV(seq_len, BLOCK_M), num_heads, batch_size);
    causal_rows<<<blocks, threads>>>(d_Q, d_K, d_V, d_O, seq_len, num_heads, 1.0f / sqrtf((float)HEAD_DIM));
    cudaDeviceSynchronize();
    printf("done\n");
    return 0;
}
