// What the halo kernels share: the tile of a channel in shared memory, how it is fetched and used.
//
// A block's outputs need ROWS x SPAN values of a channel, the halo included. Three ways to share the copying (Share):
// EDGE    each thread copies the values of its own output; threads at the right and lower edge copy the halo beside theirs.
// SINGLES threads take the floats in turn, whatever part of the tile they belong to: each copies as much as the others.
// QUADS   as SINGLES, 16 bytes at a time where rows are a multiple of 4 floats long: the tile then begins SKEW columns
//         further left, at a multiple of 4, and 4 values lie either all inside the image or all beside it.
//
// Copies are asynchronous (cp.async) from Ampere on: they are there after copy_async_wait and a barrier.
#pragma once

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
#define BLOCK_X 8
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 4
#endif
#ifndef OUTPUTS
#define OUTPUTS 8
#endif

static_assert(BLOCK_X % 4 == 0, "the tiles of all blocks begin at the same place within 4 floats");

enum class Share { EDGE, SINGLES, QUADS };

constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int TAPS = KSIZE * KSIZE;
constexpr int ROWS = (BLOCK_Y - 1) * STRIDE + KSIZE;
constexpr int SPAN = (BLOCK_X - 1) * STRIDE + KSIZE;
constexpr int SKEW = (4 - PADDING % 4) % 4;
constexpr int QUADS = (SKEW + SPAN + 3) / 4;  // of a row
// BLOCK_X more than a multiple of 2 * BLOCK_X: then the rows of a warp lie in different banks (at stride 1).
constexpr int PITCH = BLOCK_X < 32 ? (4 * QUADS + BLOCK_X - 1) / (2 * BLOCK_X) * (2 * BLOCK_X) + BLOCK_X : 4 * QUADS;

// What a block needs of a channel.
struct Tile {
  __align__(16) float x[ROWS][PITCH];
  __align__(16) float weight[TAPS][OUTPUTS];
};

// Copies one channel after the other.
struct Fetcher {
  const float* plane;   // of the image
  const float* filter;  // of the first output channel
  int C, H, W, top, left, outputs;

  __device__ __forceinline__ Fetcher(const float* x, const float* weight, int C, int H, int W, int n, int oc, int OC)
      : plane(x + (long long)n * C * H * W),
        filter(weight + (long long)oc * C * TAPS),
        C(C),
        H(H),
        W(W),
        top(static_cast<int>(blockIdx.y) * BLOCK_Y * STRIDE - PADDING),
        left(static_cast<int>(blockIdx.x) * BLOCK_X * STRIDE - PADDING),
        outputs(OC - oc) {}

  __device__ __forceinline__ bool inside(int h, int w) const { return h >= 0 && h < H && w >= 0 && w < W; }

  // Start copying a channel into `tile`, as a group of copies.
  template <Share SHARE>
  __device__ __forceinline__ void fetch(Tile& tile) {
    if (SHARE == Share::EDGE) {
      by_edges(tile);
    } else if (SHARE == Share::QUADS && W % 4 == 0) {
      by_quads(tile);
    } else {
      by_singles(tile);
    }
    filters(tile);
    copy_async_commit();
    plane += (long long)H * W;
    filter += TAPS;
  }

  // From each thread's own place to the next thread's; the last of a row or column goes on to the end of the tile.
  __device__ __forceinline__ void by_edges(Tile& tile) const {
    const int first_row = threadIdx.y * STRIDE, first_column = threadIdx.x * STRIDE;
    const int rows = threadIdx.y == BLOCK_Y - 1 ? ROWS : min(first_row + STRIDE, ROWS);
    const int columns = threadIdx.x == BLOCK_X - 1 ? SPAN : min(first_column + STRIDE, SPAN);
    for (int row = first_row; row < rows; row++)
      for (int column = first_column; column < columns; column++) single(tile, row, column);
  }

  __device__ __forceinline__ void by_singles(Tile& tile) const {
    for (int i = thread(); i < ROWS * SPAN; i += THREADS) single(tile, i / SPAN, i % SPAN);
  }

  __device__ __forceinline__ void by_quads(Tile& tile) const {
    for (int i = thread(); i < ROWS * QUADS; i += THREADS) {
      const int row = i / QUADS, column = i % QUADS * 4;
      const int h = top + row, w = left - SKEW + column;
      copy16_async(&tile.x[row][column], plane + (long long)h * W + w, inside(h, w));
    }
  }

  __device__ __forceinline__ void single(Tile& tile, int row, int column) const {
    const int h = top + row, w = left + column;
    copy4_async(&tile.x[row][SKEW + column], plane + (long long)h * W + w, inside(h, w));
  }

  __device__ __forceinline__ void filters(Tile& tile) const {
    for (int i = thread(); i < OUTPUTS * TAPS; i += THREADS) {
      const int output = i / TAPS, tap = i % TAPS;
      copy4_async(&tile.weight[tap][output], filter + (long long)output * C * TAPS + tap, output < outputs);
    }
  }

  __device__ __forceinline__ int thread() const { return threadIdx.y * BLOCK_X + threadIdx.x; }
};

// Add a channel to the sums of this thread, one for each output channel.
__device__ __forceinline__ void add_channel(float (&sum)[OUTPUTS], const Tile& tile) {
  UNROLL
  for (int kh = 0; kh < KSIZE; kh++) {
    UNROLL
    for (int kw = 0; kw < KSIZE; kw++) {
      const float value = tile.x[threadIdx.y * STRIDE + kh][threadIdx.x * STRIDE + SKEW + kw];
      LANES
      for (int o = 0; o < OUTPUTS; o++) sum[o] = fmaf(value, tile.weight[kh * KSIZE + kw][o], sum[o]);
    }
  }
}

__device__ __forceinline__ void store(float* y, const float (&sum)[OUTPUTS], int n, int oc, int OC, int OH, int OW) {
  const int ow = blockIdx.x * BLOCK_X + threadIdx.x;
  const int oh = blockIdx.y * BLOCK_Y + threadIdx.y;
  if (oh >= OH || ow >= OW) return;
  UNROLL
  for (int o = 0; o < OUTPUTS; o++)
    if (oc + o < OC) y[(((long long)n * OC + oc + o) * OH + oh) * OW + ow] = sum[o];
}

// OUTPUTS output channels from `oc` on, with one tile: fetched, used, fetched again.
template <Share SHARE>
__device__ __forceinline__ void with_one_tile(Tile& tile, float* y, const float* x, const float* weight, int C, int H,
                                              int W, int n, int oc, int OC, int OH, int OW) {
  Fetcher fetcher(x, weight, C, H, W, n, oc, OC);
  float sum[OUTPUTS] = {};
  for (int c = 0; c < C; c++) {
    fetcher.fetch<SHARE>(tile);
    copy_async_wait<0>();
    __syncthreads();  // the tile is complete
    add_channel(sum, tile);
    __syncthreads();  // nobody reads the tile any more
  }
  store(y, sum, n, oc, OC, OH, OW);
}
