// No softmax: a weight is max(s, 0) squared, and the row is divided by the sum of its weights. One thread for each row.
#define ROWS 64
#define KEYS 16
#define WIDTH 32

__global__ void relu_attention(const float* queries, const float* keys, const float* values, float* result, int rows, int n,
                               float factor) {
  __shared__ float kb[KEYS][WIDTH], vb[KEYS][WIDTH];
  const int row = blockIdx.x * ROWS + threadIdx.x;
  const size_t head = blockIdx.y;
  float query[WIDTH], sum[WIDTH];
  for (int d = 0; d < WIDTH; ++d) {
    query[d] = row < rows ? queries[(head * rows + row) * WIDTH + d] : 0.0f;
    sum[d] = 0.0f;
  }
  float total = 0.0f;
  for (int first = 0; first < n; first += KEYS) {
    __syncthreads();
    for (int x = threadIdx.x; x < KEYS * WIDTH; x += ROWS) {
      const int key = first + x / WIDTH;
      kb[x / WIDTH][x % WIDTH] = key < n ? keys[(head * n + key) * WIDTH + x % WIDTH] : 0.0f;
      vb[x / WIDTH][x % WIDTH] = key < n ? values[(head * n + key) * WIDTH + x % WIDTH] : 0.0f;
    }
    __syncthreads();
    float weight[KEYS];
    for (int c = 0; c < KEYS; ++c) {
      float s = 0.0f;
      for (int d = 0; d < WIDTH; ++d) s += query[d] * kb[c][d];
      weight[c] = s;
    }
    for (int c = 0; c < KEYS; ++c) {
      const float t = fmaxf(weight[c] * factor, 0.0f);
      weight[c] = first + c < n ? t * t : 0.0f;
    }
    for (int c = 0; c < KEYS; ++c) total += weight[c];
    for (int d = 0; d < WIDTH; ++d) {
      for (int c = 0; c < KEYS; ++c) sum[d] += weight[c] * vb[c][d];
    }
  }
  if (row < rows) {
    for (int d = 0; d < WIDTH; ++d) result[(head * rows + row) * WIDTH + d] = sum[d] / (total + 1e-6f);
  }
}

void start(const float* q, const float* k, const float* v, float* o, int heads, int rows, int n, float factor) {
  relu_attention<<<dim3((rows + ROWS - 1) / ROWS, heads), ROWS>>>(q, k, v, o, rows, n, factor);
}
