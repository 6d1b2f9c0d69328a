// Small sm_90a kernels for the simulator's tests: each uses few instructions in a known way. Host code is in the tests.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
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
__device__ __forceinline__ void bar_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void tma_load(u32 dst, const Map* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
      "l"(map), "r"(bar), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ u64 descriptor(u32 address, u32 lbo, u32 sbo, u32 mode) {
  return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(lbo >> 4) << 16 | static_cast<u64>(sbo >> 4) << 32 |
         static_cast<u64>(mode) << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(d) D4(d, 0), D4(d, 4), D4(d, 8), D4(d, 12), D4(d, 16), D4(d, 20), D4(d, 24), D4(d, 28)
#define REGS32                                                                                                          \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"

template <int TA, int TB>
__device__ __forceinline__ void wgmma_ss(float (&d)[32], u64 a, u64 b, int keep) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS32
               ", %32, %33, p, 1, 1, %35, %36;\n}"
               : D32(d)
               : "l"(a), "l"(b), "r"(keep), "n"(TA), "n"(TB));
}
template <int TB>
__device__ __forceinline__ void wgmma_rs(float (&d)[32], const u32 (&a)[4], u64 b, int keep) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS32
               ", {%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}"
               : D32(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(TB));
}

__device__ __forceinline__ void store_tile(float* out, const float (&d)[32], int t) {
  const int row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
  for (int i = 0; i < 32; ++i) out[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + col + i % 2] = d[i];
}

// How an operand lies in shared memory: boxes of `box_bytes`, `boxes` of them; `step` bytes between k-steps of 16.
struct Operand {
  int boxes, box_bytes, box_x;  // box_x: elements from one box to the next in the inner dimension
  u32 lbo, sbo, mode;
  int step[4];
};

// D = A B^T for 64 x 64 x 64 with any swizzle and major of either operand.
template <int TA, int TB>
__global__ void __launch_bounds__(128)
    product(const __grid_constant__ Map map_a, const __grid_constant__ Map map_b, float* out, Operand a, Operand b) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bar_storage;
  const u32 sa = smem_address(smem), sb = sa + 8192, bar = smem_address(&bar_storage);
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    bar_expect(bar, 16384);
    for (int i = 0; i < a.boxes; ++i) tma_load(sa + i * a.box_bytes, &map_a, bar, i * a.box_x, 0);
    for (int i = 0; i < b.boxes; ++i) tma_load(sb + i * b.box_bytes, &map_b, bar, i * b.box_x, 0);
  }
  bar_wait(bar, 0);
  float d[32];
  wgmma_fence();
  for (int k = 0; k < 4; ++k)
    wgmma_ss<TA, TB>(d, descriptor(sa + a.step[k], a.lbo, a.sbo, a.mode), descriptor(sb + b.step[k], b.lbo, b.sbo, b.mode), k > 0);
  wgmma_commit();
  wgmma_wait();
  store_tile(out, d, threadIdx.x);
}

// A from registers, B (K-major, 128-byte swizzle) written with ordinary stores: the swizzle by hand, and the fence.
__global__ void __launch_bounds__(128) from_registers(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int t = threadIdx.x, lane = t % 32, row = t / 32 * 16 + lane / 4;
  const u32* words = reinterpret_cast<const u32*>(b);
  for (int i = t; i < 64 * 32; i += 128) {
    const u32 at = i * 4;
    *reinterpret_cast<u32*>(smem + (at ^ (at >> 7 & 7) << 4)) = words[i];
  }
#ifndef NO_FENCE
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
  __syncthreads();
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 1.0f;
  u32 f[4][4];
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i)
      f[k][i] = *reinterpret_cast<const u32*>(a + (row + i % 2 * 8) * 64 + k * 16 + i / 2 * 8 + lane % 4 * 2);
  wgmma_fence();
  for (int k = 0; k < 4; ++k) wgmma_rs<0>(d, f[k], descriptor(smem_address(smem) + k * 32, 16, 1024, 1), 1);
  wgmma_commit();
  wgmma_wait();
  store_tile(out, d, t);
}

#ifndef LATE_WARP
#define LATE_WARP 0
#endif
#ifndef PHASE
#define PHASE (k >> 1) & 1
#endif
#ifndef BYTES
#define BYTES 16384
#endif
// C (64 x 64) = A B^T over nk blocks of 64: one producer warpgroup, one consumer warpgroup, a ring of two stages.
__global__ void __launch_bounds__(256)
    ring(const __grid_constant__ Map map_a, const __grid_constant__ Map map_b, float* out, int nk) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bars[4];
  const u32 s = smem_address(smem), full = smem_address(bars), empty = full + 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      bar_init(full + 8 * i, 1);
      bar_init(empty + 8 * i, 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int k = 0; k < nk; ++k) {
        const int stage = k & 1;
#ifndef NO_EMPTY_WAIT
        if (k >= 2) bar_wait(empty + 8 * stage, ((k >> 1) - 1) & 1);
#endif
        bar_expect(full + 8 * stage, BYTES);
        tma_load(s + stage * 16384, &map_a, full + 8 * stage, k * 64, 0);
        tma_load(s + stage * 16384 + 8192, &map_b, full + 8 * stage, k * 64, 0);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 0;
  for (int k = 0; k < nk; ++k) {
    const int stage = k & 1;
    bar_wait(full + 8 * stage, PHASE);
    const u32 a = s + stage * 16384;
    wgmma_fence();
    for (int q = 0; q < 4; ++q)
      wgmma_ss<0, 0>(d, descriptor(a + q * 32, 16, 1024, 1), descriptor(a + 8192 + q * 32, 16, 1024, 1), 1);
    wgmma_commit();
#ifdef EARLY_RELEASE
    bar_arrive(empty + 8 * stage);
#endif
    wgmma_wait();
#ifndef EARLY_RELEASE
    bar_arrive(empty + 8 * stage);
#endif
  }
  store_tile(out, d, threadIdx.x - 128);
}

// A box of a 2-d tensor through shared memory: load at (x, y), add one, store or add at (to_x, to_y).
__global__ void through(const __grid_constant__ Map from, const __grid_constant__ Map to, int x, int y, int to_x, int to_y,
                        int add) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bar_storage;
  const u32 s = smem_address(smem), bar = smem_address(&bar_storage);
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    bar_expect(bar, 32 * 16 * 4);
    tma_load(s, &from, bar, x, y);
  }
  bar_wait(bar, 0);
  float* values = reinterpret_cast<float*>(smem);
  for (int i = threadIdx.x; i < 32 * 16; i += blockDim.x) values[i] += 1;
#ifndef NO_FENCE
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
    if (add)
      asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
                   "r"(to_x), "r"(to_y), "r"(s)
                   : "memory");
    else
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to), "r"(to_x),
                   "r"(to_y), "r"(s)
                   : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#ifndef NO_READ_WAIT
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    values[0] = 77;
  }
}

// 1-d bulk copies: n floats in, doubled, out.
__global__ void plain_bulk(const float* in, float* out, int n) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bar_storage;
  const u32 s = smem_address(smem), bar = smem_address(&bar_storage);
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
#ifndef NO_INIT_FENCE
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef LATE_INIT_FENCE
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
    bar_expect(bar, n * 4);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(s), "l"(in),
                 "r"(n * 4), "r"(bar)
                 : "memory");
  }
  bar_wait(bar, 0);
  float* values = reinterpret_cast<float*>(smem);
  for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] *= 2;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(s), "r"(n * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Clusters of two: each CTA's first thread multicasts half of a row of boxes; every thread reads the neighbour's memory.
__global__ void __cluster_dims__(2, 1, 1) pair(const __grid_constant__ Map map, float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bar_storage;
  const u32 s = smem_address(smem), bar = smem_address(&bar_storage);
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    bar_expect(bar, 2 * 32 * 4 * 4);
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], "
        "[%2], %5;" ::"r"(s + rank * 512),
        "l"(&map), "r"(bar), "r"(0), "r"(static_cast<int>(blockIdx.x) * 4), "h"(static_cast<unsigned short>(3))
        : "memory");
  bar_wait(bar, 0);
  float* values = reinterpret_cast<float*>(smem);
  const float mine = values[threadIdx.x] + 1000 * values[128 + threadIdx.x];
  values[256 + threadIdx.x] = mine + rank;
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#ifndef NO_CLUSTER_WAIT
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  u32 remote;
  float theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(s + 1024 + 4 * threadIdx.x), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(theirs) : "r"(remote));
#ifdef NO_CLUSTER_WAIT
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  out[blockIdx.x * 128 + threadIdx.x] = theirs;
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// One warp of a warpgroup comes late to a wgmma: it waits for an arrival of the other warpgroup.
__global__ void __launch_bounds__(256) one_warp_late(float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ __align__(8) u64 bar_storage;
  const u32 bar = smem_address(&bar_storage);
  if (threadIdx.x == 0) {
    bar_init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  for (int i = threadIdx.x; i < 4096; i += 256) reinterpret_cast<u32*>(smem)[i] = 0x3F803F80;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) bar_arrive(bar);
    return;
  }
  if (threadIdx.x / 32 == LATE_WARP) bar_wait(bar, 0);
  float d[32];
  wgmma_fence();
  wgmma_ss<0, 0>(d, descriptor(smem_address(smem), 16, 1024, 1), descriptor(smem_address(smem) + 8192, 16, 1024, 1), 0);
  wgmma_commit();
  wgmma_wait();
  store_tile(out, d, threadIdx.x);
}

// Accumulators in flight: FAULT_TOUCH reads them before the wait, FAULT_NOFENCE leaves the first fence out.
__global__ void __launch_bounds__(128) in_flight(float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  for (int i = threadIdx.x; i < 4096; i += 128) reinterpret_cast<u32*>(smem)[i] = 0x3F803F80;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = threadIdx.x;
#ifndef FAULT_NOFENCE
  wgmma_fence();
#endif
  const u32 s = smem_address(smem);
  wgmma_ss<0, 0>(d, descriptor(s, 16, 1024, 1), descriptor(s + 8192, 16, 1024, 1), 1);
  wgmma_commit();
#ifdef FAULT_TOUCH
  for (int i = 0; i < 32; ++i) d[i] *= 2;
  wgmma_wait();
#else
  wgmma_wait();
  for (int i = 0; i < 32; ++i) d[i] *= 2;
#endif
  store_tile(out, d, threadIdx.x);
}
