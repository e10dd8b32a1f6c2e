// ceiling_ffma: out[thread] = the sum of 4*CHAINS values, each x = fmaf(x, a, b) `rounds` times.
// Layouts:  out: one float per thread.
// Mapping:  a thread has 4*CHAINS independent chains in registers.
// Tiles:    CHAINS (14): fours of chains, enough to hide the latency of fmaf, few enough for the registers; 28 on a CPU, where
//           vectors are wider.
// Shared:   none; 256 threads.
// Cost:     8*CHAINS*rounds FLOP per thread, writes 4 bytes per thread.
// Edges:    rounds >= 0.
// Why:      the benchmark's yardstick: what this device does when there is nothing but FFMA. Of memory it is transfer.cu.
#include "common.cuh"

#ifndef CHAINS
#define CHAINS 14
#endif

constexpr int THREADS = 256;
constexpr int VECTORS = 4 * CHAINS / VECTOR_FLOATS;
static_assert(VECTORS * VECTOR_FLOATS == 4 * CHAINS, "chains fill whole vectors");

extern "C" __global__ void __launch_bounds__(THREADS) WIDE_VECTORS
ceiling_ffma(float* __restrict__ out, int rounds, float a, float b) {
  const int index = blockIdx.x * THREADS + threadIdx.x;
  float x[VECTORS][VECTOR_FLOATS];
  UNROLL
  for (int c = 0; c < VECTORS; c++)
    UNROLL
    for (int v = 0; v < VECTOR_FLOATS; v++) x[c][v] = index + VECTOR_FLOATS * c + v;  // or the compiler keeps one chain
  for (int round = 0; round < rounds; round++)
    UNROLL
    for (int c = 0; c < VECTORS; c++)
      LANES
      for (int v = 0; v < VECTOR_FLOATS; v++) x[c][v] = fmaf(x[c][v], a, b);
  float sum = 0.f;
  UNROLL
  for (int c = 0; c < VECTORS; c++)
    UNROLL
    for (int v = 0; v < VECTOR_FLOATS; v++) sum += x[c][v];
  out[index] = sum;
}
