// transfer: out[i] = inp[i]
// Layouts:  inp, out: `words` words of 4 bytes, both from a multiple of 16 bytes on, anywhere a kernel reaches: on the
//           device or in pinned memory of the host.
// Mapping:  block: 256*GROUPS consecutive 16-byte groups, a warp reads 512 consecutive bytes at a time.
// Tiles:    GROUPS (8): 16-byte loads that a thread has under way at once.
// Shared:   none; 256 threads.
// Cost:     0 FLOP, reads and writes 4*words bytes.
// Edges:    any number of words; the first threads of the first block copy the words behind the last whole group.
// Start:    early (programmatic dependent launch), from Hopper on, and so does the next kernel.
// Why:      between host and device a kernel takes a few us less than a copy node of a CUDA graph, which counts where
//           there is little to copy; from device to device it is the benchmark's yardstick of memory.
#include "early_start.cuh"

#ifndef GROUPS
#define GROUPS 8
#endif

constexpr int THREADS = 256;

// load4_stream, of memory that the kernel before this one may write: it stays behind the wait for that.
__device__ __forceinline__ float4 load4_stream_in_order(const float* source) {
#if HAS_EARLY_STARTS
  float4 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(__cvta_generic_to_global(source)));
  return v;
#else
  return load4_stream(source);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) transfer(float* out, const float* inp, int words) {
  const int groups = words / 4, rest = words % 4;
  const long long first = (long long)blockIdx.x * (THREADS * GROUPS) + threadIdx.x;
  let_next_kernel_start();
  wait_for_previous_kernel();
  float4 v[GROUPS];
  UNROLL
  for (int g = 0; g < GROUPS; g++)
    if (first + g * THREADS < groups) v[g] = load4_stream_in_order(inp + 4 * (first + g * THREADS));
  UNROLL
  for (int g = 0; g < GROUPS; g++)
    if (first + g * THREADS < groups) store4(out + 4 * (first + g * THREADS), v[g]);
  if (first < rest) out[4LL * groups + first] = inp[4LL * groups + first];
}
