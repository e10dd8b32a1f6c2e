// halo_even_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  as halo_edge.cu, but the values of tile and halo are dealt out evenly: thread t copies values t, t + 32, ...
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4).
// Shared:   4*(ROWS*PITCH + KSIZE^2) bytes, see halo.cuh; BLOCK_X*BLOCK_Y threads.
// Cost:     2*C*KSIZE^2 FLOP per output. A thread copies ROWS*SPAN/(BLOCK_X*BLOCK_Y) values of a channel, rounded up: 4 for
//           6x6 and blocks of 4x8, where the corner's thread of halo_edge.cu copies 36. Two barriers a channel.
// Edges:    values beside the image are written into the tile as zero; rows of any length.
// Teaches:  which thread copies a value need not be the thread that uses it: the barrier is there in any case.
#define OUTPUTS 1
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_even_f32(
    float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight, int C, int H, int W, int OC,
    int OH, int OW) {
  __shared__ Tile tile;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  with_one_tile<Share::SINGLES>(tile, y, x, weight, C, H, W, n, oc, OC, OH, OW);
}
