// halo_oc_outside_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                      weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  as halo_shared.cu, a block computes all output channels of its pixels, but one after the other: the loop over
//           output channels is outside, that over input channels inside. Grid (columns, rows, N).
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4).
// Shared:   4*(ROWS*PITCH + KSIZE^2) bytes, see halo.cuh; BLOCK_X*BLOCK_Y threads.
// Cost:     2*C*KSIZE^2 FLOP per output. One sum a thread, not one for each output channel; for it every channel of x is
//           copied again for every output channel. Two barriers for each pair of channels.
// Edges:    values beside the image are written into the tile as zero; rows of any length.
// Teaches:  the order of two loops decides what stays in registers: either a sum, or many sums and each tile used OC times.
#define OUTPUTS 1
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_oc_outside_f32(
    float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight, int C, int H, int W, int OC,
    int OH, int OW) {
  __shared__ Tile tile;
  for (int oc = 0; oc < OC; oc++)
    with_one_tile<Share::QUADS>(tile, y, x, weight, C, H, W, blockIdx.z, oc, OC, OH, OW);
}
