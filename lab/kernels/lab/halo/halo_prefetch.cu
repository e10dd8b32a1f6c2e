// halo_prefetch_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                    weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  as halo_shared.cu, with two tiles: while one channel is multiplied, the next one is on its way.
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4), OUTPUTS (8).
// Shared:   twice that of halo_shared.cu; BLOCK_X*BLOCK_Y threads. Registers: OUTPUTS sums.
// Cost:     loads and FLOP as halo_shared.cu; one barrier a channel.
// Edges:    as halo_shared.cu.
// Teaches:  a prefetch needs a second place and a copy that nobody waits for: cp.async, from Ampere on. (Older cards copy
//           through registers and wait at the store.) Then one barrier serves both ends: it says that this channel is
//           complete and that the other tile, the one before, is free. With one tile alone there is nothing to prefetch
//           into: refilled early it is a race, refilled late it is halo_shared.cu.
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_prefetch_f32(float* __restrict__ y,
                                                                           const float* __restrict__ x,
                                                                           const float* __restrict__ weight, int C,
                                                                           int H, int W, int OC, int OH, int OW) {
  __shared__ Tile tile[2];
  const int groups = (OC + OUTPUTS - 1) / OUTPUTS;
  const int oc = blockIdx.z % groups * OUTPUTS, n = blockIdx.z / groups;
  Fetcher fetcher(x, weight, C, H, W, n, oc, OC);

  float sum[OUTPUTS] = {};
  fetcher.fetch<Share::QUADS>(tile[0]);
  for (int c = 0; c < C; c++) {
    copy_async_wait<0>();
    __syncthreads();  // this channel is complete, and nobody reads the one before any more
    if (c + 1 < C) fetcher.fetch<Share::QUADS>(tile[(c + 1) % 2]);
    add_channel(sum, tile[c % 2]);
  }
  store(y, sum, n, oc, OC, OH, OW);
}
