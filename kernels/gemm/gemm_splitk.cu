// gemm_splitk_f32: out[n,o] = [activation](bias[o] + sum_k inp[n,k] * weight[o,k])
// Layouts:  inp (N,K) float, weight (OUT,K) float, bias (OUT) float, out (N,pitch) float; K a multiple of 4, pitch >=
//           OUT.
// Mapping:  block: TILE_OUT outputs x TILE_N images, its 256 threads split the reduction: thread t sums k = 4t..4t+3,
//           then 1024 further on, and so on; a shuffle tree adds the lanes of a warp, shared memory the 8 warps in
//           order. Thread: TILE_OUT x TILE_N sums.
// Tiles:    TILE_OUT (4), TILE_N (1), UNROLL_K (2). TILE_N 1-8 is bound by the memory that the weights come from; 8x16
//           is a register-tiled GEMM that uses each weight 16 times.
// Shared:   32*TILE_OUT*TILE_N bytes, static; 256 threads.
// Cost:     2*N*OUT*K FLOP; weights are read ceil(N/TILE_N) times, OUT*K*4 bytes each; per thread TILE_OUT + TILE_N
//           16-byte loads for 4*TILE_OUT*TILE_N FFMA.
// Sums:     the order is fixed by K alone: the bits of an image are the same for every tile, batch and position.
// Edges:    any OUT, N, K % 4 == 0; columns OUT..pitch-1 of out are written as zero.
// Why:      fully connected layers stream 494 MB of weights once: at small batch only the memory bandwidth counts.
#include "block_reduce.cuh"
#include "timeline.cuh"

#ifndef TILE_OUT
#define TILE_OUT 4
#endif
#ifndef TILE_N
#define TILE_N 1
#endif
#ifndef UNROLL_K
#define UNROLL_K 2
#endif

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
static_assert(TILE_OUT * TILE_N <= 128, "the sums of a thread stay in registers, and one thread finishes each");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_splitk_f32(float* __restrict__ out, const float* __restrict__ inp, const float* __restrict__ weight,
                const float* __restrict__ bias, int N, int OUT, int K, int pitch,
                ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  __shared__ float warp_sum[WARPS][TILE_OUT * TILE_N];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int image_tiles = (N + TILE_N - 1) / TILE_N;  // blocks with the same weights are neighbours, for the L2 cache
  const int o0 = blockIdx.x / image_tiles * TILE_OUT, n0 = blockIdx.x % image_tiles * TILE_N;
  const float* w[TILE_OUT];
  const float* x[TILE_N];
  UNROLL
  for (int o = 0; o < TILE_OUT; o++) w[o] = weight + (long long)min(o0 + o, OUT - 1) * K;  // beyond OUT: the last row
  UNROLL
  for (int n = 0; n < TILE_N; n++) x[n] = inp + (long long)min(n0 + n, N - 1) * K;
  float sum[TILE_OUT * TILE_N];  // all images of an output, then those of the next
  UNROLL
  for (int i = 0; i < TILE_OUT * TILE_N; i++) sum[i] = 0.f;

  for (int k0 = tid * 4; k0 < K; k0 += THREADS * 4 * UNROLL_K) {
    float wv[UNROLL_K][TILE_OUT][4];
    UNROLL
    for (int u = 0; u < UNROLL_K; u++) {  // all loads first: the memory latency is paid once per round
      const int k = k0 + u * THREADS * 4;
      UNROLL
      for (int o = 0; o < TILE_OUT; o++)
        if (k < K) unpack4(wv[u][o], load4_stream(w[o] + k));
    }
    UNROLL
    for (int u = 0; u < UNROLL_K; u++) {
      const int k = k0 + u * THREADS * 4;
      if (k >= K) break;
      UNROLL
      for (int n = 0; n < TILE_N; n++) {
        float xv[4];
        unpack4(xv, load4(x[n] + k));
        UNROLL
        for (int o = 0; o < TILE_OUT; o++) {
          UNROLL
          for (int v = 0; v < 4; v++) sum[o * TILE_N + n] = fmaf(wv[u][o][v], xv[v], sum[o * TILE_N + n]);
        }
      }
    }
  }

  // ---- reduction: lanes by a butterfly, then warps in order
  add_lanes(sum, [&](int i, float total) {
    if (lane == 0) warp_sum[warp][i] = total;
  });
  __syncthreads();  // the sums of all warps are there
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
  if (tid < TILE_OUT * TILE_N) {
    const int o = o0 + tid / TILE_N, n = n0 + tid % TILE_N;
    if (n >= N || o >= pitch) return;
    float t = 0.f;
    for (int i = 0; i < WARPS; i++) t += warp_sum[i][tid];
    t += o < OUT ? bias[o] : 0.f;
    out[(long long)n * pitch + o] = o < OUT ? ACTIVATION(activation)(t) : 0.f;
    TIMED(if (threadIdx.x == 0) STAMP(DONE);)
  }
}
