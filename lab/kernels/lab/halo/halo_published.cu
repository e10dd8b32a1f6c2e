// halo_published_f32: y[n,oc,oh,ow] = sum over c, kh, kw of x[n, c, oh*STRIDE-PADDING+kh, ow*STRIDE-PADDING+kw] *
//                     weight[oc,c,kh,kw]
// Layouts:  float. x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW).
// Mapping:  the published pseudo-code. A thread an output in blocks of BLOCK_X x BLOCK_Y; the last block of a row or column
//           is larger and covers what is left, so its threads have up to 4 outputs. Output channels outside, input channels
//           inside: each tile is copied again for every output channel. The next tile is copied into the only one. Grid
//           (whole blocks of columns, of rows, N), at least one each.
// Copies:   as published: a row of the tile is cut into pieces of 4 floats, a thread takes a piece, then the one so many
//           rows below; the thread of the last piece takes the rest of the row, too. The first threads of the block's rows
//           copy the filter. Values pass through registers.
// Ours:     images, padding and stride; a filter for each input channel (theirs has one for all), of which a thread copies a
//           row; single floats where 16 bytes cannot be copied; sums of one output channel at a time (theirs reserves them
//           for all, but stores each channel before the next); the two barriers marked below, without which threads read
//           what others overwrite; threads that do not fit into whole rows of pieces rest (theirs copy pieces again).
// Tiles:    KSIZE (3), STRIDE (1), PADDING (0), BLOCK_X (4), BLOCK_Y (8).
// Shared:   4*(ROWS*PITCH + KSIZE^2) bytes, for the largest block; BLOCK_X*BLOCK_Y threads. Registers: 4 sums.
// Cost:     2*C*KSIZE^2 FLOP per output. Global loads of x per output: C*(BLOCK_X+KSIZE-1)*(BLOCK_Y+KSIZE-1)/THREADS at
//           stride 1, whatever the number of output channels.
// Edges:    values beside the image are written into the tile as zero; rows of any length.
// Teaches:  copied right after the products into the tile that they read, the next channel is no prefetch: with the barrier
//           that this needs nothing overlaps within a block.
#include "common.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef PADDING
#define PADDING 0
#endif
#ifndef BLOCK_X
#define BLOCK_X 4
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8
#endif

constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int ROWS = (2 * BLOCK_Y - 2) * STRIDE + KSIZE;  // of the largest block
constexpr int COLUMNS = (2 * BLOCK_X - 2) * STRIDE + KSIZE;
constexpr int PITCH = (COLUMNS + 3) / 4 * 4;

static_assert(COLUMNS / 4 <= THREADS, "there is a thread for each piece of a row");

struct Tile {
  __align__(16) float x[ROWS][PITCH];
  float weight[KSIZE][KSIZE];
};

// What a block reads of each channel.
struct Window {
  int H, W, top, left, rows, columns;
};

__device__ __forceinline__ void load_channel(Tile& tile, const float* plane, const Window& at) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const int pieces = max(at.columns / 4, 1), step = THREADS / pieces;  // of a row; rows at a time
  const int first = thread % pieces * 4, end = first / 4 + 1 == pieces ? at.columns : first + 4;
  if (thread >= step * pieces) return;
  const bool by_fours = at.W % 4 == 0 && (at.left & 3) == 0 && first + 4 <= at.columns;
  for (int row = thread / pieces; row < at.rows; row += step) {
    const int h = at.top + row;
    const bool inside = h >= 0 && h < at.H;
    const float* source = plane + (long long)h * at.W;
    int column = first, w = at.left + first;
    if (by_fours && inside && w >= 0 && w < at.W) {
      store4(&tile.x[row][column], load4(source + w));
      column += 4;
    }
    for (; column < end; column++) {
      w = at.left + column;
      tile.x[row][column] = inside && w >= 0 && w < at.W ? source[w] : 0.f;
    }
  }
}

__device__ __forceinline__ void load_filter(Tile& tile, const float* filter) {
  if (threadIdx.x != 0) return;
  for (int row = threadIdx.y; row < KSIZE; row += BLOCK_Y)
    for (int column = 0; column < KSIZE; column++) tile.weight[row][column] = filter[row * KSIZE + column];
}

__device__ __forceinline__ float add_products(float sum, const Tile& tile, int row, int column) {
  UNROLL
  for (int kh = 0; kh < KSIZE; kh++) {
    UNROLL
    for (int kw = 0; kw < KSIZE; kw++)
      sum = fmaf(tile.x[row * STRIDE + kh][column * STRIDE + kw], tile.weight[kh][kw], sum);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) halo_published_f32(
    float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ weight, int C, int H, int W, int OC,
    int OH, int OW) {
  __shared__ Tile tile;
  const int oh = blockIdx.y * BLOCK_Y, ow = blockIdx.x * BLOCK_X, n = blockIdx.z;
  const int rows = blockIdx.y + 1 == gridDim.y ? OH - oh : min(BLOCK_Y, OH - oh);
  const int columns = blockIdx.x + 1 == gridDim.x ? OW - ow : min(BLOCK_X, OW - ow);
  const Window window = {
      H, W, oh * STRIDE - PADDING, ow * STRIDE - PADDING, (rows - 1) * STRIDE + KSIZE, (columns - 1) * STRIDE + KSIZE};
  const long long plane = (long long)H * W;
  const float* image = x + n * C * plane;

  load_channel(tile, image, window);
  load_filter(tile, weight);
  __syncthreads();
  for (int oc = 0; oc < OC; oc++) {
    float sum[2][2] = {};
    for (int c = 0; c < C; c++) {
      UNROLL
      for (int i = 0; i < 2; i++) {
        UNROLL
        for (int j = 0; j < 2; j++) {
          const int row = threadIdx.y + i * BLOCK_Y, column = threadIdx.x + j * BLOCK_X;
          if (row < rows && column < columns) sum[i][j] = add_products(sum[i][j], tile, row, column);
        }
      }
      __syncthreads();  // ours: nobody reads the tile any more
      if (c + 1 < C) {
        load_channel(tile, image + (c + 1) * plane, window);
        load_filter(tile, weight + ((long long)oc * C + c + 1) * KSIZE * KSIZE);
      }
      __syncthreads();
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
      UNROLL
      for (int j = 0; j < 2; j++) {
        const int row = threadIdx.y + i * BLOCK_Y, column = threadIdx.x + j * BLOCK_X;
        if (row < rows && column < columns)
          y[(((long long)n * OC + oc) * OH + oh + row) * OW + ow + column] = sum[i][j];
      }
    }
    if (oc + 1 < OC) {
      load_channel(tile, image, window);
      load_filter(tile, weight + (long long)(oc + 1) * C * KSIZE * KSIZE);
    }
    __syncthreads();  // ours: the first channel is complete
  }
}
