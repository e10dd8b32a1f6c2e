// gemm_direct_f32: out[n,o] = [activation](bias[o] + sum_k inp[n,k] * weight[o,k])
// Layouts:  those of gemm_splitk: inp (N,K) float, weight (OUT,K) float, bias (OUT) float, out (N,pitch) float; K a multiple
//           of 4, pitch >= OUT.
// Mapping:  block: one thread, TILE_OUT outputs x TILE_N images. It does what the 256 threads of gemm_splitk do, in vectors:
//           each of these has a chain of products, of k = 4t..4t+3, then of 1024 further on, and so on. Numbers are first
//           brought in the order of the chains: in a plane v those of k = 4t + v.
// Tiles:    TILE_OUT (4), TILE_N (4).
// Shared:   1024*(TILE_OUT*TILE_N + 4*TILE_N + 4) bytes, static; 1 thread.
// Cost:     2*N*OUT*K FLOP; weights are read ceil(N/TILE_N) times, from their first number to the last.
// Sums:     those of gemm_splitk, to the bit: its chains, then its tree over the lanes of a warp, then the warps in order.
// Edges:    any OUT, N, K % 4 == 0; columns OUT..pitch-1 of out are written as zero.
// Why:      on a CPU a thread of gemm_splitk costs as much as many products, and reads 16 bytes here and there where a CPU
//           wants to read on.
#include "common.cuh"
#include "timeline.cuh"

#ifndef TILE_OUT
#define TILE_OUT 4
#endif
#ifndef TILE_N
#define TILE_N 4
#endif

constexpr int CHAINS = 256, WARP = 32;
constexpr int STEP = 4 * CHAINS;  // of k, from product to product of a chain

typedef float Chains[CHAINS];
typedef float Planes[4][CHAINS];

// Numbers of `chains` chains, the first of those that a step of k has.
__device__ __forceinline__ void split(Planes& planes, const float* source, int chains) {
  LANES
  for (int t = 0; t < chains; t++) {
    planes[0][t] = source[4 * t];
    planes[1][t] = source[4 * t + 1];
    planes[2][t] = source[4 * t + 2];
    planes[3][t] = source[4 * t + 3];
  }
}

__device__ __forceinline__ void multiply(Chains& sums, const Planes& weights, const Planes& values, int chains) {
  LANES
  for (int t = 0; t < chains; t++) {
    float sum = sums[t];
    sum = fmaf(weights[0][t], values[0][t], sum);
    sum = fmaf(weights[1][t], values[1][t], sum);
    sum = fmaf(weights[2][t], values[2][t], sum);
    sums[t] = fmaf(weights[3][t], values[3][t], sum);
  }
}

// In the order of add_lanes, then of the warps.
__device__ __forceinline__ float total_of(Chains& sums) {
  float total = 0.f;
  for (int first = 0; first < CHAINS; first += WARP) {
    float* const lanes = sums + first;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
      LANES
      for (int lane = 0; lane < distance; lane++) lanes[lane] += lanes[lane + distance];
    }
    total += lanes[0];
  }
  return total;
}

extern "C" __global__ void WIDE_VECTORS
gemm_direct_f32(float* __restrict__ out, const float* __restrict__ inp, const float* __restrict__ weight,
                const float* __restrict__ bias, int N, int OUT, int K, int pitch,
                ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  TIMED(STAMP(BEGUN);)
  __shared__ __align__(64) Chains sums[TILE_OUT][TILE_N];
  __shared__ __align__(64) Planes values[TILE_N], weights;
  const int image_tiles = (N + TILE_N - 1) / TILE_N;  // blocks with the same weights are neighbours
  const int o0 = blockIdx.x / image_tiles * TILE_OUT, n0 = blockIdx.x % image_tiles * TILE_N;
  const int outputs = min(TILE_OUT, OUT - o0), images = min(TILE_N, N - n0);
  for (int o = 0; o < outputs; o++) {
    for (int n = 0; n < images; n++) {
      LANES
      for (int t = 0; t < CHAINS; t++) sums[o][n][t] = 0.f;
    }
  }
  for (int k = 0; k < K; k += STEP) {
    const int chains = min(CHAINS, (K - k) / 4);
    for (int n = 0; n < images; n++) split(values[n], inp + (long long)(n0 + n) * K + k, chains);
    for (int o = 0; o < outputs; o++) {
      split(weights, weight + (long long)(o0 + o) * K + k, chains);
      for (int n = 0; n < images; n++) multiply(sums[o][n], weights, values[n], chains);
    }
  }
  TIMED(STAMP(SUMS_READY);)
  for (int o = 0; o < TILE_OUT && o0 + o < pitch; o++) {
    for (int n = 0; n < images; n++) {
      const float sum = o < outputs ? total_of(sums[o][n]) + bias[o0 + o] : 0.f;
      out[(long long)(n0 + n) * pitch + o0 + o] = ACTIVATION(activation)(sum);
    }
  }
  TIMED(STAMP(DONE);)
}
