// conv_first: out[n,y,x,oc] = finish(sum over c, kh, kw of pixel[n,c,y+kh-1,x+kw-1] * weight[oc,kh,kw,c]), 3x3, stride
//           1, pad 1: the first convolution, which takes the network's input in; finish: see wgmma_tile.cuh.
// Layouts:  source: SOURCE 0 (N,C,H,W) float; SOURCE 1 (N,H,W,C) bytes, pixel = fmaf(byte, mean_scale[c],
//           mean_shift[c]). weight (OCP,KP) of 16 bits or int8 (F16_PAIR: float, times weight_scale (OCP) here),
//           k = (kh*3 + kw)*C + c, zero beyond 9*C, KP = 9*C rounded up to 32 bytes; rows of int8 are permuted as
//           wgmma_tile.cuh says. bias, dequant, out_scale (OCP), in_scale (1) float. out: map {OCP, W, H, planes * N},
//           box {64, TILE_W, 1, 1}, swizzled 128B (bytes: 64B). status (N) int; maxima[n * maxima_stride]: see
//           wgmma_tile.cuh.
// Products: F16, BF16: pixels and weights rounded to the element. F16_PAIR: pixels and weights as three float16 each,
//           which is all of a float32; six products, small ones apart. U8, S8: both int8, the pixel is
//           rint(pixel * in_scale), saturated; the sums are exact.
// Mapping:  grid (ceil(W/TILE_W) * OCP/64, ceil(H/rows), N); a block, one warpgroup, walks down `rows` rows of a strip
//           of TILE_W pixels x 64 channels, a row a step; thread t takes in pixels t, t + 128 of each input row.
// Tiles:    ELEMENT (1), of the products; OUT_ELEMENT (ELEMENT; of 3 also 1); SOURCE (0); IN_CHANNELS (3), 1 to 4;
//           TILE_W (112), a multiple of 16 up to 240;
//           STAGES (2), rows on their way out, at least 2.
// Shared:   SHARED_BYTES: staged rows, weights, ring of input rows: 42 KB, F16_PAIR 96, bytes 28; 128 threads.
// Cost:     2*9*C FLOP per output; reads the source (rows+2)/rows times; writes out once, which is what takes the time.
// Edges:    any N, H, W; loads are guarded, the map clips the stores. status[n] |= 1 if a float source has NaN or Inf,
//           which reach one pixel further left than they should. The host zeroes status and maxima.
// Why:      K = 27 is too short for conv_wgmma, and a pass over the input alone would cost its traffic again. There is
//           no im2col: a pixel takes four channel slots, entry e of a row in shared memory is 16 bytes of pixels e, e+1
//           (bytes: to e+3), entries e and e+2 are a kernel row, and overlapping core matrices let all pixels share
//           them. An input row is converted once for three output rows; the ring's fourth row is written meanwhile, so
//           that one barrier a row is enough.
#include "first_layer.cuh"

#ifndef OUT_ELEMENT
#define OUT_ELEMENT ELEMENT
#endif
#ifndef TILE_W
#define TILE_W 112
#endif
#ifndef STAGES
#define STAGES 2
#endif

constexpr int THREADS = 128;
static_assert(TILE_W % 16 == 0 && TILE_W <= 240, "the widths of wgmma; its sums stay in registers");
static_assert(STAGES >= 2, "a row is staged while the one before is read");
static_assert(OUT_ELEMENT == ELEMENT || (ELEMENT == F16_PAIR && OUT_ELEMENT == F16), "only products may be finer");

typedef Stored<OUT_ELEMENT> Out;
typedef StagedTile<OUT_ELEMENT, TILE_W / 8, false> Tile;
typedef Wgmma<PixelsAs<E::BYTES>::Operands, TILE_W> Product;

constexpr int COPIES = E::BYTES == 2 ? 2 : 3;  // entries that hold a pixel; three taps need no fourth
constexpr int PIXELS = TILE_W + 2;             // of an input row: the strip and its neighbours
constexpr int PER_THREAD = (PIXELS + THREADS - 1) / THREADS;
constexpr int RING = 4;  // input rows
constexpr int ROW_BYTES = PIXELS * ENTRY;

// Shared memory: the rows on their way out, the weights, the ring; 1024 to align the first.
constexpr int WEIGHTS_AT = STAGES * Tile::BYTES;
constexpr int RING_AT = WEIGHTS_AT + PARTS * FIRST_WEIGHT_BYTES;
constexpr int SHARED_BYTES = 1024 + RING_AT + PARTS * RING * ROW_BYTES;
constexpr int FIT = 227 * 1024 / (SHARED_BYTES + 1024);  // blocks on a multiprocessor, as far as memory goes
static_assert(FIT >= 1, "the tile is too wide for shared memory");
constexpr int MOST = E::PLANES == 2 ? 2 : TILE_W <= 128 ? 5 : 3;  // as far as registers go
constexpr int BLOCKS = FIT < MOST ? FIT : MOST;

// An image as one thread reads it: its pixels of a row, from memory into registers and from there into the ring.
struct Input {
  typedef Pixels::Raw Row[PER_THREAD];

  const char* image;
  int H, W, left;  // left: the column of a row's first pixel, -1 in the first strip
  Pixels pixels;

  // Start reading row y; rows from `end` on are not needed.
  DEVICE void fetch(Row& raw, int y, int end) const {
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = threadIdx.x + i * THREADS, x = left + pixel;
      Pixels::fetch(raw[i], image, y, x, H, W, y >= 0 && y < end && x >= 0 && x < W && pixel < PIXELS);
    }
  }

  // Convert a row that was read and write it to a place of the ring, every pixel into all entries that hold it.
  DEVICE void put(const Row& raw, unsigned char* place) {
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = threadIdx.x + i * THREADS;
      uint32_t cell[PARTS][CELL / 4];
      pixels.convert(raw[i], cell);
      UNROLL
      for (int k = 0; k < COPIES; k++) {
        if (pixel < k || pixel >= PIXELS) continue;
        UNROLL
        for (int part = 0; part < PARTS; part++)
          store_cell(place + part * RING * ROW_BYTES + (pixel - k) * ENTRY + k * CELL, cell[part]);
      }
    }
  }
};

// The sums of an output row. Of three parts, the large products of each kernel row are summed apart, and the small ones
// of all in `low`; those that float32 would not see are left out. Apart, because the tensor cores cut what they add at
// the size of the sum, always towards zero; the additions here round.
template <bool SPLIT>
struct Sums {
  static constexpr int MORE = SPLIT ? TILE_W / 2 : 1;
  Product::Sum sum[TILE_W / 2], second[MORE], third[MORE], low[MORE];

  // Start the products of the output row whose first input row is in place `first` of the ring.
  DEVICE void multiply(uint32_t weights, uint32_t ring, int first) {
    const auto row = [&](int kh, int weight_part, int pixel_part, auto& target, bool accumulate) {
      const uint32_t a = weights + weight_part * FIRST_WEIGHT_BYTES + kh * 2 * PIECE;
      const uint32_t b = ring + (pixel_part * RING + (first + kh) % RING) * ROW_BYTES;
      Product::multiply(target, matrix_descriptor(a, 8 * ENTRY, SWIZZLE_NONE, PIECE),
                        matrix_descriptor(b, 8 * ENTRY, SWIZZLE_NONE, 2 * ENTRY), accumulate);
    };
    products_begin();
    if constexpr (SPLIT) {
      UNROLL
      for (int kh = 0; kh < 3; kh++) {
        row(kh, 1, 1, low, kh > 0);
        row(kh, 2, 0, low, true);
        row(kh, 0, 2, low, true);
        row(kh, 1, 0, low, true);
        row(kh, 0, 1, low, true);
      }
      row(0, 0, 0, sum, false);
      row(1, 0, 0, second, false);
      row(2, 0, 0, third, false);
    } else {
      UNROLL
      for (int kh = 0; kh < 3; kh++) row(kh, 0, 0, sum, kh > 0);
    }
    products_commit();
  }

  DEVICE void finish() {
    products_wait<0>();
    pin(sum);
    if constexpr (SPLIT) {
      pin(second);
      pin(third);
      pin(low);
      UNROLL
      for (int i = 0; i < TILE_W / 2; i++) sum[i] = (sum[i] + second[i]) + (third[i] + low[i]);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_first(
    const __grid_constant__ CUtensorMap out, const void* __restrict__ source, const void* __restrict__ weight,
    const float* __restrict__ weight_scale, const float* __restrict__ bias, const float* __restrict__ dequant,
    const float* __restrict__ out_scale, const float* __restrict__ in_scale, const float* __restrict__ mean_scale,
    const float* __restrict__ mean_shift, unsigned* __restrict__ maxima, int maxima_stride, int* __restrict__ status,
    int images, int H, int W, int OCP, int rows, ACTIVATION_PARAMETER(activation) INPUT_PARAMETERS TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  DYNAMIC_SHARED(unsigned char, unaligned);
  unsigned char* const shared = unaligned + (-shared_address(unaligned) & 1023);
  unsigned char* const ring = shared + RING_AT;
  const int tid = threadIdx.x, tiles = OCP / 64, n = blockIdx.z;
  const int channel = blockIdx.x % tiles * 64, x0 = blockIdx.x / tiles * TILE_W;
  const int y0 = blockIdx.y * rows, y1 = min(y0 + rows, H);  // the block's output rows

  if (tid == 0) prefetch_map(&out);
  load_weights(shared + WEIGHTS_AT, weight, weight_scale, channel);
  const Finish<OUT_ELEMENT> finish(bias + channel, dequant + channel, out_scale + channel, ACTIVATION(activation));
  Input input{static_cast<const char*>(source) + static_cast<size_t>(n) * C * H * W * Pixels::Source::BYTES, H, W,
              x0 - 1, Pixels(in_scale, mean_scale, mean_shift, INPUT_LIMITS)};
  if (tid < PARTS * RING)  // the end of the last entry is never written, and its zero weight does not undo a NaN
    *reinterpret_cast<uint2*>(ring + (tid + 1) * ROW_BYTES - 8) = make_uint2(0, 0);

  wait_for_previous_kernel();
  let_next_kernel_start();  // not before: it looks at the error word, which comes with the input
  const int end = min(y1 + 1, H);  // of the input rows
  Input::Row raw[RING];
  UNROLL
  for (int r = 0; r < RING; r++) input.fetch(raw[r], y0 - 1 + r, end);
  UNROLL
  for (int r = 0; r < RING - 1; r++) input.put(raw[r], ring + r * ROW_BYTES);
  shared_writes_to_async();
  __syncthreads();  // the weights and the first rows are there
  TIMED(if (tid == 0) STAMP(OPERANDS);)

  // ---- output row y is summed while input row y + 2 goes into the ring and y + 3 comes from memory
  const int valid = W - x0 - tid % 4 * 2;  // this thread's pixels 8 * column and + 1 are stored below it
  uint32_t largest = 0;
  for (int y = y0, step = 0; y < y1; y++, step++) {
    Sums<(PARTS > 1)> sums;
    sums.multiply(shared_address(shared + WEIGHTS_AT), shared_address(ring), step);
    input.put(raw[RING - 1], ring + (step + RING - 1) % RING * ROW_BYTES);
    input.fetch(raw[RING - 1], y + RING - 1, end);
    sums.finish();
    const uint32_t staging = shared_address(shared) + step % STAGES * Tile::BYTES;
    stage_tile<OUT_ELEMENT, TILE_W / 8, false>(sums.sum, finish, staging, [&](int column, uint32_t items) {
      largest = larger_magnitudes(largest, items, halves_before(valid, 8 * column));
    });
    shared_writes_to_async();
    if (tid == 0) store_wait_read<STAGES - 2>();
    __syncthreads();  // the row is staged, the next one has its place, and all products have read theirs
    if (tid == 0) {
      UNROLL
      for (int plane = 0; plane < Out::PLANES; plane++)
        store_box(&out, staging + plane * Tile::PLANE_BYTES, channel, x0, y, n + plane * images);
      store_commit();
    }
  }
  TIMED(if (tid == 0) STAMP(SUMS_READY);)
  if (tid == 0) store_wait_read<0>();

  if constexpr (Out::RECORDED) record_largest(largest, maxima + static_cast<size_t>(n) * maxima_stride);
  if (SOURCE == SOURCE_F32 && __syncthreads_or(input.pixels.met_nonfinite()) && tid == 0) atomicOr(status + n, 1);
  TIMED(if (tid == 0) STAMP(DONE);)
}
