// wgmma groups: what several products on the same accumulators add up to, and how long operands must stay as they are.
#include "hopper.cu"  // its instructions as functions

__device__ __forceinline__ u64 tile(u32 address) { return descriptor(address, 16, 1024, 1); }

__device__ __forceinline__ void fill(u32* smem, u32 bits) {
  for (int i = threadIdx.x; i < 4096; i += 128) smem[i] = bits;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
}

// Ones times ones, four times K = 16: the third product replaces what was there before it.
__global__ void __launch_bounds__(128) restart(float* out, int keep_second, int keep_third) {
  extern __shared__ __align__(1024) unsigned char smem[];
  fill(reinterpret_cast<u32*>(smem), 0x3F803F80);
  const u32 s = smem_address(smem);
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 5;
  wgmma_fence();
  wgmma_ss<0, 0>(d, tile(s), tile(s + 8192), 1);
  wgmma_ss<0, 0>(d, tile(s + 32), tile(s + 8192 + 32), keep_second);
  wgmma_ss<0, 0>(d, tile(s + 64), tile(s + 8192 + 64), keep_third);
  wgmma_ss<0, 0>(d, tile(s + 96), tile(s + 8192 + 96), 1);
  wgmma_commit();
  wgmma_wait();
  store_tile(out, d, threadIdx.x);
}

#ifndef LEFT
#define LEFT 0
#endif
// Two groups read the same operands; they are overwritten when at most LEFT groups are in flight.
__global__ void __launch_bounds__(128) overwrite(float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  fill(reinterpret_cast<u32*>(smem), 0x3F803F80);
  const u32 s = smem_address(smem);
  float d[32], e[32];
  for (int i = 0; i < 32; ++i) d[i] = e[i] = 0;
  wgmma_fence();
  wgmma_ss<0, 0>(d, tile(s), tile(s + 8192), 1);
  wgmma_commit();
  wgmma_ss<0, 0>(e, tile(s), tile(s + 8192), 1);
  wgmma_commit();
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
  __syncthreads();
  reinterpret_cast<u32*>(smem)[threadIdx.x] = 0;
  reinterpret_cast<u32*>(smem)[2048 + threadIdx.x] = 0;
  wgmma_wait();
  for (int i = 0; i < 32; ++i) d[i] += e[i];
  store_tile(out, d, threadIdx.x);
}
