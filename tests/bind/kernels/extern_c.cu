// A kernel alone, without any host code, named as a compiler of another language would: nothing but names to go by.
#include <cuda_bf16.h>

extern "C" __global__ void __launch_bounds__(128)
    attn_fwd(const __nv_bfloat16* q_ptr, const __nv_bfloat16* k_ptr, const __nv_bfloat16* v_ptr, float sm_scale,
             __nv_bfloat16* out_ptr, float* lse_ptr, int stride_qb, int stride_qh, int stride_qm, int stride_kb,
             int stride_kh, int stride_kn, int stride_vb, int stride_vh, int stride_vn, int stride_ob, int stride_oh,
             int stride_om, int num_heads, int seqlen_q, int seqlen_k) {
    constexpr int HEAD_DIM = 64;
    const int row = blockIdx.x * 128 + threadIdx.x, batch = blockIdx.y / num_heads, head = blockIdx.y % num_heads;
    if (row >= seqlen_q) return;
    const __nv_bfloat16* q = q_ptr + (long long)batch * stride_qb + head * stride_qh + row * stride_qm;
    const __nv_bfloat16* k = k_ptr + (long long)batch * stride_kb + head * stride_kh;
    const __nv_bfloat16* v = v_ptr + (long long)batch * stride_vb + head * stride_vh;
    float acc[HEAD_DIM], top = -__int_as_float(0x7f800000), total = 0.f;
    for (int x = 0; x < HEAD_DIM; ++x) acc[x] = 0.f;
    for (int j = 0; j < seqlen_k; ++j) {
        float score = 0.f;
        for (int x = 0; x < HEAD_DIM; ++x) score += __bfloat162float(q[x]) * __bfloat162float(k[j * stride_kn + x]);
        score *= sm_scale;
        const float next = fmaxf(top, score), before = __expf(top - next), weight = __expf(score - next);
        total = total * before + weight;
        for (int x = 0; x < HEAD_DIM; ++x) acc[x] = acc[x] * before + weight * __bfloat162float(v[j * stride_vn + x]);
        top = next;
    }
    __nv_bfloat16* o = out_ptr + (long long)batch * stride_ob + head * stride_oh + row * stride_om;
    for (int x = 0; x < HEAD_DIM; ++x) o[x] = __float2bfloat16(acc[x] / total);
    lse_ptr[((long long)batch * num_heads + head) * seqlen_q + row] = top + __logf(total);
}
