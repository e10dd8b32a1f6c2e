// conv_few: out[n,h,w,oc] = [activation](sum over kh, kw, c of inp[n, h-1+kh, w-1+kw, c] * weight[oc,kh,kw,c] +
//           bias[oc])
// Layouts:  inp (N,H,W,CP), weight (OUTPUTS,9,CP), both of ELEMENT, CP = 64*CHUNKS; bias 4 floats; out (N,H,W,4) float.
// Mapping:  a block has TILE_H x TILE_W outputs. Each pixel that their windows reach is multiplied once, by all taps of
//           all outputs: rows of a product are 16 such pixels, columns (output, tap), k the channels. A warp takes each
//           WARPS-th 16 pixels, straight from memory into registers; a lane reads 2 pieces of 16 bytes of a pixel's 64
//           channels, and the same channels of the weights, so that the order of k is the same in both operands. Then a
//           thread adds up the nine products of an output that its pixels hold for it.
// Tiles:    OUTPUTS (3): 1 to 4; ELEMENT (2): 1 float16, 2 bfloat16; CHUNKS (1); TILE_H (16), TILE_W (16),
//           MIN_BLOCKS on a multiprocessor (5).
// Shared:   36*OUTPUTS*PLANE bytes, PLANE the pixels of a tile with its rim; 128 threads.
// Cost:     2*N*H*W*OUTPUTS*9*C FLOP. Reads each pixel (1+2/TILE_H)*(1+2/TILE_W) times, the rim from the L2 cache;
//           36*OUTPUTS bytes of shared memory per pixel are written once and read once.
// Sums:     for each tap one chain of products in the order of channels, then the taps in order: the same bits for every
//           tile, batch and position.
// Edges:    any N, H, W. Pixels beyond the map are zero and not read. Channels from OUTPUTS to 4 are stored as zero.
// Why:      a gradient has few channels when it comes to the image: conv_mma multiplies 32 or more, and reads each pixel
//           nine times. Here the map goes through a multiprocessor once, at the speed of memory.
#include "mma.cuh"

#ifndef OUTPUTS
#define OUTPUTS 3
#endif
#ifndef ELEMENT
#define ELEMENT 2
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef TILE_H
#define TILE_H 16
#endif
#ifndef TILE_W
#define TILE_W 16
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 5
#endif

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int SIDE = 3, TAPS = SIDE * SIDE, STORED = 4;
constexpr int CHUNK = 64, CP = CHUNK * CHUNKS;              // channels
constexpr int COLUMNS = OUTPUTS * TAPS;                     // of the product that are real
constexpr int NT = (COLUMNS + 7) / 8;                       // products of a warp across them
constexpr int REACH = TILE_W + 2;                           // pixels in a row of the tile with its rim
constexpr int PIXELS = (TILE_H + 2) * REACH;                // of the tile with its rim
constexpr int GROUPS = (PIXELS + 15) / 16;                  // of 16 pixels
constexpr int PLANE = PIXELS + (12 - PIXELS % 8) % 8;       // floats: 4 more than a multiple of 8, so that the 8 pixels x
static_assert(PLANE % 8 == 4 && PLANE >= PIXELS, "banks");  // 8 columns that a warp stores at once lie in 32 banks, twice
static_assert(OUTPUTS >= 1 && OUTPUTS <= STORED, "a pixel of the output is one store");

typedef OperandsOf<ELEMENT>::Type Elements;

// 64 channels of a row, as a lane has them: 8 from 8t on, 8 from 32 + 8t on, two in a word.
struct Row {
  unsigned word[2][4];

  __device__ __forceinline__ void load(const unsigned short* channels, bool valid) {
    UNROLL
    for (int half = 0; half < 2; half++) {
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (valid) piece = *reinterpret_cast<const uint4*>(channels + half * 32 + threadIdx.x % 4 * 8);
      word[half][0] = piece.x;
      word[half][1] = piece.y;
      word[half][2] = piece.z;
      word[half][3] = piece.w;
    }
  }
};

struct Map {
  const unsigned short* image;
  int H, W, top, left;  // the tile's first pixel, that of the rim

  // Pixels `group` * 16 + g, and 8 behind it, of the tile with its rim.
  __device__ __forceinline__ void load(Row (&row)[2], int group, int chunk) const {
    UNROLL
    for (int i = 0; i < 2; i++) {
      const int pixel = group * 16 + i * 8 + threadIdx.x % 32 / 4;
      const int h = top + pixel / REACH, w = left + pixel % REACH;
      const bool inside = pixel < PIXELS && (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
      row[i].load(image + ((long long)h * W + w) * CP + chunk * CHUNK, inside);
    }
  }
};

__device__ __forceinline__ void load_weights(Row (&row)[NT], const unsigned short* weight, int chunk) {
  UNROLL
  for (int j = 0; j < NT; j++) {
    const int column = j * 8 + threadIdx.x % 32 / 4;
    row[j].load(weight + column * CP + chunk * CHUNK, column < COLUMNS);
  }
}

// sum += 16 pixels x 64 channels x 8 * NT columns. The k of a step that lane t has are 4 neighbouring channels.
__device__ __forceinline__ void multiply(float (&sum)[1][NT][4], const Row (&pixel)[2], const Row (&weight)[NT]) {
  UNROLL
  for (int step = 0; step < 4; step++) {
    const int half = step / 2, first = step % 2 * 2;
    unsigned a[1][4], b[NT][2];
    UNROLL
    for (int e = 0; e < 4; e++) a[0][e] = pixel[e % 2].word[half][first + e / 2];
    UNROLL
    for (int j = 0; j < NT; j++) {
      b[j][0] = weight[j].word[half][first];
      b[j][1] = weight[j].word[half][first + 1];
    }
    add_products<Elements>(sum, a, b);
  }
}

// Column after column, the pixels of each side by side.
__device__ __forceinline__ void store_products(float* products, const float (&sum)[1][NT][4], int group) {
  UNROLL
  for (int j = 0; j < NT; j++) {
    UNROLL
    for (int e = 0; e < 4; e++) {
      const int column = j * 8 + threadIdx.x % 4 * 2 + e % 2, pixel = group * 16 + e / 2 * 8 + threadIdx.x % 32 / 4;
      if (column < COLUMNS && pixel < PIXELS) products[column * PLANE + pixel] = sum[0][j][e];
    }
  }
}

// Output number `index` of the tile: the product of each tap lies with the pixel that the tap meets.
__device__ __forceinline__ float4 add_taps(const float* products, const float4 bias, int index, Activation activation) {
  const float* const corner = products + index / TILE_W * REACH + index % TILE_W;
  float v[STORED] = {}, offset[STORED];
  unpack4(offset, bias);
  UNROLL
  for (int oc = 0; oc < OUTPUTS; oc++) {
    UNROLL
    for (int tap = 0; tap < TAPS; tap++) {
      const float product = corner[(oc * TAPS + tap) * PLANE + tap / SIDE * REACH + tap % SIDE];
      v[oc] = tap == 0 ? product : v[oc] + product;
    }
    v[oc] = finish(v[oc], 1.f, offset[oc], true, activation);
  }
  return pack4(v);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
conv_few(float* __restrict__ out, const unsigned short* __restrict__ inp, const unsigned short* __restrict__ weight,
         const float* __restrict__ bias, int H, int W, int tiles_across, ACTIVATION_PARAMETER(activation)) {
  __shared__ float products[COLUMNS * PLANE];
  const int top = blockIdx.x / tiles_across * TILE_H, left = blockIdx.x % tiles_across * TILE_W;
  const long long first_pixel = (long long)blockIdx.y * H * W;
  const Map map = {inp + first_pixel * CP, H, W, top - 1, left - 1};
  Row weights[NT], next[2];
  load_weights(weights, weight, 0);
  const float4 offset = load4(bias);
  float sum[1][NT][4] = {};
  const int warp = threadIdx.x / 32, steps = (GROUPS - warp + WARPS - 1) / WARPS * CHUNKS;
  map.load(next, warp, 0);
  ROLLED
  for (int step = 0; step < steps; step++) {
    const Row now[2] = {next[0], next[1]};
    const int group = warp + step / CHUNKS * WARPS, ahead = step + 1;
    if (ahead < steps) map.load(next, warp + ahead / CHUNKS * WARPS, ahead % CHUNKS);
    if (CHUNKS > 1) load_weights(weights, weight, step % CHUNKS);
    multiply(sum, now, weights);
    if (ahead % CHUNKS != 0) continue;
    store_products(products, sum, group);
    UNROLL
    for (int j = 0; j < NT; j++) {
      UNROLL
      for (int e = 0; e < 4; e++) sum[0][j][e] = 0.f;
    }
  }
  __syncthreads();
  for (int index = threadIdx.x; index < TILE_H * TILE_W; index += THREADS) {
    const int h = top + index / TILE_W, w = left + index % TILE_W;
    if (h < H && w < W)
      store4(out + (first_pixel + (long long)h * W + w) * STORED,
             add_taps(products, offset, index, ACTIVATION(activation)));
  }
}
