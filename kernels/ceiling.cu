// ceiling_copy: out[i] = inp[i].   ceiling_ffma: out[thread] = the sum of 4*CHAINS values, each x = fmaf(x, a, b)
//                 `rounds` times.
// Layouts:  ceiling_copy: inp and out: `count4` groups of 4 floats; ceiling_ffma: out: one float per thread.
// Mapping:  ceiling_copy: block: 256*GROUPS consecutive 16-byte groups, a warp reads 512 consecutive bytes at a time;
//           ceiling_ffma: a thread has 4*CHAINS independent chains in registers.
// Tiles:    GROUPS (8): 16-byte loads that a thread has under way at once. CHAINS (14): vectors of 4 chains, enough to
//           hide the latency of fmaf, few enough for 16 vector registers.
// Shared:   none; 256 threads.
// Cost:     ceiling_copy: 0 FLOP, reads and writes count4*16 bytes; ceiling_ffma: 8*CHAINS*rounds FLOP per thread,
//           writes 4 bytes per thread.
// Edges:    any count4; rounds >= 0.
// Why:      the benchmark's yardstick: what this device does when there is nothing but memory traffic, or nothing but
//           FFMA.
#include "common.cuh"

#ifndef GROUPS
#define GROUPS 8
#endif
#ifndef CHAINS
#define CHAINS 14
#endif

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling_copy(float* __restrict__ out, const float* __restrict__ inp, int count4) {
  const long long first = (long long)blockIdx.x * (THREADS * GROUPS) + threadIdx.x;
  float4 v[GROUPS];
  UNROLL
  for (int g = 0; g < GROUPS; g++)
    if (first + g * THREADS < count4) v[g] = load4_stream(inp + 4 * (first + g * THREADS));
  UNROLL
  for (int g = 0; g < GROUPS; g++)
    if (first + g * THREADS < count4) store4(out + 4 * (first + g * THREADS), v[g]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
ceiling_ffma(float* __restrict__ out, int rounds, float a, float b) {
  const int index = blockIdx.x * THREADS + threadIdx.x;
  float x[CHAINS][4];
  UNROLL
  for (int c = 0; c < CHAINS; c++)
    UNROLL
    for (int v = 0; v < 4; v++) x[c][v] = index + 4 * c + v;  // all different, or the compiler keeps one chain
  for (int round = 0; round < rounds; round++)
    UNROLL
    for (int c = 0; c < CHAINS; c++)
      LANES
      for (int v = 0; v < 4; v++) x[c][v] = fmaf(x[c][v], a, b);
  float sum = 0.f;
  UNROLL
  for (int c = 0; c < CHAINS; c++)
    UNROLL
    for (int v = 0; v < 4; v++) sum += x[c][v];
  out[index] = sum;
}
