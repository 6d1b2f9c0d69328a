// One thread per query row: q and o in registers, K and V in shared memory, scores of a tile in registers.
#define TILE_Q 64
#define TILE_K 16
#define CEIL(a, b) (((a) + (b)-1) / (b))

template <int HEAD>
__global__ void attend(float* out, const float* keys, const float* queries, const float* values, int nq, int nk, int nheads,
                       float factor) {
  __shared__ float kt[TILE_K][HEAD];
  __shared__ float vt[TILE_K][HEAD];
  const int batch = blockIdx.y / nheads, head = blockIdx.y % nheads;
  const int me = blockIdx.x * TILE_Q + threadIdx.x;
  queries += (size_t)(batch * nheads + head) * nq * HEAD;
  keys += (size_t)(batch * nheads + head) * nk * HEAD;
  values += (size_t)(batch * nheads + head) * nk * HEAD;
  out += (size_t)(batch * nheads + head) * nq * HEAD;
  float q[HEAD], acc[HEAD];
  for (int d = 0; d < HEAD; d++) {
    q[d] = me < nq ? queries[(size_t)me * HEAD + d] * factor : 0.0f;
    acc[d] = 0.0f;
  }
  float big = -1e30f, total = 0.0f;
  for (int t = 0; t < CEIL(nk, TILE_K); t++) {
    for (int x = threadIdx.x; x < TILE_K * HEAD; x += blockDim.x) {
      int r = x / HEAD, c = x % HEAD;
      int key = t * TILE_K + r;
      kt[r][c] = key < nk ? keys[(size_t)key * HEAD + c] : 0.0f;
      vt[r][c] = key < nk ? values[(size_t)key * HEAD + c] : 0.0f;
    }
    __syncthreads();
    float sc[TILE_K];
    float newbig = big;
    for (int j = 0; j < TILE_K; j++) {
      float sum = 0.0f;
      for (int d = 0; d < HEAD; d++) sum += q[d] * kt[j][d];
      if (t * TILE_K + j >= nk) sum = -1e30f;
      sc[j] = sum;
      newbig = fmaxf(newbig, sc[j]);
    }
    float shrink = __expf(big - newbig);
    total *= shrink;
    for (int d = 0; d < HEAD; d++) acc[d] *= shrink;
    for (int j = 0; j < TILE_K; j++) {
      float e = __expf(sc[j] - newbig);
      sc[j] = e;
      total += e;
    }
    for (int d = 0; d < HEAD; d++) {
      float sum = acc[d];
      for (int j = 0; j < TILE_K; j++) sum += sc[j] * vt[j][d];
      acc[d] = sum;
    }
    big = newbig;
    __syncthreads();
  }
  if (me < nq) {
    for (int d = 0; d < HEAD; d++) out[(size_t)me * HEAD + d] = acc[d] / total;
  }
}

void run(float* o, const float* k, const float* q, const float* v, int b, int nq, int nk, int h, float f) {
  dim3 grid(CEIL(nq, TILE_Q), b * h);
  attend<32><<<grid, TILE_Q>>>(o, k, q, v, nq, nk, h, f);
}
