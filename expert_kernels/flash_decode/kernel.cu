// Attention for decoding, sm_80 and later: few query rows against a long KV cache, split evenly over the GPU.
//
//   O = softmax(scale * Q K^T + mask) V        LSE = log(sum_j exp(scale * s_ij))        (natural log, fp32)
//
// Q: [B, H, Sq, D]; O: [B, H, Sq, DV]; LSE: [B, H, Sq], contiguous. Query head h reads KV head h / (H / Hkv).
// K: [B, Hkv, Sk, D]; V: [B, Hkv, Sk, DV]. With a block table [B, pages] they are caches of pages instead,
// [number of pages, Hkv, page size, D or DV], and key j of entry b lies in row j % page size of page table[b][j / page
// size]; the page size is a power of two from 16. Any strides (elements), last dimension contiguous, rows 16-byte
// aligned. kv_lengths[b], where given, is the number of keys of entry b, else that is Sk. causal aligns to the bottom
// right: query i sees keys j <= i + length - Sq. A row that sees no key gets O = 0, LSE = -inf.
//
// The bytes of K and V are what a launch costs, so they are read once and by every SM alike:
//   - The query heads of one KV head, times Sq, are packed into the rows of one tile: row = head in group * Sq + query.
//   - All KV tiles of all entries and KV heads form one list, cut into equal runs, one per CTA. A run may end inside
//     the keys of a head: each CTA then writes a partial (O, m, l), and the last of them to arrive adds them up.
//   - Every warp copies 16 keys of a tile and keeps kStages tiles in flight, across the borders of heads.
//
// In the m16n8 accumulator, thread (lane) holds of each 8-column block nb the elements e = 0..3 at
//   row = lane / 4 + 8 * (e / 2)        col = 8 * nb + 2 * (lane % 4) + (e & 1)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Bc = 64;      // keys per KV tile
constexpr int kWarps = 4;   // a warp copies kChunk keys of each tile
constexpr int kThreads = 32 * kWarps;
constexpr int kChunk = Bc / kWarps;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kLn2 = 0.6931471805599453f;

// A stage of the ring is a KV tile, as kWarps chunks of kChunk rows of K and kChunk rows of V; elements have two bytes.
template <int D, int DV>
constexpr int kChunkBytes = kChunk * (D + DV) * 2;
template <int D, int DV>
constexpr int kStageBytes = kWarps * kChunkBytes<D, DV>;
// 64 KiB in flight, and two CTAs per SM. More is no faster on an H200: requests only wait for longer.
template <int D, int DV>
constexpr int kStages = 65536 / kStageBytes<D, DV> > 2 ? 65536 / kStageBytes<D, DV> : 2;
template <int D, int DV>
constexpr int kSmemBytes = kStages<D, DV> * kStageBytes<D, DV>;

// ---------------------------------------------------------------------------------------------------------------- PTX

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Copies 16 bytes, or writes 16 zero bytes without touching src when `bytes` is 0. `policy` is for the L2 cache.
__device__ __forceinline__ void cp_async_16(unsigned dst, const void* src, int bytes, unsigned long long policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(dst), "l"(src), "r"(bytes),
               "l"(policy)
               : "memory");
}

// For lines that no one reads again: they do not drive others, the code's among them, out of the L2 cache.
__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Orders this thread's writes before, and its reads behind, what other CTAs do.
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}

// c += A B for one 16x8 block with k = 16; A is row-major, B is column-major.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                                            unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two floats to T and packs them, lo in the low half.
template <typename T>
__device__ __forceinline__ unsigned pack2(float lo, float hi);

template <>
__device__ __forceinline__ unsigned pack2<__half>(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

template <>
__device__ __forceinline__ unsigned pack2<__nv_bfloat16>(float lo, float hi) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// Waits for the `Warps` warps that share the keys of group `group`, and makes their writes to shared memory visible.
template <int Warps>
__device__ __forceinline__ void group_sync(int group) {
  if (Warps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(32 * Warps) : "memory");
  }
}

// ------------------------------------------------------------------------------------------------------------ problem

// The arguments of a launch, and what follows from them.
template <typename T>
struct Problem {
  const T* q;
  const T* k;
  const T* v;
  T* o;
  float* lse;
  float* partials;
  int* arrived;
  const int* kv_lengths;   // or null
  const int* block_table;  // or null
  long long q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row, table_b;
  int page_shift, page_mask;  // of a key; without pages all bits of it are its row
  int batch, sq, sk, heads, kv_heads, group;
  int rows;    // group * sq: query rows of a KV head
  int blocks;  // of the rows; a unit is (KV head, block)
  float scale_log2;
  bool causal;
};

template <typename T>
__device__ __forceinline__ int length_of(const Problem<T>& p, int b) {
  return p.kv_lengths ? min(max(p.kv_lengths[b], 0), p.sk) : p.sk;
}

// An entry without keys has one tile, all masked: its rows must be written too.
__device__ __forceinline__ int tiles_of(int length) { return max(1, (length + Bc - 1) / Bc); }

// ----------------------------------------------------------------------------------------------------- list of tiles

// A place in the list of all tiles: entry b, KV head hk, block of rows, KV tile; `length` is the entry's.
struct Cursor {
  int b;
  int hk;
  int block;
  int tile;
  int length;
};

// Tiles of one entry.
template <typename T>
__device__ __forceinline__ int entry_tiles(const Problem<T>& p, int length) {
  return tiles_of(length) * p.kv_heads * p.blocks;
}

template <typename T>
__device__ __forceinline__ int count_tiles(const Problem<T>& p) {
  if (p.kv_lengths == nullptr) {
    return p.batch * entry_tiles(p, p.sk);
  }
  int total = 0;
#pragma unroll 1
  for (int b = threadIdx.x % 32; b < p.batch; b += 32) {
    total += entry_tiles(p, length_of(p, b));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    total += __shfl_xor_sync(kAllLanes, total, step);
  }
  return total;
}

// The entry that holds index x of the list; x becomes the index in the entry. 32 entries at a time, by a prefix sum
// over the lanes.
template <typename T>
__device__ __forceinline__ int find_entry(const Problem<T>& p, int& x) {
  if (p.kv_lengths == nullptr) {
    const int b = x / entry_tiles(p, p.sk);
    x -= b * entry_tiles(p, p.sk);
    return b;
  }
  const int lane = threadIdx.x % 32;
  for (int b0 = 0;; b0 += 32) {
    const int tiles = b0 + lane < p.batch ? entry_tiles(p, length_of(p, b0 + lane)) : 0;
    int end = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(kAllLanes, end, step);
      end += lane >= step ? left : 0;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, end > x);
    if (beyond != 0) {
      const int found = __ffs(beyond) - 1;
      x -= __shfl_sync(kAllLanes, end - tiles, found);
      return b0 + found;
    }
    x -= __shfl_sync(kAllLanes, end, 31);
  }
}

// The cursor at index x < count_tiles(p) of the list.
template <typename T>
__device__ __forceinline__ Cursor cursor_at(const Problem<T>& p, int x) {
  const int b = find_entry(p, x);
  const int length = length_of(p, b);
  const int unit = x / tiles_of(length);
  const int hk = unit / p.blocks;
  return {b, hk, unit - hk * p.blocks, x - unit * tiles_of(length), length};
}

// Moves to the next tile of the list. Behind the last one b is p.batch.
template <typename T>
__device__ __forceinline__ void advance(const Problem<T>& p, Cursor& at) {
  if (++at.tile < tiles_of(at.length)) {
    return;
  }
  at.tile = 0;
  if (++at.block < p.blocks) {
    return;
  }
  at.block = 0;
  if (++at.hk < p.kv_heads) {
    return;
  }
  at.hk = 0;
  if (++at.b < p.batch) {
    at.length = length_of(p, at.b);
  }
}

// The list cut into runs, one per CTA, the first `longer` of them one tile longer.
struct Runs {
  int ctas;
  int base;
  int longer;

  // Where all entries are as long, runs that end where units do leave fewer partial results: up to an eighth of the
  // CTAs has none then. The memory is as busy with the others.
  template <typename T>
  __device__ __forceinline__ explicit Runs(const Problem<T>& p) {
    const int units = p.batch * p.kv_heads * p.blocks;
    const int most = gridDim.x;
    ctas = most;
    if (p.kv_lengths == nullptr) {
      const int per_cta = (units + most - 1) / most;
      const int even = per_cta > 1 ? (units + per_cta - 1) / per_cta : units * (most / units);
      ctas = even >= most - most / 8 ? even : most;
    }
    const int total = count_tiles(p);
    base = total / ctas;
    longer = total - base * ctas;
  }

  // Behind the last run all are empty.
  __device__ __forceinline__ int start(int cta) const { return min(cta, ctas) * base + min(cta, longer); }
  __device__ __forceinline__ int owner(int x) const {
    const int split = longer * (base + 1);
    return x < split ? x / (base + 1) : longer + (x - split) / base;
  }
};

// -------------------------------------------------------------------------------------------------------------- tiles

// Shared tiles have rows of W columns in pieces of 16 bytes. Among the eight pieces of each 128 bytes, piece c of row r
// lies where piece c ^ (r % 8) would: the eight rows that one ldmatrix phase reads are then spread over all 32 banks.
// An address is made of that of piece 0 of the row and of the piece, so that the row's part is computed once.
template <int W>
__device__ __forceinline__ unsigned row_address(unsigned tile, int row) {
  static_assert(W % 64 == 0);
  return tile + row * (W * 2) + (row & 7) * 16;
}

__device__ __forceinline__ unsigned piece_address(unsigned row_address, int piece) {
  return (row_address ^ (piece % 8 * 16)) + piece / 8 * 128;
}

// Starts the copies of kChunk rows, eight lanes to 128 bytes of a row; rows from `rows` on become zeros.
template <typename T, int W>
__device__ __forceinline__ void load_chunk(unsigned dst, const T* src, long long stride_row, int rows,
                                           unsigned long long policy) {
  const int r = threadIdx.x % 32 / 8;
  const int piece = threadIdx.x % 8;
  src += r * stride_row + piece * 8;
#pragma unroll
  for (int r0 = 0; r0 < kChunk; r0 += 4) {
    const unsigned row = piece_address(row_address<W>(dst, r + r0), piece);
    const int bytes = r + r0 < rows ? 16 : 0;
#pragma unroll
    for (int c = 0; c < W; c += 64) {
      cp_async_16(row + c * 2, src + c, bytes, policy);
    }
    src += 4 * stride_row;
  }
}

// Where this warp's keys of the tile at `at` lie: the page, or without pages the entry. A chunk never crosses a page.
template <typename T>
__device__ __forceinline__ long long slab_of(const Problem<T>& p, const Cursor& at) {
  const int key = at.tile * Bc + threadIdx.x / 32 * kChunk;
  if (p.block_table == nullptr) {
    return at.b;
  }
  return key < at.length ? p.block_table[at.b * p.table_b + (key >> p.page_shift)] : 0;
}

// The copies of a run, ahead of its products. `slab` belongs to the tile at `at`: it is looked up while the copies of
// the tile before are under way.
template <typename T, int D, int DV>
struct Loader {
  Cursor at;
  int left;  // tiles of the run that have not been started
  long long slab;
  unsigned long long policy;

  // Starts the copies of this warp's keys of the next tile, if there is one, into its chunk of a stage, as one group of
  // this thread.
  __device__ __forceinline__ void start_next(const Problem<T>& p, unsigned stage) {
    if (left > 0) {
      const int warp = threadIdx.x / 32;
      const int key = at.tile * Bc + warp * kChunk;
      const int rows = at.length - key;
      const int row = rows > 0 ? key & p.page_mask : 0;
      const unsigned dst = stage + warp * kChunkBytes<D, DV>;
      const T* k = p.k + slab * p.k_b + at.hk * p.k_h + row * p.k_row;
      const T* v = p.v + slab * p.v_b + at.hk * p.v_h + row * p.v_row;
      load_chunk<T, D>(dst, k, p.k_row, rows, policy);
      load_chunk<T, DV>(dst + kChunk * D * 2, v, p.v_row, rows, policy);
      if (--left > 0) {
        advance(p, at);
        slab = slab_of(p, at);
      }
    }
    cp_async_commit();
  }
};

// ------------------------------------------------------------------------------------------------------------- output

// A row of a KV head's tile, as the query head and the query that it is of.
struct Row {
  int h;
  int i;

  template <typename T>
  __device__ __forceinline__ Row(const Problem<T>& p, int hk, int row) {
    const int head = row / p.sq;
    h = hk * p.group + head;
    i = row - head * p.sq;
  }
};

// O = o / l, four columns from `col` on. l == 0: the row saw no key.
template <typename T>
__device__ __forceinline__ void store_o(const Problem<T>& p, int b, int hk, int row, int col, float4 o, float l) {
  const Row at(p, hk, row);
  const float inv_l = l == 0.f ? 0.f : 1.f / l;
  T* out = p.o + b * p.o_b + at.h * p.o_h + at.i * p.o_row + col;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack2<T>(o.x * inv_l, o.y * inv_l), pack2<T>(o.z * inv_l, o.w * inv_l));
}

// LSE = scale * m + log(l)
template <typename T>
__device__ __forceinline__ void store_lse(const Problem<T>& p, int b, int hk, int row, float m, float l) {
  const Row at(p, hk, row);
  p.lse[(static_cast<long long>(b) * p.heads + at.h) * p.sq + at.i] =
      l == 0.f ? -INFINITY : m * p.scale_log2 * kLn2 + logf(l);
}

__device__ __forceinline__ float scaled_max(float m, float scale_log2) { return m == -INFINITY ? 0.f : m * scale_log2; }

// Results of a unit that are to be added up: of the groups of warps, or of the CTAs. O of result n begins at
// o + at(n), its m and l at m + at_ml(n) and l + at_ml(n).
struct Parts {
  const float* m;
  const float* l;
  const float* o;
  int count;
  int step_ml;
  int step;
  int back;

  __device__ __forceinline__ int at_ml(int n) const { return max(0, n * step_ml - back); }
  __device__ __forceinline__ int at(int n) const { return max(0, n * step - back); }
};

// m and l over all parts of row `warp + kWarps * i` at [i], in every lane of the warp; rows behind the last repeat it.
// One round of loads for all rows.
template <int N>
__device__ __forceinline__ void merge_ml(const Parts& parts, int rows, float scale_log2, float (&m)[N], float (&l)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    m[i] = -INFINITY;
    l[i] = 0.f;
  }
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < parts.count; n += 32) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = parts.at_ml(n) + min(static_cast<int>(threadIdx.x / 32) + kWarps * i, rows - 1);
      const float m_new = fmaxf(m[i], parts.m[at]);
      const float m_scaled = scaled_max(m_new, scale_log2);
      l[i] = l[i] * exp2_approx(m[i] * scale_log2 - m_scaled) +
             parts.l[at] * exp2_approx(parts.m[at] * scale_log2 - m_scaled);
      m[i] = m_new;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float m_all = m[i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      m_all = fmaxf(m_all, __shfl_xor_sync(kAllLanes, m_all, step));
    }
    l[i] *= exp2_approx(m[i] * scale_log2 - scaled_max(m_all, scale_log2));
    m[i] = m_all;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      l[i] += __shfl_xor_sync(kAllLanes, l[i], step);
    }
  }
}

// Four columns of O of all parts of a row, the first of them at `offset` of a part's O.
__device__ __forceinline__ float4 merge_o(const Parts& parts, int row, int offset, float m, float scale_log2) {
  const float m_scaled = scaled_max(m, scale_log2);
  float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
  for (int n = 0; n < parts.count; ++n) {
    const float4 part = *reinterpret_cast<const float4*>(parts.o + parts.at(n) + offset);
    const float weight = exp2_approx(parts.m[parts.at_ml(n) + row] * scale_log2 - m_scaled);
    o.x += weight * part.x;
    o.y += weight * part.y;
    o.z += weight * part.z;
    o.w += weight * part.w;
  }
  return o;
}

// A partial result of a unit in global memory: O [Rows, DV], m [Rows], l [Rows]. A CTA has two: of the unit that began
// before its run, and of the unit that goes on behind it.
template <int Rows, int DV>
constexpr int kPartial = Rows * (DV + 2);

// ------------------------------------------------------------------------------------------------------------- kernel

// State of the online softmax of one warp: 16 rows against its keys. Per row r of this thread: m = max of raw scores,
// l = this thread's share of the row sum, o = unnormalised output.
template <int DV>
struct Softmax {
  float m[2];
  float l[2];
  float o[DV / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = -INFINITY;
      l[r] = 0.f;
    }
#pragma unroll
    for (int db = 0; db < DV / 8; ++db) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        o[db][e] = 0.f;
      }
    }
  }
};

// The A operands of the 16 rows from `row0` on, straight from global memory. Rows behind the last repeat it: no one
// looks at what becomes of them.
template <typename T, int D>
__device__ __forceinline__ void load_q(const Problem<T>& p, int b, int hk, int row0, unsigned (&qf)[D / 16][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Row at(p, hk, min(row0 + lane / 4 + 8 * r, p.rows - 1));
    const T* q = p.q + b * p.q_b + at.h * p.q_h + at.i * p.q_row + 2 * (lane % 4);
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      qf[kk][r] = *reinterpret_cast<const unsigned*>(q + kk * 16);
      qf[kk][2 + r] = *reinterpret_cast<const unsigned*>(q + kk * 16 + 8);
    }
  }
}

// One step of the online softmax: the Chunks * kChunk keys from key0 on, whose chunks begin at `keys`.
template <typename T, int D, int DV, int Chunks>
__device__ __forceinline__ void attend(const Problem<T>& p, unsigned keys, int key0, int length, int row0,
                                       const unsigned (&qf)[D / 16][4], Softmax<DV>& state) {
  const int lane = threadIdx.x % 32;

  // S = Q K^T
  float s[2 * Chunks][4];
#pragma unroll
  for (int nb = 0; nb < 2 * Chunks; ++nb) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[nb][e] = 0.f;
    }
  }
  const unsigned k_row = piece_address(row_address<D>(keys, lane % 8 + 8 * (lane / 16)), lane / 8 % 2);
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk) {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      unsigned kf[4];
      ldmatrix_x4(kf, piece_address(k_row, kk * 2) + c * kChunkBytes<D, DV>);
      mma_m16n8k16<T>(s[2 * c], qf[kk], kf[0], kf[1]);
      mma_m16n8k16<T>(s[2 * c + 1], qf[kk], kf[2], kf[3]);
    }
  }

  // S = -inf where j >= length or, when causal, j > i + length - Sq; only the last keys of an entry pay for it.
  if (key0 + Chunks * kChunk > length - (p.causal ? p.sq - 1 : 0)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = (row0 + lane / 4 + 8 * r) % p.sq;
      const int end = p.causal ? length - p.sq + i + 1 : length;
#pragma unroll
      for (int nb = 0; nb < 2 * Chunks; ++nb) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (key0 + nb * 8 + 2 * (lane % 4) + c >= end) {
            s[nb][2 * r + c] = -INFINITY;
          }
        }
      }
    }
  }

  // m_new = max(m, rowmax(S));  P = exp(scale * (S - m_new));  l = correction * l + rowsum(P);  O = correction * O
  // A row that has seen no key yet keeps m = -inf; subtracting 0 instead of -inf gives P = 0 there and no NaN.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m_new = state.m[r];
#pragma unroll
    for (int nb = 0; nb < 2 * Chunks; ++nb) {
      m_new = fmaxf(m_new, fmaxf(s[nb][2 * r], s[nb][2 * r + 1]));
    }
    m_new = fmaxf(m_new, __shfl_xor_sync(kAllLanes, m_new, 1));
    m_new = fmaxf(m_new, __shfl_xor_sync(kAllLanes, m_new, 2));
    const float m_scaled = m_new == -INFINITY ? 0.f : m_new * p.scale_log2;
    const float correction = exp2_approx(state.m[r] * p.scale_log2 - m_scaled);
    state.m[r] = m_new;
    state.l[r] *= correction;
#pragma unroll
    for (int nb = 0; nb < 2 * Chunks; ++nb) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        s[nb][2 * r + c] = exp2_approx(s[nb][2 * r + c] * p.scale_log2 - m_scaled);
        state.l[r] += s[nb][2 * r + c];
      }
    }
#pragma unroll
    for (int db = 0; db < DV / 8; ++db) {
      state.o[db][2 * r] *= correction;
      state.o[db][2 * r + 1] *= correction;
    }
  }

  // O = O + P V: two accumulator blocks of P, rounded to T, are one A operand of 16 keys.
  const unsigned v_row = piece_address(row_address<DV>(keys + kChunk * D * 2, lane % 16), lane / 16);
#pragma unroll
  for (int c = 0; c < Chunks; ++c) {
    const unsigned pf[4] = {
        pack2<T>(s[2 * c][0], s[2 * c][1]),
        pack2<T>(s[2 * c][2], s[2 * c][3]),
        pack2<T>(s[2 * c + 1][0], s[2 * c + 1][1]),
        pack2<T>(s[2 * c + 1][2], s[2 * c + 1][3]),
    };
#pragma unroll
    for (int np = 0; np < DV / 16; ++np) {  // 16 columns of V per ldmatrix
      unsigned vf[4];
      ldmatrix_x4_trans(vf, piece_address(v_row, np * 2) + c * kChunkBytes<D, DV>);
      mma_m16n8k16<T>(state.o[2 * np], pf, vf[0], vf[1]);
      mma_m16n8k16<T>(state.o[2 * np + 1], pf, vf[2], vf[3]);
    }
  }
}

// Column of the shared copy of O that holds column `col`: spreads the rows that a warp writes at once over the banks.
__device__ __forceinline__ int spread(int row, int col) { return col ^ ((row & 3) * 8); }

// What the warps of a CTA tell each other at the end of a unit, beside O.
struct Sums {
  float m[16 * kWarps];  // [groups of warps][rows], as O
  float l[16 * kWarps];
  float m_all[16 * kWarps];  // [rows]: over all that is added up
  float l_all[16 * kWarps];
  bool last_to_arrive;
};

// The end of a unit, or of the run in it: adds up the warps' results in the stage that has just been read, and writes
// O and LSE, or a partial result where other CTAs have keys of the unit, too; the last of these adds those up.
// x: index of the unit's first tile in the list.
template <typename T, int D, int DV, int Rows>
__device__ __forceinline__ void finish_unit(const Problem<T>& p, const Cursor& at, int x, const Runs& runs,
                                            unsigned char* stage, Sums& sums, Softmax<DV>& state) {
  constexpr int kRowWarps = Rows / 16;
  constexpr int kGroups = kWarps / kRowWarps;
  constexpr int kGroupFloats = kRowWarps * kChunkBytes<D, DV> / 4;
  constexpr int kQuads = DV / 4;  // columns of a row, by four
  constexpr int kPart = kPartial<Rows, DV>;
  static_assert(16 * DV * 4 <= kChunkBytes<D, DV>, "O of every warp fits into its chunk of a stage");

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int row0 = at.block * Rows;
  const int rows = min(Rows, p.rows - row0);

  // A warp writes into chunks that only its group reads, and every warp of that is done with them.
  float* o_of = reinterpret_cast<float*>(stage);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * 16 + lane / 4 + 8 * r;
    state.l[r] += __shfl_xor_sync(kAllLanes, state.l[r], 1);
    state.l[r] += __shfl_xor_sync(kAllLanes, state.l[r], 2);
    if (lane % 4 == 0) {
      sums.m[row] = state.m[r];
      sums.l[row] = state.l[r];
    }
    float* o = o_of + warp / kRowWarps * kGroupFloats + row % Rows * DV;
#pragma unroll
    for (int db = 0; db < DV / 8; ++db) {
      *reinterpret_cast<float2*>(o + spread(row, db * 8 + 2 * (lane % 4))) =
          make_float2(state.o[db][2 * r], state.o[db][2 * r + 1]);
    }
  }
  __syncthreads();

  // First the sum over the groups of warps. If other CTAs have keys of the unit, too, it is a partial result, and the
  // last of them to arrive sums over those. They are counted where the first CTA is: one unit at most goes on behind a
  // run.
  const int first = runs.owner(x);
  const int ctas = runs.owner(x + tiles_of(at.length) - 1) - first + 1;
  const int cta = blockIdx.x;
  float* mine = p.partials + (2LL * cta + (cta == first ? 1 : 0)) * kPart;
  Parts parts = {sums.m, sums.l, o_of, kGroups, Rows, kGroupFloats, 0};
  for (bool over_ctas = false;; over_ctas = true) {
    const bool whole = over_ctas || ctas == 1;
    float m[Rows / kWarps];
    float l[Rows / kWarps];
    merge_ml(parts, rows, p.scale_log2, m, l);
#pragma unroll
    for (int i = 0; i < Rows / kWarps; ++i) {
      const int row = warp + kWarps * i;
      if (lane == 0 && row < rows) {
        sums.m_all[row] = m[i];
        sums.l_all[row] = l[i];
        if (whole) {
          store_lse(p, at.b, at.hk, row0 + row, m[i], l[i]);
        } else {
          mine[Rows * DV + row] = m[i];
          mine[Rows * DV + Rows + row] = l[i];
        }
      }
    }
    __syncthreads();
    for (int idx = threadIdx.x; idx < rows * kQuads; idx += kThreads) {
      const int row = idx / kQuads;
      const int col = idx % kQuads * 4;
      const int offset = row * DV + (over_ctas ? col : spread(row, col));
      const float4 o = merge_o(parts, row, offset, sums.m_all[row], p.scale_log2);
      if (whole) {
        store_o(p, at.b, at.hk, row0 + row, col, o, sums.l_all[row]);
      } else {
        *reinterpret_cast<float4*>(mine + row * DV + col) = o;
      }
    }
    if (whole) {
      break;
    }
    fence();
    __syncthreads();
    if (threadIdx.x == 0) {
      sums.last_to_arrive = atomicAdd(p.arrived + first, 1) == ctas - 1;
    }
    __syncthreads();
    if (!sums.last_to_arrive) {
      break;
    }
    fence();
    if (threadIdx.x == 0) {
      p.arrived[first] = 0;  // for the next launch
    }
    // The first CTA's is its second one, and of each CTA behind it its first: 1, 3, 5, ... partial results on.
    const float* all = p.partials + (2LL * first + 1) * kPart;
    parts = {all + Rows * DV, all + Rows * DV + Rows, all, ctas, 2 * kPart, 2 * kPart, kPart};
  }
  __syncthreads();
}

// A CTA's run of the list of tiles. Rows / 16 warps have 16 rows each of a unit and share their keys; the keys of a
// tile are dealt out to the groups of such warps.
template <typename T, int D, int DV, int Rows>
__device__ __forceinline__ void run_tiles(const Problem<T>& p, unsigned char* smem, Sums& sums) {
  constexpr int kRowWarps = Rows / 16;
  const int group = threadIdx.x / 32 / kRowWarps;
  const int row_warp = threadIdx.x / 32 % kRowWarps;

  const Runs runs(p);
  const int start = runs.start(blockIdx.x);
  const int tiles = runs.start(blockIdx.x + 1) - start;
  if (tiles == 0) {
    return;
  }
  Cursor at = cursor_at(p, start);
  const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  Loader<T, D, DV> loader = {at, tiles, slab_of(p, at), evict_first()};

  // Step s is for tile s of the run, and then starts the copies of tile s + kStages into the same stage; the steps
  // before 0 have none and fill the ring. Each is one group of copies.
  unsigned qf[D / 16][4];
  Softmax<DV> state;
  bool fresh = true;
  int stage = 0;
#pragma unroll 1
  for (int step = -kStages<D, DV>; step < tiles; ++step) {
    if (step >= 0) {
      const int row0 = at.block * Rows + row_warp * 16;
      if (fresh) {
        load_q<T, D>(p, at.b, at.hk, row0, qf);
        state.clear();
      }

      cp_async_wait<kStages<D, DV> - 1>();
      group_sync<kRowWarps>(group);
      const unsigned keys = ring + stage * kStageBytes<D, DV> + group * (kRowWarps * kChunkBytes<D, DV>);
      attend<T, D, DV, kRowWarps>(p, keys, at.tile * Bc + group * (kRowWarps * kChunk), at.length, row0, qf, state);
      group_sync<kRowWarps>(group);

      // The stage is free for the sum over the warps, and then for the next tile.
      fresh = step + 1 == tiles || at.tile + 1 == tiles_of(at.length);
      if (fresh) {
        finish_unit<T, D, DV, Rows>(p, at, start + step - at.tile, runs, smem + stage * kStageBytes<D, DV>, sums,
                                        state);
      }
      advance(p, at);
    }
    loader.start_next(p, ring + stage * kStageBytes<D, DV>);
    stage = stage + 1 == kStages<D, DV> ? 0 : stage + 1;
  }
}

// grid = any number of CTAs, best as many as fit on the device at once; block = kThreads, dynamic shared memory =
// kSmemBytes<D, DV>. Rows: query rows of a unit, 16, 32 or 64; best the fewest that hold H / Hkv * Sq.
// partials: room for 2 * grid * Rows * (DV + 2) floats of any contents, 16-byte aligned. arrived: `grid` ints, zero
// before the first launch; each launch leaves them zero. page_size counts only with a table.
// scale_log2 = scale * log2(e) > 0: exp(scale * s) = exp2(scale_log2 * s), one FMA and one ex2 per score.
template <typename T, int D, int DV, int Rows>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode(const T* __restrict__ Q, const T* __restrict__ K, const T* __restrict__ V, T* __restrict__ O,
                 float* __restrict__ LSE, float* partials, int* arrived, const int* __restrict__ kv_lengths,
                 const int* __restrict__ block_table, long long q_stride_b, long long q_stride_h,
                 long long q_stride_row, long long k_stride_b, long long k_stride_h, long long k_stride_row,
                 long long v_stride_b, long long v_stride_h, long long v_stride_row, long long o_stride_b,
                 long long o_stride_h, long long o_stride_row, long long table_stride_b, int page_size, int batch,
                 int sq, int sk, int heads, int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ Sums sums;

  Problem<T> p;
  p.q = Q;
  p.k = K;
  p.v = V;
  p.o = O;
  p.lse = LSE;
  p.partials = partials;
  p.arrived = arrived;
  p.kv_lengths = kv_lengths;
  p.block_table = block_table;
  p.q_b = q_stride_b;
  p.q_h = q_stride_h;
  p.q_row = q_stride_row;
  p.k_b = k_stride_b;
  p.k_h = k_stride_h;
  p.k_row = k_stride_row;
  p.v_b = v_stride_b;
  p.v_h = v_stride_h;
  p.v_row = v_stride_row;
  p.o_b = o_stride_b;
  p.o_h = o_stride_h;
  p.o_row = o_stride_row;
  p.table_b = table_stride_b;
  p.page_shift = block_table == nullptr ? 0 : __ffs(page_size) - 1;
  p.page_mask = block_table == nullptr ? -1 : page_size - 1;
  p.batch = batch;
  p.sq = sq;
  p.sk = sk;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.group = heads / kv_heads;
  p.rows = p.group * sq;
  p.blocks = (p.rows + Rows - 1) / Rows;
  p.scale_log2 = scale_log2;
  p.causal = causal != 0;

  run_tiles<T, D, DV, Rows>(p, smem, sums);
}

// ----------------------------------------------------------------------------------------------------------- launcher
#ifndef __CUDACC_RTC__

// How many CTAs to launch on the current device: as many as run at once.
template <typename T, int D, int DV = D, int Rows = 16>
cudaError_t ctas_of_flash_decode(int* ctas) {
  int device = 0;
  int sms = 0;
  int per_sm = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(flash_decode<T, D, DV, Rows>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSmemBytes<D, DV>);
  }
  if (status == cudaSuccess) {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, flash_decode<T, D, DV, Rows>, kThreads,
                                                           kSmemBytes<D, DV>);
  }
  *ctas = sms * per_sm;
  return status;
}

// Bytes of device memory for `partials` of a launch of `ctas` CTAs; `arrived` has `ctas` ints.
template <int DV, int Rows = 16>
constexpr size_t partial_bytes_of_flash_decode(int ctas) {
  return static_cast<size_t>(2 * ctas) * kPartial<Rows, DV> * sizeof(float);
}

// Instantiate for T = __half or __nv_bfloat16, and D and DV multiples of 64, DV <= D: (64, 64), (128, 128), (192, 128).
// Rows: 16, 32 or 64, see the kernel. ctas: from ctas_of_flash_decode. Without lengths or a table pass null;
// page_size counts only with a table.
template <typename T, int D, int DV = D, int Rows = 16>
cudaError_t launch_flash_decode(const T* Q, const T* K, const T* V, T* O, float* LSE, float* partials, int* arrived,
                                const int* kv_lengths, const int* block_table, long long q_stride_b,
                                long long q_stride_h, long long q_stride_row, long long k_stride_b,
                                long long k_stride_h, long long k_stride_row, long long v_stride_b,
                                long long v_stride_h, long long v_stride_row, long long o_stride_b,
                                long long o_stride_h, long long o_stride_row, long long table_stride_b, int page_size,
                                int batch, int sq, int sk, int heads, int kv_heads, float scale, bool causal, int ctas,
                                cudaStream_t stream) {
  if (batch == 0 || heads == 0 || sq == 0) {
    return cudaSuccess;
  }
  if (block_table != nullptr && (page_size < kChunk || (page_size & (page_size - 1)) != 0)) {
    return cudaErrorInvalidValue;
  }
  constexpr float kLog2e = 1.4426950408889634f;
  const cudaError_t status = cudaFuncSetAttribute(
      flash_decode<T, D, DV, Rows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes<D, DV>);
  if (status != cudaSuccess) {
    return status;
  }
  flash_decode<T, D, DV, Rows><<<ctas, kThreads, kSmemBytes<D, DV>, stream>>>(
      Q, K, V, O, LSE, partials, arrived, kv_lengths, block_table, q_stride_b, q_stride_h, q_stride_row, k_stride_b,
      k_stride_h, k_stride_row, v_stride_b, v_stride_h, v_stride_row, o_stride_b, o_stride_h, o_stride_row,
      table_stride_b, page_size, batch, sq, sk, heads, kv_heads, scale * kLog2e, static_cast<int>(causal));
  return cudaGetLastError();
}

#endif
