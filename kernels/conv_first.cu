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
// Tiles:    ELEMENT (1), of the output; SOURCE (0); IN_CHANNELS (3), 1 to 4; TILE_W (112), a multiple of 16 up to 240;
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
#include "wgmma_tile.cuh"

enum : int { SOURCE_F32 = 0, SOURCE_U8 = 1 };

#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef SOURCE
#define SOURCE 0
#endif
#ifndef IN_CHANNELS
#define IN_CHANNELS 3
#endif
#ifndef TILE_W
#define TILE_W 112
#endif
#ifndef STAGES
#define STAGES 2
#endif

constexpr int THREADS = 128;
constexpr int C = IN_CHANNELS;
static_assert(C >= 1 && C <= 4, "a pixel has four channel slots");
static_assert(TILE_W % 16 == 0 && TILE_W <= 240, "the widths of wgmma; its sums stay in registers");
static_assert(STAGES >= 2, "a row is staged while the one before is read");

typedef Stored<ELEMENT> E;
typedef StagedTile<ELEMENT, TILE_W / 8, false> Tile;

constexpr int PARTS = ELEMENT == F16_PAIR ? 3 : 1;  // planes of an operand

// The operands of the products. Normalised pixels have a sign, whatever the output's bytes are.
template <int BYTES>
struct PixelsAs {
  typedef uint16_t Word;
  typedef E::Operands Operands;
};
template <>
struct PixelsAs<1> {
  typedef uint8_t Word;
  typedef S8S8 Operands;
};
typedef PixelsAs<E::BYTES>::Word Word;
typedef Wgmma<PixelsAs<E::BYTES>::Operands, TILE_W> Product;

// A weight in memory.
template <int COUNT>
struct WeightAs {
  typedef Word Type;
};
template <>
struct WeightAs<3> {
  typedef float Type;
};
typedef WeightAs<PARTS>::Type Weight;
constexpr bool USES_SCALE = ELEMENT != F16 && ELEMENT != BF16;

constexpr int ENTRY = 16;                      // bytes: a row of a core matrix
constexpr int SLOTS = ENTRY / E::BYTES;        // channel slots of an entry
constexpr int CELL = 4 * E::BYTES;             // bytes of a pixel's four channel slots
constexpr int COPIES = E::BYTES == 2 ? 2 : 3;  // entries that hold a pixel; three taps need no fourth
constexpr int PIXELS = TILE_W + 2;             // of an input row: the strip and its neighbours
constexpr int PER_THREAD = (PIXELS + THREADS - 1) / THREADS;
constexpr int RING = 4;  // input rows
constexpr int ROW_BYTES = PIXELS * ENTRY;
constexpr int KP = (9 * C * sizeof(Weight) + 31) / 32 * 32 / sizeof(Weight);  // weights of an output channel in memory
constexpr int PIECE = 64 * ENTRY;                                             // 64 output channels x one entry
constexpr int WEIGHT_BYTES = 3 * 2 * PIECE;  // a plane: three kernel rows of two entries

// Shared memory: the rows on their way out, the weights, the ring; 1024 to align the first.
constexpr int WEIGHTS_AT = STAGES * Tile::BYTES;
constexpr int RING_AT = WEIGHTS_AT + PARTS * WEIGHT_BYTES;
constexpr int SHARED_BYTES = 1024 + RING_AT + PARTS * RING * ROW_BYTES;
constexpr int FIT = 227 * 1024 / (SHARED_BYTES + 1024);  // blocks on a multiprocessor, as far as memory goes
static_assert(FIT >= 1, "the tile is too wide for shared memory");
constexpr int MOST = E::PLANES == 2 ? 2 : TILE_W <= 128 ? 5 : 3;  // as far as registers go
constexpr int BLOCKS = FIT < MOST ? FIT : MOST;

// Where the source keeps a value, and what a read value means. The loads are spelled out: left to the compiler they
// become read-only ones, which it moves above wait_for_previous_kernel.
template <int KIND>
struct SourceAs;

template <>
struct SourceAs<SOURCE_F32> {
  typedef float Raw;
  static constexpr int BYTES = 4;

  static DEVICE int offset(int c, int y, int x, int H, int W) { return (c * H + y) * W + x; }
  static DEVICE Raw load(const void* address, bool inside) {
    float v;
    asm volatile(
        "{ .reg .pred inside; setp.ne.s32 inside, %2, 0;\n"
        "  mov.f32 %0, 0f00000000;\n"
        "  @inside ld.global.f32 %0, [%1]; }"
        : "=f"(v)
        : "l"(address), "r"(static_cast<int>(inside)));
    return v;
  }
  static DEVICE float value(Raw raw, float, float) { return raw; }
  static DEVICE unsigned magnitude(Raw raw) { return __float_as_uint(raw) & 0x7fffffff; }
};

template <>
struct SourceAs<SOURCE_U8> {
  typedef int Raw;  // -1: padding, which is zero after the normalisation
  static constexpr int BYTES = 1;

  static DEVICE int offset(int c, int y, int x, int, int W) { return (y * W + x) * C + c; }
  static DEVICE Raw load(const void* address, bool inside) {
    int v;
    asm volatile(
        "{ .reg .pred inside; setp.ne.s32 inside, %2, 0;\n"
        "  mov.s32 %0, -1;\n"
        "  @inside ld.global.u8 %0, [%1]; }"
        : "=r"(v)
        : "l"(address), "r"(static_cast<int>(inside)));
    return v;
  }
  static DEVICE float value(Raw raw, float scale, float shift) {
    return raw < 0 ? 0.0f : fmaf(static_cast<float>(raw), scale, shift);
  }
  static DEVICE unsigned magnitude(Raw) { return 0; }  // bytes are finite
};

// Four values in the low bytes of four registers, as one.
DEVICE uint32_t pack_bytes(const int (&q)[4]) {
  return __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
}

// A pixel's four channels as the products want them, plane by plane.
DEVICE void make_cell(const float (&v)[4], float scale, uint32_t (&cell)[PARTS][CELL / 4]) {
  if constexpr (E::BYTES == 1) {
    int q[4];
    UNROLL
    for (int c = 0; c < 4; c++) q[c] = max(-128, min(127, __float2int_rn(v[c] * scale)));
    cell[0][0] = pack_bytes(q);
  } else {
    UNROLL
    for (int h = 0; h < 2; h++) {
      const float a = v[2 * h], b = v[2 * h + 1];
      if constexpr (ELEMENT == F16) {
        cell[0][h] = bits_of(__floats2half2_rn(a, b));
      } else if constexpr (ELEMENT == BF16) {
        cell[0][h] = bits_of(__floats2bfloat162_rn(a, b));
      } else {
        float rest[2] = {a * scale, b * scale};
        UNROLL
        for (int part = 0; part < PARTS; part++) {
          const __half2 taken = __floats2half2_rn(rest[0], rest[1]);
          cell[part][h] = bits_of(taken);
          rest[0] -= __low2float(taken);
          rest[1] -= __high2float(taken);
        }
      }
    }
  }
}

DEVICE void store_cell(unsigned char* target, const uint32_t (&cell)[CELL / 4]) {
  if constexpr (CELL == 8)
    *reinterpret_cast<uint2*>(target) = make_uint2(cell[0], cell[1]);
  else
    *reinterpret_cast<uint32_t*>(target) = cell[0];
}

// An image as one thread reads it: its pixels of a row, from memory into registers and from there into the ring.
struct Input {
  typedef SourceAs<SOURCE> Source;
  typedef Source::Raw Row[PER_THREAD][C];

  const char* image;
  int H, W, left;  // left: the column of a row's first pixel, -1 in the first strip
  float scale, mean_scale[C], mean_shift[C];
  unsigned largest = 0;  // bits of the largest magnitude read

  DEVICE Input(const char* image, int H, int W, int left, const float* in_scale, const float* mean_scale,
               const float* mean_shift)
      : image(image), H(H), W(W), left(left), scale(USES_SCALE ? __ldg(in_scale) : 1.0f) {
    UNROLL
    for (int c = 0; c < C; c++) {
      this->mean_scale[c] = SOURCE == SOURCE_U8 ? __ldg(mean_scale + c) : 1.0f;
      this->mean_shift[c] = SOURCE == SOURCE_U8 ? __ldg(mean_shift + c) : 0.0f;
    }
  }

  // Start reading row y; rows from `end` on are not needed.
  DEVICE void fetch(Row& raw, int y, int end) const {
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = threadIdx.x + i * THREADS, x = left + pixel;
      const bool inside = y >= 0 && y < end && x >= 0 && x < W && pixel < PIXELS;
      UNROLL
      for (int c = 0; c < C; c++)
        raw[i][c] = Source::load(image + Source::offset(c, y, x, H, W) * static_cast<long long>(Source::BYTES), inside);
    }
  }

  // Convert a row that was read and write it to a place of the ring, every pixel into all entries that hold it.
  DEVICE void put(const Row& raw, unsigned char* place) {
    UNROLL
    for (int i = 0; i < PER_THREAD; i++) {
      const int pixel = threadIdx.x + i * THREADS;
      float v[4] = {};
      UNROLL
      for (int c = 0; c < C; c++) {
        largest = max(largest, Source::magnitude(raw[i][c]));
        v[c] = Source::value(raw[i][c], mean_scale[c], mean_shift[c]);
      }
      uint32_t cell[PARTS][CELL / 4];
      make_cell(v, scale, cell);
      UNROLL
      for (int k = 0; k < COPIES; k++) {
        if (pixel < k || pixel >= PIXELS) continue;
        UNROLL
        for (int part = 0; part < PARTS; part++)
          store_cell(place + part * RING * ROW_BYTES + (pixel - k) * ENTRY + k * CELL, cell[part]);
      }
    }
  }

  DEVICE bool met_nonfinite() const { return largest >= 0x7f800000; }
};

DEVICE Word take_part(Word weight) { return weight; }
DEVICE Word take_part(float& rest) {
  const __half part = __float2half_rn(rest);
  rest -= __half2float(part);
  return __half_as_ushort(part);
}

// The weights of 64 output channels from memory into shared memory, in the order of the entries: piece kh * 2 + q of a
// plane holds the channel slots of entry q of kernel row kh. Bytes need one entry a kernel row: the other's weights are
// zero.
DEVICE void load_weights(unsigned char* target, const void* weight, const float* weight_scale, int channel) {
  const int row = threadIdx.x % 64, entry = threadIdx.x / 64;
  const Weight* source = static_cast<const Weight*>(weight) + static_cast<size_t>(channel + row) * KP;
  alignas(16) Weight w[KP];
  UNROLL
  for (int i = 0; i < KP * static_cast<int>(sizeof(Weight)) / 16; i++)
    reinterpret_cast<uint4*>(w)[i] = __ldg(reinterpret_cast<const uint4*>(source) + i);
  if constexpr (PARTS > 1) {
    const float scale = __ldg(weight_scale + channel + row);
    UNROLL
    for (int i = 0; i < KP; i++) w[i] *= scale;
  }
  UNROLL
  for (int part = 0; part < PARTS; part++) {
    UNROLL
    for (int piece = 0; piece < 6; piece++) {
      alignas(16) Word slots[SLOTS];
      UNROLL
      for (int s = 0; s < SLOTS; s++) {
        const int kh = piece / 2, kw = piece % 2 * SLOTS / 4 + s / 4, c = s % 4;
        slots[s] = kw < 3 && c < C ? take_part(w[(kh * 3 + kw) * C + c]) : static_cast<Word>(0);
      }
      if (entry == piece % 2)
        *reinterpret_cast<uint4*>(target + part * WEIGHT_BYTES + piece * PIECE + row * ENTRY) =
            *reinterpret_cast<const uint4*>(slots);
    }
  }
}

// The sums of an output row. Of three parts, the large products of each kernel row are summed apart, and the small ones
// of all in `low`; those that float32 would not see are left out. Apart, becausethe tensor cores cut what they add at the size of
// the sum, always towards zero; the additions here round.
template <bool SPLIT>
struct Sums {
  static constexpr int MORE = SPLIT ? TILE_W / 2 : 1;
  Product::Sum sum[TILE_W / 2], second[MORE], third[MORE], low[MORE];

  // Start the products of the output row whose first input row is in place `first` of the ring.
  DEVICE void multiply(uint32_t weights, uint32_t ring, int first) {
    const auto row = [&](int kh, int weight_part, int pixel_part, auto& target, bool accumulate) {
      const uint32_t a = weights + weight_part * WEIGHT_BYTES + kh * 2 * PIECE;
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
    int images, int H, int W, int OCP, int rows, int apply_relu) {
  DYNAMIC_SHARED(unsigned char, unaligned);
  unsigned char* const shared = unaligned + (-shared_address(unaligned) & 1023);
  unsigned char* const ring = shared + RING_AT;
  const int tid = threadIdx.x, tiles = OCP / 64, n = blockIdx.z;
  const int channel = blockIdx.x % tiles * 64, x0 = blockIdx.x / tiles * TILE_W;
  const int y0 = blockIdx.y * rows, y1 = min(y0 + rows, H);  // the block's output rows

  let_next_kernel_start();
  if (tid == 0) prefetch_map(&out);
  load_weights(shared + WEIGHTS_AT, weight, weight_scale, channel);
  const Finish<ELEMENT> finish(bias + channel, dequant + channel, out_scale + channel, apply_relu);
  Input input(static_cast<const char*>(source) + static_cast<size_t>(n) * C * H * W * Input::Source::BYTES, H, W,
              x0 - 1, in_scale, mean_scale, mean_shift);
  if (tid < PARTS * RING)  // the end of the last entry is never written, and its zero weight does not undo a NaN
    *reinterpret_cast<uint2*>(ring + (tid + 1) * ROW_BYTES - 8) = make_uint2(0, 0);

  wait_for_previous_kernel();
  const int end = min(y1 + 1, H);  // of the input rows
  Input::Row raw[RING];
  UNROLL
  for (int r = 0; r < RING; r++) input.fetch(raw[r], y0 - 1 + r, end);
  UNROLL
  for (int r = 0; r < RING - 1; r++) input.put(raw[r], ring + r * ROW_BYTES);
  shared_writes_to_async();
  __syncthreads();  // the weights and the first rows are there

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
    stage_tile<ELEMENT, TILE_W / 8, false>(sums.sum, finish, staging, [&](int column, uint32_t items) {
      const uint32_t mask = 8 * column + 1 < valid ? MAGNITUDES : 8 * column < valid ? MAGNITUDES & 0xffff : 0;
      largest = larger_magnitudes(largest, items, mask);
    });
    shared_writes_to_async();
    if (tid == 0) store_wait_read<STAGES - 2>();
    __syncthreads();  // the row is staged, the next one has its place, and all products have read theirs
    if (tid == 0) {
      UNROLL
      for (int plane = 0; plane < E::PLANES; plane++)
        store_box(&out, staging + plane * Tile::PLANE_BYTES, channel, x0, y, n + plane * images);
      store_commit();
    }
  }
  if (tid == 0) store_wait_read<0>();

  if constexpr (E::RECORDED) record_largest(largest, maxima + static_cast<size_t>(n) * maxima_stride);
  if (SOURCE == SOURCE_F32 && __syncthreads_or(input.met_nonfinite()) && tid == 0) atomicOr(status + n, 1);
}
