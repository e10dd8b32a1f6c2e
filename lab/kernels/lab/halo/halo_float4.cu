// halo_float4_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                  weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  as halo_even.cu, by 16 bytes: what is dealt out are groups of 4 floats. Where W is no multiple of 4 it is
//           halo_even.cu.
// Tiles:    halo.cuh: KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (8), a multiple of 4, BLOCK_Y (4).
// Shared:   4*(ROWS*PITCH + KSIZE^2) bytes, see halo.cuh; BLOCK_X*BLOCK_Y threads.
// Cost:     2*C*KSIZE^2 FLOP per output. A thread starts ROWS*QUADS/(BLOCK_X*BLOCK_Y) copies of a channel, rounded up: 2 for
//           6x6 and blocks of 4x8, where halo_even.cu starts 4. Two barriers a channel.
// Edges:    values beside the image are written into the tile as zero; rows of any length.
// Teaches:  fewer instructions for the same bytes; 16-byte copies need addresses that are a multiple of 16, so the tile
//           begins further left than it must. halo_shared.cu is the same with several output channels a thread.
#define OUTPUTS 1
#include "lab/halo.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_float4_f32(
    float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight, int C, int H, int W, int OC,
    int OH, int OW) {
  __shared__ Tile tile;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  with_one_tile<Share::QUADS>(tile, y, x, weight, C, H, W, n, oc, OC, OH, OW);
}
