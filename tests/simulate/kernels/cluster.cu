// sm_90a kernels for the simulator's tests: clusters that write into each other's shared memory, bulk reductions, im2col
// copies, many mbarriers. Host code is in the tests.
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
struct alignas(64) Map {
  char bytes[128];
};

__device__ __forceinline__ u32 smem_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(u32 bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ u32 of_rank(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void engine_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#define TO_CTA(OP)                                                                                                        \
  asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." OP " [%0], [%1], 512, [%2];" ::"r"( \
                   to),                                                                                                   \
               "r"(from), "r"(bar)                                                                                        \
               : "memory")
__device__ void reduce_to_cta(int op, u32 to, u32 from, u32 bar) {
  switch (op) {
    case 0: TO_CTA("add.u32"); break;
    case 1: TO_CTA("min.s32"); break;
    case 2: TO_CTA("max.u32"); break;
    case 3: TO_CTA("inc.u32"); break;
    case 4: TO_CTA("dec.u32"); break;
    case 5: TO_CTA("and.b32"); break;
    case 6: TO_CTA("or.b32"); break;
    case 7: TO_CTA("xor.b32"); break;
    default: TO_CTA("add.u64"); break;
  }
}

// Each CTA of a pair sends to the other: st.async (128 words), red.async (32), a bulk copy (128), a bulk reduction (128).
#ifndef BYTES
#define BYTES (512 + 256 + 512 + 512)
#endif
__global__ void __cluster_dims__(2, 1, 1) send(const u32* in, u32* out, int op) {
  __shared__ alignas(128) u32 source[256];
  __shared__ alignas(128) u32 target[416];
  __shared__ alignas(8) u64 bar_storage;
  const u32 bar = smem_address(&bar_storage), t = threadIdx.x;
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const u32 there = of_rank(smem_address(target), rank ^ 1), there_bar = of_rank(bar, rank ^ 1);
  if (t == 0) {
    bar_init(bar, 1);
#ifndef NO_INIT_FENCE
    init_fence();
#endif
    bar_expect(bar, BYTES);
  }
  for (int i = t; i < 256; i += blockDim.x) source[i] = in[blockIdx.x * 256 + i];
  for (int i = t; i < 160; i += blockDim.x) target[i < 32 ? 128 + i : 256 + i] = 1000 + i;
#ifndef NO_FENCE
  engine_fence();
#endif
#ifdef RELAXED
  __syncthreads();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  cluster_sync();
#endif
  if (t < 32)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there + 16 * t),
                 "r"(4 * t + 7), "r"(4 * t + 8), "r"(4 * t + 9), "r"(t + 1000 * rank), "r"(there_bar)
                 : "memory");
  if (t < 64)
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(
                     there + 512 + 4 * (t % 32)),
                 "r"(t + 1), "r"(there_bar)
                 : "memory");
  if (t == 0) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(
                     there + 640),
                 "r"(smem_address(source)), "r"(there_bar)
                 : "memory");
    reduce_to_cta(op, there + 1152, smem_address(source) + 512, there_bar);
#ifdef EARLY_REUSE
    source[0] = 3;
#endif
  }
#ifndef NO_WAIT
  bar_wait(bar, 0);
#endif
  for (int i = t; i < 416; i += blockDim.x) out[blockIdx.x * 416 + i] = target[i];
  cluster_sync();
  if (t == 0) source[0] = 5;  // what the other CTA waited for has been read
}

#define TO_GLOBAL(OP)                                                                                                \
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." OP " [%0], [%1], 512;" ::"l"(out), "r"(s) : "memory")
// out = out (op) in, 512 bytes.
__global__ void reduce(const u32* in, u32* out, int op) {
  __shared__ alignas(128) u32 data[128];
  const u32 s = smem_address(data);
  data[threadIdx.x] = in[threadIdx.x];
  engine_fence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  switch (op) {
    case 0: TO_GLOBAL("add.noftz.f16"); break;
    case 1: TO_GLOBAL("min.f16"); break;
    case 2: TO_GLOBAL("add.noftz.bf16"); break;
    case 3: TO_GLOBAL("max.bf16"); break;
    case 4: TO_GLOBAL("add.f32"); break;
    case 5: TO_GLOBAL("add.f64"); break;
    case 6: TO_GLOBAL("min.s32"); break;
    case 7: TO_GLOBAL("max.u64"); break;
    case 8: TO_GLOBAL("and.b32"); break;
    case 9: TO_GLOBAL("or.b64"); break;
    case 10: TO_GLOBAL("xor.b32"); break;
    case 11: TO_GLOBAL("inc.u32"); break;
    case 12: TO_GLOBAL("dec.u32"); break;
    case 13: TO_GLOBAL("add.u64"); break;
    default: TO_GLOBAL("min.s64"); break;
  }
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// A column of a 3, 4 or 5-d tensor to shared memory, and as it lies there to `out`.
template <int RANK>
__global__ void columns(const __grid_constant__ Map map, u32* out, int words, int c, int w, int h, int d, int n, int ow, int oh,
                        int od) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ alignas(8) u64 bar_storage;
  const u32 s = smem_address(smem), bar = smem_address(&bar_storage);
  const u32* data = reinterpret_cast<u32*>(smem);
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    bar_expect(bar, 4 * words);
    const u16 x = ow, y = oh, z = od;
    if (RANK == 3)
      asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
                   "[%5], {%6};" ::"r"(s), "l"(&map), "r"(c), "r"(w), "r"(n), "r"(bar), "h"(x) : "memory");
    if (RANK == 4)
      asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
                   "%5}], [%6], {%7, %8};" ::"r"(s), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(bar), "h"(x), "h"(y)
                   : "memory");
    if (RANK == 5)
      asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
                   "%5, %6}], [%7], {%8, %9, %10};" ::"r"(s), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(bar), "h"(x),
                   "h"(y), "h"(z) : "memory");
  }
  bar_wait(bar, 0);
  for (int i = threadIdx.x; i < words; i += blockDim.x) out[i] = data[i];
}

// n mbarriers, each for 16 bytes; waited for from the last to the first.
#ifndef WHICH
#define WHICH i
#endif
__global__ void many(const u32* in, u32* out, int n) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 s = smem_address(smem), bars = s + 16 * n;
  if (threadIdx.x == 0) {
    for (int i = 0; i < n; ++i) bar_init(bars + 8 * i, 1);
    init_fence();
    for (int i = 0; i < n; ++i) {
      bar_expect(bars + 8 * i, 16);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(s + 16 * i),
                   "l"(in + 4 * i), "r"(bars + 8 * i) : "memory");
    }
  }
  __syncthreads();
  for (int i = n - 1; i >= 0; --i) {
    bar_wait(bars + 8 * (WHICH), 0);
    if (threadIdx.x < 4) out[4 * i + threadIdx.x] = reinterpret_cast<u32*>(smem)[4 * i + threadIdx.x];
  }
}

// One bulk copy to all CTAs of a cluster of four.
__global__ void __cluster_dims__(4, 1, 1) multicast(const u32* in, u32* out) {
  __shared__ alignas(128) u32 data[128];
  __shared__ alignas(8) u64 bar_storage;
  const u32 bar = smem_address(&bar_storage);
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    init_fence();
    bar_expect(bar, rank == 1 ? 128 : 512);
  }
  cluster_sync();
  const u16 everyone = 15, others = 13;
  if (threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;" ::"r"(
            smem_address(data) + 128 * rank), "l"(in + blockIdx.x * 32), "r"(bar), "h"(rank == 2 ? everyone : others) : "memory");
  bar_wait(bar, 0);
  out[blockIdx.x * 128 + threadIdx.x] = rank == 1 && threadIdx.x / 32 != 2 ? 0 : data[threadIdx.x];
  cluster_sync();
}
