// All parameters in a struct, filled by a launcher that takes tensors.
#include <c10/cuda/CUDAGuard.h>
#include <cuda_fp16.h>
#include <torch/python.h>

struct Params {
    void* __restrict__ q;
    void* __restrict__ k;
    void* __restrict__ v;
    void* __restrict__ o;
    float* __restrict__ softmax_lse;
    int64_t q_batch, k_batch, v_batch, o_batch;
    int q_row, k_row, v_row, o_row, q_head, k_head, v_head, o_head;
    int queries, keys, group, heads, queries_rounded;
    float scale, keep;
    bool causal;
};

__global__ void struct_rows(const __grid_constant__ Params p) {
    const int row = blockIdx.x * 32 + threadIdx.x, batch = blockIdx.y, head = blockIdx.z;
    if (row >= p.queries) return;
    const __half* q = (const __half*)p.q + batch * p.q_batch + row * p.q_row + head * p.q_head;
    const __half* k = (const __half*)p.k + batch * p.k_batch + (head / p.group) * p.k_head;
    const __half* v = (const __half*)p.v + batch * p.v_batch + (head / p.group) * p.v_head;
    float acc[64], top = -INFINITY, total = 0.f;
    for (int x = 0; x < 64; ++x) acc[x] = 0.f;
    const int end = p.causal ? min(p.keys, row + 1 + p.keys - p.queries) : p.keys;
    for (int j = 0; j < end; ++j) {
        float score = 0.f;
        for (int x = 0; x < 64; ++x) score += __half2float(q[x]) * __half2float(k[(int64_t)j * p.k_row + x]);
        score *= p.scale;
        const float next = fmaxf(top, score), before = __expf(top - next), weight = __expf(score - next);
        total = total * before + weight;
        for (int x = 0; x < 64; ++x) acc[x] = acc[x] * before + weight * __half2float(v[(int64_t)j * p.v_row + x]);
        top = next;
    }
    __half* o = (__half*)p.o + batch * p.o_batch + row * p.o_row + head * p.o_head;
    for (int x = 0; x < 64; ++x) o[x] = __float2half(acc[x] / total * p.keep);
    p.softmax_lse[((int64_t)batch * p.heads + head) * p.queries + row] = top + logf(total);
}

static void launch(const Params& params, int batch, cudaStream_t stream) {
    dim3 grid((params.queries + 31) / 32, batch, params.heads);
    struct_rows<<<grid, 32, 0, stream>>>(params);
}

std::vector<at::Tensor> mha_fwd(at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                std::optional<at::Tensor>& out_, const float p_dropout, const float softmax_scale,
                                bool is_causal) {
    TORCH_CHECK(q.dtype() == torch::kFloat16, "half only");
    TORCH_CHECK(q.stride(-1) == 1 && q.size(3) == 64, "64 columns");
    const int batch = q.size(0), queries = q.size(1), heads = q.size(2), keys = k.size(1), kv_heads = k.size(2);
    TORCH_CHECK(heads % kv_heads == 0, "whole groups");
    at::cuda::CUDAGuard guard(q.device());
    at::Tensor out = out_.has_value() ? out_.value() : torch::empty_like(q);
    auto lse = torch::empty({batch, heads, queries}, q.options().dtype(at::kFloat));
    Params p = {};
    p.q = q.data_ptr(), p.k = k.data_ptr(), p.v = v.data_ptr(), p.o = out.data_ptr();
    p.softmax_lse = lse.data_ptr<float>();
    p.q_batch = q.stride(0), p.k_batch = k.stride(0), p.v_batch = v.stride(0), p.o_batch = out.stride(0);
    p.q_row = q.stride(1), p.k_row = k.stride(1), p.v_row = v.stride(1), p.o_row = out.stride(1);
    p.q_head = q.stride(2), p.k_head = k.stride(2), p.v_head = v.stride(2), p.o_head = out.stride(2);
    p.queries = queries, p.keys = keys, p.group = heads / kv_heads, p.heads = heads;
    p.queries_rounded = (queries + 127) / 128 * 128;
    p.scale = softmax_scale, p.keep = 1.f - p_dropout, p.causal = is_causal;
    launch(p, batch, at::cuda::getCurrentCUDAStream().stream());
    return {out, lse};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "attention with a struct";
    m.def("fwd", &mha_fwd, "forward");
}
