// FlashAttention forward for Hopper (sm_90a): TMA, mbarrier rings, wgmma, one producer and two consumer warpgroups.
//
//   O = softmax(scale * Q K^T + mask) V        LSE = log(sum_j exp(scale * s_ij))        (natural log, fp32)
//
// Q: [B, H, Sq, D]; K: [B, Hkv, Sk, D]; V: [B, Hkv, Sk, DV]; O: [B, H, Sq, DV], any batch, head and row strides
// (elements), last dimension contiguous, every row 16-byte aligned. LSE: [B, H, Sq], contiguous. Query head h reads KV
// head h / (H / Hkv) (GQA). causal aligns to the bottom right: query i sees keys j <= i + Sk - Sq. A row that sees no
// key gets O = 0, LSE = -inf.
//
// CTAs are persistent: each takes work items (one head, Br = 128 query rows) by ticket until none is left. Warpgroup 0
// is the producer; one of its threads starts every copy. Warpgroups 1 and 2 are consumers and own 64 rows each; they
// walk the KV tiles of an item from the last to the first, so that the tiles that need a mask come first.
//
//   producer   K(n)   Q    K(n-1)      V(n)        K(n-2)     ...     TMA into rings of stages, in the order of use
//   consumer   S(n)   ->   S(n-1) = Q K(n-1)^T  |  softmax(n-1)  ...  products of one step run on the tensor cores
//                          O += P(n) V(n)       |                     while the exponentials of the next are taken
//
// In the m64nN accumulator a thread holds of each 8-column block nb the elements e = 0..3 at
//   row = 16 * warp + lane / 4 + 8 * (e / 2)        col = 8 * nb + 2 * (lane % 4) + (e & 1)
// so it owns two rows (r = e / 2), and the four threads of a quad share them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef __CUDACC_RTC__
#include <cuda.h>
#include <cuda_runtime.h>
#endif
#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int Br = 128;           // query rows per work item
constexpr int kConsumers = 2;     // warpgroups of Br / 2 rows each
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kConsumerWarps = 4 * kConsumers;
constexpr int kRowBytes = 128;    // a row of a box: 64 elements, the span of the 128-byte swizzle
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kL2Bytes = 32 << 20;  // K and V of the heads that are worked on at a time stay in L2

// Keys per KV tile, stages of the rings and the places in shared memory, in bytes. A tile is stored as boxes of 64
// columns, one after the other.
template <int D, int DV>
struct Tiles {
  static constexpr int Bc = D > 192 ? 64 : 128;
  static constexpr int kQStages = D > 128 ? 1 : 2;
  static constexpr int kKStages = D == 64 ? 4 : 2;
  static constexpr int kVStages = D == 64 ? 4 : 2;
  static constexpr int kQBytes = Br * D * 2;
  static constexpr int kKBytes = Bc * D * 2;
  static constexpr int kVBytes = Bc * DV * 2;
  static constexpr int kK = kQStages * kQBytes;
  static constexpr int kV = kK + kKStages * kKBytes;
  static constexpr int kItems = kV + kVStages * kVBytes;    // the work item of each stage of Q
  static constexpr int kBarriers = kItems + 16 * kQStages;  // a full and an empty one per stage of Q, of K, of V
  static constexpr int kSmemBytes = kBarriers + 16 * (kQStages + kKStages + kVStages);
};
template <int D, int DV>
constexpr int kSmemBytes = Tiles<D, DV>::kSmemBytes;

// What cuTensorMapEncodeTiled fills in: a CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// ---------------------------------------------------------------------------------------------------------------- PTX

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void barrier_init(unsigned bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and tells the barrier to wait for `bytes` of copies besides.
__device__ __forceinline__ void barrier_expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Waits for the end of the phase of that parity.
__device__ __forceinline__ void barrier_wait(unsigned bar, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;\n"
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// Copies one box of 64 columns at (column, row, head, batch) to shared memory; what lies outside becomes zeros.
__device__ __forceinline__ void tma_load(unsigned dst, const TensorMap* map, unsigned bar, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// Turns of the consumers: a named barrier for each, where it waits and the other one only arrives.
__device__ __forceinline__ void wait_turn(int group) {
  asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps reads of an accumulator behind the wait before it.
template <int N>
__device__ __forceinline__ void keep_behind(float (&c)[N][4]) {
#pragma unroll
  for (int nb = 0; nb < N; ++nb) {
    asm volatile("" : "+f"(c[nb][0]), "+f"(c[nb][1]), "+f"(c[nb][2]), "+f"(c[nb][3])::"memory");
  }
}

// Shared-memory operand of wgmma with the 128-byte swizzle. The low word of its descriptor has the address and the
// `next` bytes to the next 64 columns where the product's N runs along the columns; the high word is the same for all:
// eight rows are 1024 bytes.
#define OPERAND_HIGH "0x40000040"
__device__ __forceinline__ unsigned descriptor(unsigned address, unsigned next) {
  return (address & 0x3ffff) >> 4 | (next >> 4) << 16;
}

__device__ __forceinline__ unsigned advance(unsigned operand, int bytes) { return operand + (bytes >> 4); }

// The accumulators of wgmma as operands of asm: 32 (m64n64), 64 (m64n128) or 128 (m64n256) floats, c[nb][e].
#define ACC4(c, nb) "+f"(c[nb][0]), "+f"(c[nb][1]), "+f"(c[nb][2]), "+f"(c[nb][3])
#define ACC16(c, nb) ACC4(c, nb), ACC4(c, nb + 1), ACC4(c, nb + 2), ACC4(c, nb + 3)
#define ACC64(c, nb) ACC16(c, nb), ACC16(c, nb + 4), ACC16(c, nb + 8), ACC16(c, nb + 12)
#define OPERANDS_64(c) ACC16(c, 0), ACC16(c, 4)
#define OPERANDS_128(c) ACC64(c, 0)
#define OPERANDS_256(c) ACC64(c, 0), ACC64(c, 16)
#define NAMES_64                                                                                                 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define NAMES_128                                                                                                 \
  NAMES_64                                                                                                       \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"  \
  "%59,%60,%61,%62,%63"
#define NAMES_256                                                                                                  \
  NAMES_128                                                                                                        \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,"  \
  "%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114," \
  "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c = A B^T (+ c where `keep`), k = 16: A is 64 rows, B is N rows of K, both in shared memory with k along the row.
#define WGMMA_SS(T, type, N, a_at, b_at, keep_at)                                                                     \
  template <>                                                                                                         \
  __device__ __forceinline__ void wgmma_ss<T>(float (&c)[N / 8][4], unsigned a, unsigned b, int keep) {               \
    asm volatile("{\n.reg .pred keep;\n.reg .b64 a, b;\nsetp.ne.b32 keep, %" #keep_at ", 0;\n"                        \
                 "mov.b64 a, {%" #a_at ", " OPERAND_HIGH "};\nmov.b64 b, {%" #b_at ", " OPERAND_HIGH "};\n"           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NAMES_##N                       \
                 "}, a, b, keep, 1, 1, 0, 0;\n}"                                                                      \
                 : OPERANDS_##N(c)                                                                                    \
                 : "r"(a), "r"(b), "r"(keep));                                                                        \
  }
template <typename T>
__device__ __forceinline__ void wgmma_ss(float (&c)[8][4], unsigned a, unsigned b, int keep);
template <typename T>
__device__ __forceinline__ void wgmma_ss(float (&c)[16][4], unsigned a, unsigned b, int keep);
WGMMA_SS(__half, "f16", 64, 32, 33, 34);
WGMMA_SS(__half, "f16", 128, 64, 65, 66);
WGMMA_SS(__nv_bfloat16, "bf16", 64, 32, 33, 34);
WGMMA_SS(__nv_bfloat16, "bf16", 128, 64, 65, 66);

// c = A B (+ c where `keep`), k = 16: A in registers, B is 16 rows of V in shared memory with N along the row.
#define WGMMA_RS(T, type, N, a0, a1, a2, a3, b_at, keep_at)                                                           \
  template <>                                                                                                         \
  __device__ __forceinline__ void wgmma_rs<T>(float (&c)[N / 8][4], const unsigned* a, unsigned b, int keep) {        \
    asm volatile("{\n.reg .pred keep;\n.reg .b64 b;\nsetp.ne.b32 keep, %" #keep_at ", 0;\n"                           \
                 "mov.b64 b, {%" #b_at ", " OPERAND_HIGH "};\n"                                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NAMES_##N                       \
                 "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, keep, 1, 1, 1;\n}"                                     \
                 : OPERANDS_##N(c)                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));                                    \
  }
template <typename T>
__device__ __forceinline__ void wgmma_rs(float (&c)[8][4], const unsigned* a, unsigned b, int keep);
template <typename T>
__device__ __forceinline__ void wgmma_rs(float (&c)[16][4], const unsigned* a, unsigned b, int keep);
template <typename T>
__device__ __forceinline__ void wgmma_rs(float (&c)[32][4], const unsigned* a, unsigned b, int keep);
WGMMA_RS(__half, "f16", 64, 32, 33, 34, 35, 36, 37);
WGMMA_RS(__half, "f16", 128, 64, 65, 66, 67, 68, 69);
WGMMA_RS(__half, "f16", 256, 128, 129, 130, 131, 132, 133);
WGMMA_RS(__nv_bfloat16, "bf16", 64, 32, 33, 34, 35, 36, 37);
WGMMA_RS(__nv_bfloat16, "bf16", 128, 64, 65, 66, 67, 68, 69);
WGMMA_RS(__nv_bfloat16, "bf16", 256, 128, 129, 130, 131, 132, 133);

// What depends on the element type.
template <typename T>
struct Element;

template <>
struct Element<__half> {
  static constexpr float kHeadroom = 3.f;  // see the online softmax
  // Rounds two floats and packs them, lo in the low half.
  static __device__ __forceinline__ unsigned pack2(float lo, float hi) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
};

template <>
struct Element<__nv_bfloat16> {
  static constexpr float kHeadroom = 7.f;  // see the online softmax
  static __device__ __forceinline__ unsigned pack2(float lo, float hi) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
};

// ----------------------------------------------------------------------------------------------------- work and rings

struct Problem {
  int sq, sk, batch, heads, kv_heads, causal;
};

// Rows [q0, q0 + Br) of head bh = b * heads + h against the KV tiles [kv_lo, kv_hi). q0 < 0: no work is left.
struct alignas(16) Item {
  int q0, bh, kv_lo, kv_hi;
};

// Work item `index`. Heads are taken in groups whose K and V fit the L2 cache; in a group, the late rows, which have
// the most keys when causal, come first. An item has at least one KV tile, if only to find that every key is masked.
template <int D, int DV>
__device__ __forceinline__ Item work_item(int index, const Problem& p) {
  const int q_tiles = (p.sq + Br - 1) / Br;
  const int all = p.batch * p.heads;
  if (index >= all * q_tiles) {
    return {-1, 0, 0, 0};
  }
  constexpr int kRowsInL2 = kL2Bytes / ((D + DV) * 2);
  const int group = min(max(kRowsInL2 / (p.sk + 1), 1) * (p.heads / p.kv_heads), all);
  const int first = index / (group * q_tiles) * group;
  const int size = min(group, all - first);
  const int within = index - first * q_tiles;
  const int q0 = (q_tiles - 1 - within / size) * Br;

  // KV range: keys [0, kv_end). The last row of this item sees keys up to q0 + Br - 1 + sk - sq.
  int kv_end = p.sk;
  if (p.causal) {
    kv_end = min(p.sk, q0 + Br + p.sk - p.sq);
  }
  constexpr int Bc = Tiles<D, DV>::Bc;
  const int bh = first + within % size;
  return {q0, bh, 0, max(1, (kv_end + Bc - 1) / Bc)};
}

// Batch entry and KV head of an item.
struct Head {
  int b, hk;
};

__device__ __forceinline__ Head head_of(const Item& item, const Problem& p) {
  return {item.bh / p.heads, item.bh % p.heads / (p.heads / p.kv_heads)};
}

// A place in a ring of stages and the parity of the phase in which it is used.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Addresses in shared memory.
template <int D, int DV>
struct Shared {
  using Tile = Tiles<D, DV>;
  unsigned base;
  __device__ __forceinline__ unsigned q(int stage) const { return base + stage * Tile::kQBytes; }
  __device__ __forceinline__ unsigned k(int stage) const { return base + Tile::kK + stage * Tile::kKBytes; }
  __device__ __forceinline__ unsigned v(int stage) const { return base + Tile::kV + stage * Tile::kVBytes; }
  __device__ __forceinline__ unsigned q_full(int stage) const { return base + Tile::kBarriers + 16 * stage; }
  __device__ __forceinline__ unsigned q_empty(int stage) const { return q_full(stage) + 8; }
  __device__ __forceinline__ unsigned k_full(int stage) const { return q_full(Tile::kQStages + stage); }
  __device__ __forceinline__ unsigned k_empty(int stage) const { return k_full(stage) + 8; }
  __device__ __forceinline__ unsigned v_full(int stage) const { return k_full(Tile::kKStages + stage); }
  __device__ __forceinline__ unsigned v_empty(int stage) const { return v_full(stage) + 8; }
};

// ----------------------------------------------------------------------------------------------------------- producer

// Starts the copy of kRows rows of kWidth columns, from row0 on.
template <int kWidth, int kRows>
__device__ __forceinline__ void load_tile(unsigned dst, unsigned full, const TensorMap* map, int row0, int head,
                                          int batch) {
  barrier_expect(full, kRows * kWidth * 2);
#pragma unroll
  for (int x = 0; x < kWidth / 64; ++x) {
    tma_load(dst + x * kRows * kRowBytes, map, full, x * 64, row0, head, batch);
  }
}

// One thread: takes work items, publishes each with its Q, and keeps the rings full, in the order of use: K of a tile
// before V of the tile above it.
template <int D, int DV>
struct Producer {
  using Tile = Tiles<D, DV>;
  static constexpr int Bc = Tile::Bc;

  const Shared<D, DV> smem;
  Item* const shared_items;
  const TensorMap* const q_map;
  const TensorMap* const k_map;
  const TensorMap* const v_map;
  const Problem p;
  Ring<Tile::kQStages> q_ring;
  Ring<Tile::kKStages> k_ring;
  Ring<Tile::kVStages> v_ring;

  // Publishes an item and starts the copy of its Q. Without work there is no Q.
  __device__ __forceinline__ void load_q(const Item& item, const Head& head) {
    const int stage = q_ring.stage;
    barrier_wait(smem.q_empty(stage), q_ring.parity ^ 1);
    shared_items[stage] = item;
    if (item.q0 < 0) {
      barrier_arrive(smem.q_full(stage));
    } else {
      load_tile<D, Br>(smem.q(stage), smem.q_full(stage), q_map, item.q0, item.bh - head.b * p.heads, head.b);
    }
    q_ring.next();
  }

  __device__ __forceinline__ void load_k(int tile, const Head& head) {
    const int stage = k_ring.stage;
    barrier_wait(smem.k_empty(stage), k_ring.parity ^ 1);
    load_tile<D, Bc>(smem.k(stage), smem.k_full(stage), k_map, first_key(tile), head.hk, head.b);
    k_ring.next();
  }

  __device__ __forceinline__ void load_v(int tile, const Head& head) {
    const int stage = v_ring.stage;
    barrier_wait(smem.v_empty(stage), v_ring.parity ^ 1);
    load_tile<DV, Bc>(smem.v(stage), smem.v_full(stage), v_map, first_key(tile), head.hk, head.b);
    v_ring.next();
  }

  // Without keys there is no row to read: all zeros.
  __device__ __forceinline__ int first_key(int tile) const { return p.sk > 0 ? tile * Bc : Bc; }

  __device__ __forceinline__ void produce(int* tickets) {
    Item item = work_item<D, DV>(blockIdx.x, p);
    Head head = head_of(item, p);
    if (Tile::kQStages > 1) {
      load_q(item, head);
    }
#pragma unroll 1
    while (item.q0 >= 0) {
      load_k(item.kv_hi - 1, head);
      if (Tile::kQStages == 1) {
        load_q(item, head);
      }
      // The next item is looked up while the rings are full, as that takes long, and its Q is loaded at once if there
      // is room: when the ring of K has gone round within an item, the Q of the item before is free.
      const int look_up = max(item.kv_hi - 1 - Tile::kKStages, item.kv_lo);
      Item next;
      Head next_head;
#pragma unroll 1
      for (int tile = item.kv_hi - 1; tile >= item.kv_lo; --tile) {
        if (tile == look_up) {
          next = work_item<D, DV>(gridDim.x + atomicAdd(tickets, 1), p);
          next_head = head_of(next, p);
          if (Tile::kQStages > 1) {
            load_q(next, next_head);
          }
        }
        if (tile > item.kv_lo) {
          load_k(tile - 1, head);
        }
        load_v(tile, head);
      }
      item = next;
      head = next_head;
    }
    if (Tile::kQStages == 1) {
      load_q(item, head);
    }
    // The last CTA leaves the counters as it found them: zero.
    if (atomicAdd(tickets + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      atomicExch(tickets, 0);
      atomicExch(tickets + 1, 0);
    }
  }
};

// ----------------------------------------------------------------------------------------------------------- consumer

// One thread of a consumer warpgroup, with its share of 64 rows.
template <typename T, int D, int DV>
struct Consumer {
  using Tile = Tiles<D, DV>;
  static constexpr int Bc = Tile::Bc;

  const Shared<D, DV> smem;
  const Problem& p;
  const float scale_log2;  // exp(scale * s) = exp2(scale_log2 * s): one FMA and one ex2 per score
  const int group;         // consumer warpgroup, 0 or 1
  const int lane;

  float s[Bc / 8][4];        // scores of a KV tile
  float o[DV / 8][4];        // unnormalised output
  unsigned prob[Bc / 4];     // P, rounded to T: the A operand of the product with V
  unsigned prob_next[Bc / 4];  // a register that wgmma reads must not be written while it runs
  float reference[2];        // see the online softmax
  float l[2];                // this thread's share of the row sums
  float correction[2];       // of o, where the reference has grown
  bool grew;

  // First row of this thread in an item. Read anew where it is needed: at D = 256 no register is left to hold it.
  __device__ __forceinline__ int first_row() const {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (thread - 128) / 32 * 16 + thread % 32 / 4;
  }

  // ---- products. Both only start; wgmma_wait ends them.

  __device__ __forceinline__ void start_qk(int q_stage, int stage) {
    const unsigned a = descriptor(smem.q(q_stage) + group * 64 * kRowBytes, 16);
    const unsigned b = descriptor(smem.k(stage), 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {  // four steps of 16 columns per box
      const int step = kk % 4 * 32;
      wgmma_ss<T>(s, advance(a, kk / 4 * Br * kRowBytes + step), advance(b, kk / 4 * Bc * kRowBytes + step), kk > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void start_pv(int stage, bool accumulate) {
    const unsigned b = descriptor(smem.v(stage), DV > 64 ? Bc * kRowBytes : 16);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < Bc / 16; ++kk) {  // 16 keys are 16 rows of V
      wgmma_rs<T>(o, prob + 4 * kk, advance(b, kk * 16 * kRowBytes), kk > 0 ? 1 : accumulate);
    }
    wgmma_commit();
  }

  // ---- scores and mask: i is the query row, j the key.

  __device__ __forceinline__ void mask_scores(const Item& item, int tile) {
    const int kv0 = tile * Bc;
    // S = -inf where j >= Sk or, when causal, j > i + Sk - Sq; only tiles that cross either edge pay for it.
    if (kv0 + Bc > p.sk || (p.causal && kv0 + Bc - 1 > item.q0 + p.sk - p.sq)) {
      const int row0 = item.q0 + first_row();
      const int ahead = p.causal ? p.sk - p.sq + 1 : p.sk;  // row i sees the keys before min(Sk, i + ahead)
#pragma unroll
      for (int nb = 0; nb < Bc / 8; ++nb) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = row0 + 8 * (e / 2);
          const int j = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);
          s[nb][e] = j < min(p.sk, i + ahead) ? s[nb][e] : -INFINITY;
        }
      }
    }
  }

  // ---- online softmax. P = exp2(scale_log2 * S - reference), where the reference of a row is not its running maximum
  // but the maximum of its first KV tile plus a headroom: P, l and O share the factor, which cancels in O / l. So a
  // tile costs neither a row maximum nor a correction, until some P reaches 2: its rounded form then has the top bit of
  // its exponent set, and the tile is done again with the maximum of all rows that grew.

  // P of the tile into prob_next, and into `sum` this thread's share of its row sums.
  __device__ __forceinline__ void exponentials(float (&sum)[2]) {
    float part[2][2] = {{0.f, 0.f}, {0.f, 0.f}};  // two chains of additions per row
#pragma unroll
    for (int nb = 0; nb < Bc / 8; ++nb) {
      float e[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        e[k] = exp2_approx(fmaf(s[nb][k], scale_log2, -reference[k / 2]));
        part[k / 2][nb & 1] += e[k];
      }
      prob_next[2 * nb] = Element<T>::pack2(e[0], e[1]);
      prob_next[2 * nb + 1] = Element<T>::pack2(e[2], e[3]);
    }
    sum[0] = part[0][0] + part[0][1];
    sum[1] = part[1][0] + part[1][1];
  }

  __device__ __forceinline__ void row_maxima(float (&m)[2]) {
    float part[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r][0] = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
      part[r][1] = fmaxf(s[1][2 * r], s[1][2 * r + 1]);
#pragma unroll
      for (int nb = 2; nb < Bc / 8; ++nb) {
        part[r][nb & 1] = fmaxf(part[r][nb & 1], fmaxf(s[nb][2 * r], s[nb][2 * r + 1]));
      }
      m[r] = fmaxf(part[r][0], part[r][1]);
      m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 1));
      m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 2));
    }
  }

  // Raises the references of the rows whose maximum in this tile has outgrown them; l keeps up.
  __device__ __forceinline__ void raise_references() {
    float m[2];
    row_maxima(m);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = m[r] * scale_log2;
      const float old = reference[r];
      reference[r] = top - old >= 0.99f ? top + Element<T>::kHeadroom : old;
      correction[r] = exp2_approx(old - reference[r]);
      l[r] *= correction[r];
    }
  }

  // The first KV tile of an item. The reference starts so low that the first key of a row raises it.
  __device__ __forceinline__ void first_softmax(const Item& item) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = -3e38f;
      l[r] = 0.f;
    }
    raise_references();
    float sum[2];
    exponentials(sum);
    l[0] += sum[0];
    l[1] += sum[1];
  }

  __device__ __forceinline__ void next_softmax() {
    float sum[2];
    exponentials(sum);
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < Bc / 4; ++k) {
      bits |= prob_next[k];
    }
    grew = __any_sync(0xffffffffu, (bits & 0x40004000u) != 0);
    if (grew) {  // the branch that finish_step needs
      raise_references();
      exponentials(sum);
    }
    l[0] += sum[0];
    l[1] += sum[1];
  }

  // Keeps P and l before what follows.
  __device__ __forceinline__ void finish_softmax() {
    asm volatile("" : "+f"(l[0]), "+f"(l[1])::"memory");
#pragma unroll
    for (int k = 0; k < Bc / 4; ++k) {
      asm volatile("" : "+r"(prob_next[k])::"memory");
    }
  }

  __device__ __forceinline__ void take_prob() {
#pragma unroll
    for (int k = 0; k < Bc / 4; ++k) {
      asm volatile("mov.b32 %0, %1;" : "=r"(prob[k]) : "r"(prob_next[k]));
    }
  }

  __device__ __forceinline__ void correct_output() {
    if (grew) {
#pragma unroll
      for (int db = 0; db < DV / 8; ++db) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          o[db][e] *= correction[e / 2];
        }
      }
    }
  }

  // ---- finish: O = O / l;  LSE = reference * ln 2 + log(l).  l == 0: the row saw no key.

  // What does not need O, done while the products still run: LSE is written, inverse[r] becomes 1 / l.
  __device__ __forceinline__ void finish_sums(const Item& item, float* LSE, float (&inverse)[2]) {
    const int row0 = item.q0 + first_row();
    float* lse = LSE + static_cast<long long>(item.bh) * p.sq;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = l[r];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      inverse[r] = total == 0.f ? 0.f : __fdividef(1.f, total);
      const int row = row0 + 8 * r;
      if (row < p.sq && lane % 4 == 0) {
        lse[row] = total == 0.f ? -INFINITY : reference[r] * kLn2 + __logf(total);
      }
    }
  }

  __device__ __forceinline__ void finish(const Item& item, const float (&inverse)[2], T* O, long long o_stride_b,
                                         long long o_stride_h, long long o_stride_row) {
    const int quad = lane % 4;
    const int row0 = item.q0 + first_row();
    T* out = O + (item.bh / p.heads) * o_stride_b + (item.bh % p.heads) * o_stride_h;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 8 * r;
#pragma unroll
      for (int db = 0; db < DV / 8; db += 4) {
        // Four blocks of 8 columns: the quad exchanges words so that each thread stores the 16 bytes of one block.
        unsigned w[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          w[k] = Element<T>::pack2(o[db + k][2 * r] * inverse[r], o[db + k][2 * r + 1] * inverse[r]);
        }
        transpose_quad(w, quad);
        if (row < p.sq) {
          *reinterpret_cast<uint4*>(out + row * o_stride_row + db * 8 + quad * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }

  // w[k] of thread q becomes w[q] of thread k, within a quad.
  static __device__ __forceinline__ void transpose_quad(unsigned (&w)[4], int quad) {
    const unsigned a = __shfl_xor_sync(0xffffffffu, quad & 1 ? w[0] : w[1], 1);
    const unsigned b = __shfl_xor_sync(0xffffffffu, quad & 1 ? w[2] : w[3], 1);
    w[0] = quad & 1 ? a : w[0];
    w[1] = quad & 1 ? w[1] : a;
    w[2] = quad & 1 ? b : w[2];
    w[3] = quad & 1 ? w[3] : b;
    const unsigned c = __shfl_xor_sync(0xffffffffu, quad & 2 ? w[0] : w[2], 2);
    const unsigned d = __shfl_xor_sync(0xffffffffu, quad & 2 ? w[1] : w[3], 2);
    w[0] = quad & 2 ? c : w[0];
    w[1] = quad & 2 ? d : w[1];
    w[2] = quad & 2 ? w[2] : c;
    w[3] = quad & 2 ? w[3] : d;
  }

  // ---- the walk

  __device__ __forceinline__ void release(unsigned bar) {
    if (lane == 0) {
      barrier_arrive(bar);
    }
  }

  // S of a tile is complete: its stage is free, and so is Q after the last tile of an item.
  __device__ __forceinline__ void finish_qk(const Item& item, int tile, int q_stage, int stage) {
    keep_behind(s);
    release(smem.k_empty(stage));
    if (tile == item.kv_lo) {
      release(smem.q_empty(q_stage));
    }
  }

  __device__ __forceinline__ Item wait_item(const Item* shared_items, const Ring<Tile::kQStages>& q_ring) {
    barrier_wait(smem.q_full(q_ring.stage), q_ring.parity);
    const Item item = shared_items[q_ring.stage];
    __syncwarp();  // every lane has read it before lane 0 gives its place back
    return {__shfl_sync(0xffffffffu, item.q0, 0), __shfl_sync(0xffffffffu, item.bh, 0),
            __shfl_sync(0xffffffffu, item.kv_lo, 0), __shfl_sync(0xffffffffu, item.kv_hi, 0)};
  }

  __device__ __forceinline__ void run(const Item* shared_items, T* O, float* LSE, long long o_stride_b,
                                      long long o_stride_h, long long o_stride_row) {
    Ring<Tile::kQStages> q_ring;
    Ring<Tile::kKStages> k_ring;
    Ring<Tile::kVStages> v_ring;
    Item item = wait_item(shared_items, q_ring);
    if (item.q0 < 0) {
      return;
    }
    if (group == 1) {
      pass_turn(group);  // the first is that of group 0
    }
    // Prologue: the scores of the first tile have nothing to overlap with.
    int tile = item.kv_hi - 1;
    barrier_wait(smem.k_full(0), 0);
    start_qk(0, 0);
    wgmma_wait<0>();
    finish_qk(item, tile, 0, 0);
    mask_scores(item, tile);
    first_softmax(item);
    finish_softmax();
    take_prob();

    while (true) {
#pragma unroll 1
      for (; tile > item.kv_lo; --tile) {
        k_ring.next();
        start_step(q_ring.stage, k_ring, v_ring, tile != item.kv_hi - 1);
        wgmma_wait<1>();
        finish_qk(item, tile - 1, q_ring.stage, k_ring.stage);
        mask_scores(item, tile - 1);
        next_softmax();
        finish_step(v_ring);
        v_ring.next();
        correct_output();
        take_prob();
      }
      q_ring.next();
      const Item next = wait_item(shared_items, q_ring);
      if (next.q0 < 0) {
        break;
      }
      // From the last tile of this item to the first of the next.
      k_ring.next();
      start_step(q_ring.stage, k_ring, v_ring, tile != item.kv_hi - 1);
      float inverse[2];
      finish_sums(item, LSE, inverse);
      wgmma_wait<1>();
      finish_qk(next, next.kv_hi - 1, q_ring.stage, k_ring.stage);
      mask_scores(next, next.kv_hi - 1);
      first_softmax(next);
      barrier_wait(smem.v_full(v_ring.stage), v_ring.parity);  // long over: the branch that finish_step needs
      finish_step(v_ring);
      v_ring.next();
      finish(item, inverse, O, o_stride_b, o_stride_h, o_stride_row);
      take_prob();
      item = next;
      tile = item.kv_hi - 1;
    }
    barrier_wait(smem.v_full(v_ring.stage), v_ring.parity);
    start_pv(v_ring.stage, tile != item.kv_hi - 1);
    float inverse[2];
    finish_sums(item, LSE, inverse);
    wgmma_wait<0>();
    keep_behind(o);
    finish(item, inverse, O, o_stride_b, o_stride_h, o_stride_row);
  }

  // Starts S = Q K^T of the next tile and O += P V of this one behind it. The consumers take turns at it: the products
  // of one run while the other takes exponentials.
  __device__ __forceinline__ void start_step(int q_stage, const Ring<Tile::kKStages>& k_ring,
                                             const Ring<Tile::kVStages>& v_ring, bool accumulate) {
    barrier_wait(smem.k_full(k_ring.stage), k_ring.parity);
    wait_turn(group);
    start_qk(q_stage, k_ring.stage);
    barrier_wait(smem.v_full(v_ring.stage), v_ring.parity);
    start_pv(v_ring.stage, accumulate);
    pass_turn(group);
  }

  // Ends O += P V. ptxas moves a wait for wgmma to the top of its basic block, where it would stand above the
  // exponentials that are to run beside the product: a branch must lie between.
  __device__ __forceinline__ void finish_step(const Ring<Tile::kVStages>& v_ring) {
    finish_softmax();
    wgmma_wait<0>();
    keep_behind(o);
    release(smem.v_empty(v_ring.stage));
  }
};

// ------------------------------------------------------------------------------------------------------------- kernel

// grid = min(SMs, work items), block = kThreads, dynamic shared memory = kSmemBytes<D, DV>. The maps are of Q in boxes
// of 64 x Br, of K and V in boxes of 64 x Bc, dimensions (column, row, head, batch), 128-byte swizzle. tickets: two
// ints, zero before the launch and after it. scale_log2 = scale * log2(e) > 0.
template <typename T, int D, int DV>
__global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_sm90(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                   const __grid_constant__ TensorMap v_map, T* __restrict__ O, float* __restrict__ LSE, int* tickets,
                   long long o_stride_b, long long o_stride_h, long long o_stride_row, int batch, int sq, int sk,
                   int heads, int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  using Tile = Tiles<D, DV>;

  // Setup: barriers. A full barrier waits for the producer's arrival and the bytes it announces, an empty one for an
  // arrival of every consumer warp.
  const Shared<D, DV> smem{static_cast<unsigned>(__cvta_generic_to_shared(smem_bytes))};
  Item* shared_items = reinterpret_cast<Item*>(smem_bytes + Tile::kItems);
  const Problem problem{sq, sk, batch, heads, kv_heads, causal};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tile::kQStages + Tile::kKStages + Tile::kVStages; ++stage) {
      barrier_init(smem.q_full(stage), 1);  // those of K and V lie behind those of Q
      barrier_init(smem.q_empty(stage), kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();

  // Roles. 168 registers a thread at the start: 24 for the producer leave 240 for the consumers.
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    release_registers<24>();
    if (threadIdx.x == 0) {
      Producer<D, DV> producer{smem, shared_items, &q_map, &k_map, &v_map, problem};
      producer.produce(tickets);
    }
  } else {
    claim_registers<240>();
    Consumer<T, D, DV> consumer{smem,
                                problem,
                                scale_log2,
                                warpgroup - 1,
                                static_cast<int>(threadIdx.x) % 32};
    consumer.run(shared_items, O, LSE, o_stride_b, o_stride_h, o_stride_row);
  }
}

// ----------------------------------------------------------------------------------------------------------- launcher
#ifndef __CUDACC_RTC__

// cuTensorMapEncodeTiled of the driver, found at run time so that nothing has to be linked.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                              cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  const bool ok = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
}

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<__half> = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

// The map of a [batch, heads, rows, columns] tensor with strides in elements, for boxes of 64 columns and `box` rows.
// A dimension of one index is never moved along: it gets the stride of a tensor without gaps, which the driver accepts.
template <typename T>
cudaError_t make_tensor_map(TensorMap* map, const T* data, int columns, int rows, int heads, int batch,
                            long long stride_row, long long stride_h, long long stride_b, int box) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap), "a TensorMap holds a CUtensorMap");
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) {
    return cudaErrorNotSupported;
  }
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows > 0 ? rows : 1),
                                 static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const long long given[3] = {stride_row, stride_h, stride_b};
  cuuint64_t strides[3];  // in bytes
  cuuint64_t dense = extents[0] * sizeof(T);
  for (int axis = 0; axis < 3; ++axis) {
    strides[axis] = extents[axis + 1] > 1 ? static_cast<cuuint64_t>(given[axis]) * sizeof(T) : dense;
    dense = strides[axis] * extents[axis + 1];
  }
  const cuuint32_t boxes[4] = {64, static_cast<cuuint32_t>(box), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode(reinterpret_cast<CUtensorMap*>(map), kMapType<T>, 4, const_cast<T*>(data), extents,
                                 strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Instantiate for T = __half or __nv_bfloat16 and (D, DV) = (64, 64), (128, 128), (192, 128) or (256, 256).
// tickets: two ints of device memory, zeroed once; launches that share them must not overlap.
template <typename T, int D, int DV>
cudaError_t launch_flash_fwd_sm90(const T* Q, const T* K, const T* V, T* O, float* LSE, int* tickets,
                                  long long q_stride_b, long long q_stride_h, long long q_stride_row,
                                  long long k_stride_b, long long k_stride_h, long long k_stride_row,
                                  long long v_stride_b, long long v_stride_h, long long v_stride_row,
                                  long long o_stride_b, long long o_stride_h, long long o_stride_row, int batch,
                                  int sq, int sk, int heads, int kv_heads, float scale, bool causal,
                                  cudaStream_t stream) {
  if (batch == 0 || heads == 0 || sq == 0) {
    return cudaSuccess;
  }
  using Tile = Tiles<D, DV>;
  constexpr float kLog2e = 1.4426950408889634f;
  TensorMap q_map, k_map, v_map;
  // Without keys nothing is read through the maps of K and V, but they must have an address.
  const T* k = sk > 0 ? K : Q;
  const T* v = sk > 0 ? V : Q;
  cudaError_t status = make_tensor_map(&q_map, Q, D, sq, heads, batch, q_stride_row, q_stride_h, q_stride_b, Br);
  if (status == cudaSuccess) {
    status = make_tensor_map(&k_map, k, D, sk, kv_heads, batch, k_stride_row, k_stride_h, k_stride_b, Tile::Bc);
  }
  if (status == cudaSuccess) {
    status = make_tensor_map(&v_map, v, DV, sk, kv_heads, batch, v_stride_row, v_stride_h, v_stride_b, Tile::Bc);
  }
  int device = 0;
  int sms = 0;
  if (status == cudaSuccess) {
    status = cudaGetDevice(&device);
  }
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(flash_fwd_sm90<T, D, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSmemBytes<D, DV>);
  }
  if (status != cudaSuccess) {
    return status;
  }
  const long long items = static_cast<long long>((sq + Br - 1) / Br) * heads * batch;
  const int grid = static_cast<int>(items < sms ? items : sms);
  flash_fwd_sm90<T, D, DV><<<grid, kThreads, kSmemBytes<D, DV>, stream>>>(
      q_map, k_map, v_map, O, LSE, tickets, o_stride_b, o_stride_h, o_stride_row, batch, sq, sk, heads, kv_heads,
      scale * kLog2e, static_cast<int>(causal));
  return cudaGetLastError();
}

#endif
