// A two-dimensional block: thread (tx, ty) computes S[ty][tx]; scores, probabilities and row statistics in shared memory.
constexpr int kRows = 16;
constexpr int kCols = 16;
constexpr int kDim = 32;

__global__ void attention_tile(const float *__restrict__ q, const float *__restrict__ k, const float *__restrict__ v, float *__restrict__ o,
                               float *__restrict__ lse, int seq_q, int seq_k, int num_heads, float scale)
{
    __shared__ float sq[kRows][kDim + 1], sk[kCols][kDim + 1], sv[kCols][kDim + 1];
    __shared__ float ss[kRows][kCols + 1];
    __shared__ float row_m[kRows], row_l[kRows], row_c[kRows];

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.x * kRows + ty;
    const long base = ((long)blockIdx.z * num_heads + blockIdx.y);

    for (int d = tx; d < kDim; d += kCols)
    {
        sq[ty][d] = row < seq_q ? q[(base * seq_q + row) * kDim + d] : 0.f;
    }
    float acc[kDim / kCols];
    for (int c = 0; c < kDim / kCols; ++c)
        acc[c] = 0.f;
    float m = -INFINITY, l = 0.f;

    for (int kv = 0; kv < seq_k; kv += kCols)
    {
        __syncthreads();
        for (int d = tx; d < kDim; d += kCols)
        {
            const int key = kv + ty;
            if (key < seq_k)
            {
                sk[ty][d] = k[(base * seq_k + key) * kDim + d];
                sv[ty][d] = v[(base * seq_k + key) * kDim + d];
            }
            else
            {
                sk[ty][d] = 0.f;
                sv[ty][d] = 0.f;
            }
        }
        __syncthreads();
        float s = 0.f;
        for (int d = 0; d < kDim; ++d)
            s = fmaf(sq[ty][d], sk[tx][d], s);
        s *= scale;
        if (kv + tx >= seq_k)
            s = -INFINITY;
        float mx = s;
        for (int w = 8; w > 0; w >>= 1)
            mx = fmaxf(mx, __shfl_xor_sync(0xffffffff, mx, w));
        const float m_next = fmaxf(m, mx);
        const float p = expf(s - m_next);
        float sum = p;
        for (int w = 8; w > 0; w >>= 1)
            sum += __shfl_xor_sync(0xffffffff, sum, w);
        const float fix = expf(m - m_next);
        l = l * fix + sum;
        m = m_next;
        ss[ty][tx] = p;
        __syncthreads();
        for (int c = 0; c < kDim / kCols; ++c)
        {
            float t = acc[c] * fix;
            for (int j = 0; j < kCols; ++j)
                t += ss[ty][j] * sv[j][c * kCols + tx];
            acc[c] = t;
        }
    }
    if (row < seq_q)
    {
        for (int c = 0; c < kDim / kCols; ++c)
            o[(base * seq_q + row) * kDim + c * kCols + tx] = acc[c] / l;
        if (tx == 0)
            lse[base * seq_q + row] = m + logf(l);
    }
}

void launch(const float *q, const float *k, const float *v, float *o, float *lse, int b, int h, int sq, int sk, float scale)
{
    dim3 block(kCols, kRows);
    dim3 grid((sq + kRows - 1) / kRows, h, b);
    attention_tile<<<grid, block>>>(q, k, v, o, lse, sq, sk, h, scale);
}
