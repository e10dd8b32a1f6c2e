// tiled_shared_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-padding+kh, ow*STRIDE-padding+kw] *
//                   weight[oc,c,kh,kw] (+ bias[oc])
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), bias (OC), y (N,OC,OH,OW).
// Mapping:  block: TILE x TILE outputs of one channel, one thread each. Grid (columns, rows, N*OC). For each channel of
//           x all threads fetch the tile of the input and its halo, SIDE x SIDE values, and then multiply.
// Tiles:    KSIZE (3), STRIDE (1), TILE (16), BIAS (0: bias is not read).
// Shared:   4*SIDE^2 bytes, SIDE = (TILE-1)*STRIDE+KSIZE; TILE^2 threads.
// Cost:     2*C*KSIZE^2 FLOP per output. Loads of x from global memory per output: C*SIDE^2/TILE^2, for 3x3, stride 1
//           and tiles of 16 1.3*C instead of direct_chw.cu's 9*C; as many loads as there from shared memory instead.
//           Weights come from the cache, one float for a whole warp. Two barriers a channel.
// Edges:    values beside the image are stored into the tile as zero; threads beyond the output help to fetch.
// Teaches:  a tile is loaded once and read KSIZE^2 times. An L1 cache does much the same for direct_chw.cu, so the gain
//           is smaller than the count of global loads says. With a stride of 2, neighbours in a warp meet in the same
//           banks.
#include "common.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef KSIZE
#define KSIZE 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef TILE
#define TILE 16
#endif

constexpr int THREADS = TILE * TILE;
constexpr int SIDE = (TILE - 1) * STRIDE + KSIZE;  // rows and columns of x that the block covers

extern "C" __global__ void __launch_bounds__(THREADS) tiled_shared_f32(float* __restrict__ y,
                                                                       const float* __restrict__ x,
                                                                       const float* __restrict__ weight,
                                                                       const float* __restrict__ bias, int C, int H,
                                                                       int W, int OC, int OH, int OW, int padding) {
  __shared__ float tile[SIDE][SIDE];
  const int ow = blockIdx.x * TILE + threadIdx.x;
  const int oh = blockIdx.y * TILE + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  const int top = static_cast<int>(blockIdx.y) * TILE * STRIDE - padding;
  const int left = static_cast<int>(blockIdx.x) * TILE * STRIDE - padding;
  const float* plane = x + (long long)n * C * H * W;
  const float* filter = weight + (long long)oc * C * KSIZE * KSIZE;

  float sum = 0.f;
  for (int c = 0; c < C; c++) {
    for (int row = threadIdx.y; row < SIDE; row += TILE)
      for (int column = threadIdx.x; column < SIDE; column += TILE) {
        const int h = top + row, w = left + column;
        const bool inside = h >= 0 && h < H && w >= 0 && w < W;
        tile[row][column] = inside ? plane[(long long)h * W + w] : 0.f;
      }
    __syncthreads();  // the tile is complete
    UNROLL
    for (int kh = 0; kh < KSIZE; kh++) {
      UNROLL
      for (int kw = 0; kw < KSIZE; kw++)
        sum = fmaf(tile[threadIdx.y * STRIDE + kh][threadIdx.x * STRIDE + kw], filter[kh * KSIZE + kw], sum);
    }
    __syncthreads();  // nobody reads the tile any more
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  if (oh < OH && ow < OW) y[((long long)blockIdx.z * OH + oh) * OW + ow] = BIAS ? sum + bias[oc] : sum;
}
