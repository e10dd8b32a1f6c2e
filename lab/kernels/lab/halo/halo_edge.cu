// halo_edge_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  a thread an output in blocks of BLOCK_X x BLOCK_Y. Grid (columns, rows, N*OC). For each channel of x a thread
//           copies the value of its own place; the threads of the last column and row copy the halo beside theirs.
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4).
// Shared:   4*(ROWS*PITCH + KSIZE^2) bytes, see halo.cuh; BLOCK_X*BLOCK_Y threads.
// Cost:     2*C*KSIZE^2 FLOP per output. A thread copies 1 value of a channel, at an edge KSIZE, in the corner KSIZE^2 (at
//           stride 1): for 6x6 the corner's thread copies 36 while the others wait. Two barriers a channel.
// Edges:    values beside the image are written into the tile as zero; rows of any length.
// Teaches:  the share of work that comes to mind first, and its price: a warp is as slow as its busiest thread.
#define OUTPUTS 1
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_edge_f32(
    float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight, int C, int H, int W, int OC,
    int OH, int OW) {
  __shared__ Tile tile;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  with_one_tile<Share::EDGE>(tile, y, x, weight, C, H, W, n, oc, OC, OH, OW);
}
