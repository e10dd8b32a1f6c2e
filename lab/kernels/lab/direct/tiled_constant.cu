// tiled_constant_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-padding+kh, ow*STRIDE-padding+kw] *
//                     weight[oc,c,kh,kw] (+ bias[oc])
// Layouts:  float. x (N,C,H,W), bias (OC), y (N,OC,OH,OW); weight (OC,C,KSIZE,KSIZE) in constant memory, at most 16384
//           floats.
// Mapping:  as tiled_shared.cu: a block has TILE x TILE outputs of one channel, one thread each; grid (columns, rows,
//           N*OC). For each channel of x all threads fetch SIDE x SIDE values of the input, and then multiply.
// Tiles:    KSIZE (3), STRIDE (1), TILE (16), BIAS (0: bias is not read).
// Shared:   4*SIDE^2 bytes, SIDE = (TILE-1)*STRIDE+KSIZE; TILE^2 threads.
// Cost:     as tiled_shared.cu, but each weight comes from the constant cache, one float for a whole warp. Two barriers
//           a channel.
// Edges:    values beside the image are stored into the tile as zero; threads beyond the output help to fetch.
// Teaches:  tiled_shared.cu's products still load their weights as they would load x. All threads of a block want the
//           same one at the same time, which is what the constant cache is made for.
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

constexpr int CAPACITY = 65536 / sizeof(float);
constexpr int THREADS = TILE * TILE;
constexpr int SIDE = (TILE - 1) * STRIDE + KSIZE;  // rows and columns of x that the block covers

extern "C" {
__constant__ float weight[CAPACITY];
}

extern "C" __global__ void __launch_bounds__(THREADS) tiled_constant_f32(float* __restrict__ y,
                                                                         const float* __restrict__ x,
                                                                         const float* __restrict__ bias, int C, int H,
                                                                         int W, int OC, int OH, int OW, int padding) {
  __shared__ float tile[SIDE][SIDE];
  const int ow = blockIdx.x * TILE + threadIdx.x;
  const int oh = blockIdx.y * TILE + threadIdx.y;
  const int oc = blockIdx.z % OC, n = blockIdx.z / OC;
  const int top = static_cast<int>(blockIdx.y) * TILE * STRIDE - padding;
  const int left = static_cast<int>(blockIdx.x) * TILE * STRIDE - padding;
  const float* plane = x + (long long)n * C * H * W;
  int filter = oc * C * KSIZE * KSIZE;

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
        sum = fmaf(tile[threadIdx.y * STRIDE + kh][threadIdx.x * STRIDE + kw], weight[filter + kh * KSIZE + kw], sum);
    }
    __syncthreads();  // nobody reads the tile any more
    plane += (long long)H * W;
    filter += KSIZE * KSIZE;
  }
  if (oh < OH && ow < OW) y[((long long)blockIdx.z * OH + oh) * OW + ow] = BIAS ? sum + bias[oc] : sum;
}
