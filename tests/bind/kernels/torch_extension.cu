// A PyTorch extension: one warp of threads per tile of 32 rows, K and V in tiles of 32 through shared memory.
#include <cuda.h>
#include <cuda_runtime.h>
#include <torch/extension.h>

#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")

__global__ void attention_rows(const float* q, const float* k, const float* v, int n, int m, int d, int tiles,
                               float factor, float* out) {
    extern __shared__ float memory[];
    const int columns = 32;
    float* keys = memory;
    float* values = memory + columns * d;
    float* own = memory + 2 * columns * d + threadIdx.x * d;  // the row's unnormalised output
    const int head = blockIdx.x * gridDim.y + blockIdx.y;
    const int row = blockIdx.z * blockDim.x + threadIdx.x;
    const float* rows = q + (size_t)head * n * d;
    float top = -INFINITY, total = 0.f;
    for (int x = 0; x < d; ++x) own[x] = 0.f;
    for (int tile = 0; tile < tiles; ++tile) {
        for (int at = threadIdx.x; at < columns * d; at += blockDim.x) {
            const bool inside = tile * columns + at / d < m;
            keys[at] = inside ? k[((size_t)head * m + tile * columns) * d + at] : 0.f;
            values[at] = inside ? v[((size_t)head * m + tile * columns) * d + at] : 0.f;
        }
        __syncthreads();
        if (row < n) {
            for (int j = 0; j < columns && tile * columns + j < m; ++j) {
                float score = 0.f;
                for (int x = 0; x < d; ++x) score += rows[(size_t)row * d + x] * keys[j * d + x];
                score *= factor;
                const float next = fmaxf(top, score);
                const float before = __expf(top - next), weight = __expf(score - next);
                total = total * before + weight;
                for (int x = 0; x < d; ++x) own[x] = own[x] * before + weight * values[j * d + x];
                top = next;
            }
        }
        __syncthreads();
    }
    if (row < n)
        for (int x = 0; x < d; ++x) out[((size_t)head * n + row) * d + x] = own[x] / total;
}

torch::Tensor forward(torch::Tensor a, torch::Tensor b, torch::Tensor c) {
    CHECK_INPUT(a);
    CHECK_INPUT(b);
    CHECK_INPUT(c);
    const int batch = a.size(0), heads = a.size(1), rows = a.size(2), width = a.size(3), keys = b.size(2);
    TORCH_CHECK(b.size(1) == heads, "one key head for each query head");
    auto result = torch::empty_like(a);
    const int threads = 32;
    const int bytes = (2 * 32 * width + threads * width) * sizeof(float);
    dim3 grid(batch, heads, (rows + threads - 1) / threads);
    attention_rows<<<grid, threads, bytes>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), rows, keys,
                                             width, (keys + 31) / 32, 1.0f / std::sqrt((float)width),
                                             result.data_ptr<float>());
    return result;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "attention"); }
