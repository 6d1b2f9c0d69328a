// A launcher that chooses a template instance by a macro of switches; rows of [B, S, H, D] by their strides.
#include <ATen/cuda/CUDAContext.h>
#include <cuda_fp16.h>
#include <torch/extension.h>

namespace attention {

#define WIDTH_SWITCH(WIDTH, NAME, ...)          \
    [&] {                                       \
        if (WIDTH == 64) {                      \
            constexpr static int NAME = 64;     \
            return __VA_ARGS__();               \
        } else if (WIDTH == 128) {              \
            constexpr static int NAME = 128;    \
            return __VA_ARGS__();               \
        }                                       \
        TORCH_CHECK(false, "width 64 or 128");  \
    }()

template <typename T, int kWidth, bool kCausal>
__global__ void __launch_bounds__(64)
    rows_kernel(T* __restrict__ out, const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                int64_t q_batch, int64_t q_row, int64_t q_head, int64_t k_batch, int64_t k_row, int64_t k_head,
                int queries, int keys, int group, float factor_log2) {
    const int row = blockIdx.x * 64 + threadIdx.x, head = blockIdx.y, batch = blockIdx.z;
    if (row >= queries) return;
    const T* own = q + batch * q_batch + row * q_row + head * q_head;
    const T* k0 = k + batch * k_batch + (head / group) * k_head;
    const T* v0 = v + batch * k_batch + (head / group) * k_head;
    float sum[kWidth], top = -INFINITY, total = 0.f;
    for (int x = 0; x < kWidth; ++x) sum[x] = 0.f;
    const int end = kCausal ? min(keys, row + keys - queries + 1) : keys;
    for (int j = 0; j < end; ++j) {
        float score = 0.f;
        for (int x = 0; x < kWidth; ++x) score += float(own[x]) * float(k0[j * k_row + x]);
        score *= factor_log2;
        const float next = fmaxf(top, score), before = exp2f(top - next), weight = exp2f(score - next);
        total = total * before + weight;
        for (int x = 0; x < kWidth; ++x) sum[x] = sum[x] * before + weight * float(v0[j * k_row + x]);
        top = next;
    }
    T* to = out + ((int64_t(batch) * queries + row) * gridDim.y + head) * kWidth;
    for (int x = 0; x < kWidth; ++x) to[x] = T(total > 0.f ? sum[x] / total : 0.f);
}

template <typename T>
void run(at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, float softmax_scale,
         bool causal) {
    const int queries = q.size(1), keys = k.size(1);
    const dim3 grid((queries + 63) / 64, q.size(2), q.size(0));
    WIDTH_SWITCH(q.size(3), kWidth, [&] {
        auto kernel = causal ? &rows_kernel<T, kWidth, true> : &rows_kernel<T, kWidth, false>;
        kernel<<<grid, 64, 0, at::cuda::getCurrentCUDAStream()>>>(
            static_cast<T*>(out.data_ptr()), static_cast<const T*>(q.data_ptr()), static_cast<const T*>(k.data_ptr()),
            static_cast<const T*>(v.data_ptr()), q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1),
            k.stride(2), queries, keys, q.size(2) / k.size(2), softmax_scale * float(M_LOG2E));
    });
}

at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double softmax_scale, bool causal) {
    TORCH_CHECK(q.scalar_type() == at::ScalarType::Half, "half");
    TORCH_CHECK(k.strides() == v.strides(), "k and v have one layout");
    auto out = torch::empty(q.sizes(), q.options());
    run<__half>(out, q, k, v, softmax_scale, causal);
    return out;
}

}  // namespace attention

TORCH_LIBRARY(attention, m) { m.def("forward", &attention::forward); }
