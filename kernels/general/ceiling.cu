// ceiling_ffma: out[thread] = the sum of 4*CHAINS values, each x = fmaf(x, a, b) `rounds` times.
// Layouts:  out: one float per thread.
// Mapping:  a thread has 4*CHAINS independent chains in registers.
// Tiles:    CHAINS (14): vectors of 4 chains, enough to hide the latency of fmaf, few enough for 16 vector registers.
// Shared:   none; 256 threads.
// Cost:     8*CHAINS*rounds FLOP per thread, writes 4 bytes per thread.
// Edges:    rounds >= 0.
// Why:      the benchmark's yardstick: what this device does when there is nothing but FFMA. Of memory it is transfer.cu.
#include "common.cuh"

#ifndef CHAINS
#define CHAINS 14
#endif

constexpr int THREADS = 256;

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
