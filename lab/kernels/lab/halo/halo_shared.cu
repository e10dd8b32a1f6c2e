// halo_shared_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                  weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  block: BLOCK_X x BLOCK_Y pixels of OUTPUTS output channels, a thread for each pixel. Grid (columns, rows,
//           N*groups of output channels). For each channel of x all threads fetch the tile, its halo and the filters, each
//           as much as the others, and then multiply.
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4), OUTPUTS (8).
// Shared:   4*(ROWS*PITCH + KSIZE^2*OUTPUTS) bytes, see halo.cuh; BLOCK_X*BLOCK_Y threads. Registers: OUTPUTS sums.
// Cost:     2*C*KSIZE^2 FLOP per output. Global loads of x per output: C*ROWS*SPAN/(BLOCK_X*BLOCK_Y*OUTPUTS), for 6x6,
//           blocks of 8x4 and 8 channels 0.46*C floats, by fours. Shared loads: 1/OUTPUTS of x, 1/4 of weight for each
//           multiply-add. Two barriers a channel.
// Edges:    values beside the image are written into the tile as zero; rows of any length, see halo.cuh; the last group may
//           go beyond OC: its filters are zero and it does not store.
// Teaches:  the work of fetching is dealt evenly, 16 bytes at a time, though tiles begin at odd places; sums of several
//           output channels use each value several times. Both barriers are needed: one until the tile is complete, one
//           until nobody reads it any more. In between the block waits for memory; other blocks must fill that time.
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_shared_f32(float* __restrict__ y,
                                                                         const float* __restrict__ x,
                                                                         const float* __restrict__ weight, int C, int H,
                                                                         int W, int OC, int OH, int OW) {
  __shared__ Tile tile;
  const int groups = (OC + OUTPUTS - 1) / OUTPUTS;
  const int oc = blockIdx.z % groups * OUTPUTS, n = blockIdx.z / groups;
  with_one_tile<Share::QUADS>(tile, y, x, weight, C, H, W, n, oc, OC, OH, OW);
}
