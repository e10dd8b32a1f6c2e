// The epilogue of every wgmma kernel: the sums of one warpgroup, 64 output channels x 8 * COLUMNS pixels in the layout
// of wgmma.cuh, become stored values in swizzled shared memory, ready for one TMA store a plane.
//
//   value = activation(fmaf(sum, dequant[channel], bias[channel]))     (float16, bfloat16: sum + bias[channel])
//   stored: F16, BF16: value;  F16_PAIR: s = value * scale[channel], hi = half(s), lo = half(s - hi);
//           U8, S8: rint(value * scale[channel]), saturated, NaN becomes 0
//
// A kernel calls, with all 128 threads of the warpgroup:
//   Finish<ELEMENT> finish(bias + first, dequant + first, out_scale + first, activation);   first: the tile's channel
//   stage_tile<ELEMENT, COLUMNS, POOL>(sum, finish, staging, record);
// and then shared_writes_to_async(), a barrier of the warpgroup, and a store_box a plane from `staging`, a box of 64
// channels swizzled 128B (bytes: 64B). A "column" is 8 pixels that follow each other in the tile; a kernel that
// finishes only some of its columns passes an array of those alone.
//
// dequant and scale are positive. Sums may be pooled before they are finished: finishing keeps their order.
#pragma once

#include "element.cuh"
#include "hopper.cuh"
#include "timeline.cuh"

template <class Operands_, int PLANES_, int BYTES_, bool RECORDED_>
struct StoredAs {
  typedef Operands_ Operands;                     // the wgmma whose activations it is
  typedef typename Wgmma<Operands, 16>::Sum Sum;  // the type of the sums
  static constexpr int PLANES = PLANES_;          // tensors that hold one value
  static constexpr int BYTES = BYTES_;            // per value and plane
  static constexpr bool RECORDED = RECORDED_;     // does the largest magnitude matter
  static constexpr int ROW_BYTES = 64 * BYTES;    // the 64 channels of a staged pixel
  static constexpr int MATRICES = BYTES;          // 8x8 of 16 bits, that hold 16 channels x 8 pixels
  static constexpr Swizzle SWIZZLE = BYTES == 2 ? SWIZZLE_128B : SWIZZLE_64B;  // of a staged row
};

template <int STORED>
struct Stored;
template <>
struct Stored<F16> : StoredAs<Fp16, 1, 2, true> {};
template <>
struct Stored<BF16> : StoredAs<Bf16, 1, 2, false> {};
template <>
struct Stored<F16_PAIR> : StoredAs<Fp16, 2, 2, true> {};
template <>
struct Stored<U8> : StoredAs<S8U8, 1, 1, false> {};
template <>
struct Stored<S8> : StoredAs<S8S8, 1, 1, false> {};

template <int STORED, int COLUMNS, bool POOLED>
struct StagedTile {
  static constexpr int OUT_COLUMNS = POOLED ? (COLUMNS + 3) / 4 : COLUMNS;
  static constexpr int PLANE_BYTES = (OUT_COLUMNS * 8 * Stored<STORED>::ROW_BYTES + 1023) / 1024 * 1024;
  static constexpr int BYTES = Stored<STORED>::PLANES * PLANE_BYTES;  // to be aligned to 1024
};

// NaN wins, as in max_nan of common.cuh, in one instruction.
DEVICE float larger(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
DEVICE int larger(int a, int b) { return max(a, b); }

#ifdef CLIPS
DEVICE float smaller(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
#endif

// An Activation as maxima and minima, of two values of 16 bits at once, too. NaN stays.
struct Limits {
  float floor;  // no value is below: ReLU's 0 or minus infinity
#ifdef CLIPS
  float ceiling;

  DEVICE explicit Limits(Activation activation) : floor(activation.low), ceiling(activation.high) {}
  DEVICE float operator()(float v) const { return smaller(larger(v, floor), ceiling); }
  DEVICE Half2 operator()(Half2 v) const {
    return smaller(larger(v, nearest_half2(floor)), nearest_half2(ceiling));
  }
  DEVICE Bfloat2 operator()(Bfloat2 v) const {
    return smaller(larger(v, nearest_bfloat2(floor)), nearest_bfloat2(ceiling));
  }
#else
  DEVICE explicit Limits(Activation activation) : floor(activation.is_relu ? 0.0f : __int_as_float(0xff800000)) {}
  DEVICE float operator()(float v) const { return larger(v, floor); }
  DEVICE Half2 operator()(Half2 v) const { return larger(v, nearest_half2(floor)); }
  DEVICE Bfloat2 operator()(Bfloat2 v) const { return larger(v, nearest_bfloat2(floor)); }
#endif
};

// What the thread's two output channels are finished with. Bytes are stored two neighbouring channels at a time, which
// is why the weights' rows of 8-bit elements are permuted: a thread's rows r, r + 8 are channels 2r, 2r + 1 there.
template <int STORED>
struct Finish {
  typedef Stored<STORED> E;
  float bias[2], dequant[2], scale[2];
  Limits limits;

  DEVICE Finish(const float* tile_bias, const float* tile_dequant, const float* tile_scale, Activation activation)
      : limits(activation) {
    const int row = threadIdx.x % 32 / 4, group = threadIdx.x % 128 / 32 * 16;
    UNROLL
    for (int h = 0; h < 2; h++) {
      const int channel = group + (E::BYTES == 1 ? 2 * row + h : row + 8 * h);
      bias[h] = __ldg(tile_bias + channel);
      if constexpr (STORED != F16 && STORED != BF16) {
        dequant[h] = __ldg(tile_dequant + channel);
        scale[h] = __ldg(tile_scale + channel);
      }
    }
  }

  // The sums of one column (as in wgmma.cuh: channel e / 2, pixel e % 2) as items of 16 bits, one register a matrix.
  template <class Sum>
  DEVICE void pack(const Sum (&sum)[4], uint32_t (&items)[E::PLANES][E::MATRICES]) const {
    if constexpr (STORED == F16 || STORED == BF16) {
      UNROLL
      for (int h = 0; h < 2; h++) {  // rounding first saves half of the instructions of limits and changes nothing
        const float a = sum[2 * h] + bias[h], b = sum[2 * h + 1] + bias[h];
        if constexpr (STORED == F16)
          items[0][h] = limits(nearest_half2(a, b)).bits;
        else
          items[0][h] = limits(nearest_bfloat2(a, b)).bits;
      }
    } else if constexpr (STORED == F16_PAIR) {
      UNROLL
      for (int h = 0; h < 2; h++) {
        const float a = limits(fmaf(sum[2 * h], dequant[h], bias[h])) * scale[h];
        const float b = limits(fmaf(sum[2 * h + 1], dequant[h], bias[h])) * scale[h];
        const Half2 hi = nearest_half2(a, b);
        items[0][h] = hi.bits;
        items[1][h] = nearest_half2(a - low_of(hi), b - high_of(hi)).bits;
      }
    } else {
      uint32_t q[4];
      UNROLL
      for (int e = 0; e < 4; e++)
        q[e] = quantise(fmaf(static_cast<float>(sum[e]), dequant[e / 2], bias[e / 2]), scale[e / 2]);
      items[0][0] = __byte_perm(__byte_perm(q[0], q[2], 0x0040), __byte_perm(q[1], q[3], 0x0040), 0x5410);
    }
  }

  // rint(value * scale) saturated, in the low byte. U8 saturates at 0 whether there is a ReLU or not, and stays off the
  // conversion unit, which is four times slower: scaling by 2^-8 and back is exact, adding 1.5 * 2^23 rounds.
  DEVICE uint32_t quantise(float value, float by) const {
    if constexpr (STORED == U8) {
      const float fraction = fminf(__saturatef(value * (by * 0x1p-8f)), 255.0f * 0x1p-8f);
      return __float_as_uint(fmaf(fraction, 256.0f, 12582912.0f));
    } else {
      return max(-128, min(127, __float2int_rn(limits(value) * by)));
    }
  }
};

// Column c of what is stored. POOLED: the tile is 8 pixels wide, so a thread has all of a 2x2 window: columns are image
// rows, and an out column is two pooled rows of 4 pixels (pixel e % 2 is the row).
template <bool POOLED, class Sum, int LENGTH>
DEVICE void take_column(const Sum (&sum)[LENGTH], int c, Sum (&v)[4]) {
  UNROLL
  for (int e = 0; e < 4; e++) {
    if constexpr (POOLED) {
      const int row = 4 * c + 2 * (e % 2), top = 4 * row < LENGTH ? row : 4 * c;  // no such row: the other again
      const int first = 4 * top + e / 2 * 2;
      v[e] = larger(larger(sum[first], sum[first + 1]), larger(sum[first + 4], sum[first + 5]));
    } else {
      v[e] = sum[4 * c + e];
    }
  }
}

// Finish the sums and write them to `staging`: pixels follow each other (POOLED: rows of 4), 64 channels each. Where
// the largest magnitude matters, record(column, items) sees each register of two float16 (hi plane) that is stored:
// pixels 8 * column + 2 * (lane % 4) and the next; POOLED pixel lane % 4 of pooled rows 2 * column and the next.
template <int STORED, int COLUMNS, bool POOLED, class Sum, class Record>
DEVICE void stage_tile(const Sum (&sum)[4 * COLUMNS], const Finish<STORED>& finish, uint32_t staging, Record&& record) {
  typedef Stored<STORED> E;
  typedef StagedTile<STORED, COLUMNS, POOLED> Tile;
  static_assert(!POOLED || COLUMNS % 2 == 0, "a pooling window has two rows");
  constexpr int TOTAL = Tile::OUT_COLUMNS * E::MATRICES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, r = lane % 8, matrix = lane / 8;
  const int pixel = POOLED ? r % 2 * 4 + r / 2 : r;  // which pixel of its column this lane's row of a matrix is
  const int piece = (warp * E::MATRICES + matrix % E::MATRICES) ^ (E::BYTES == 2 ? pixel : pixel / 2 % 4);
  const uint32_t target = staging + (matrix / E::MATRICES * 8 + pixel) * E::ROW_BYTES + piece * 16;
  UNROLL
  for (int first = 0; first < TOTAL; first += 4) {
    uint32_t items[E::PLANES][4] = {};  // an odd column of bytes leaves room for the one of zeros that follows it
    UNROLL
    for (int i = 0; i < 4 && first + i < TOTAL; i += E::MATRICES) {
      const int column = (first + i) / E::MATRICES;
      Sum v[4];
      take_column<POOLED>(sum, column, v);
      uint32_t packed[E::PLANES][E::MATRICES];
      finish.pack(v, packed);
      UNROLL
      for (int m = 0; m < E::MATRICES; m++) {
        UNROLL
        for (int plane = 0; plane < E::PLANES; plane++) items[plane][i + m] = packed[plane][m];
        if constexpr (E::RECORDED) record(column, packed[0][m]);
      }
    }
    UNROLL
    for (int plane = 0; plane < E::PLANES; plane++) {
      const uint32_t address = target + plane * Tile::PLANE_BYTES + first / E::MATRICES * 8 * E::ROW_BYTES;
      const uint32_t (&m)[4] = items[plane];
      if (TOTAL - first > 2)
        store_matrices_transposed(address, m[0], m[1], m[2], m[3]);
      else
        store_matrices_transposed(address, m[0], m[1]);
    }
  }
}

// ---- The largest magnitude of an image: two running float16 maxima a thread, NaN wins.

// Keeps both magnitudes of a register of two float16; clear a half to ignore that pixel.
constexpr uint32_t MAGNITUDES = 0x7fff7fff;

// Of a register of two float16, at `first` and the next place, those before `count`, as a mask.
DEVICE uint32_t halves_before(int count, int first) {
  return first + 1 < count ? MAGNITUDES : first < count ? MAGNITUDES & 0xffff : 0;
}

DEVICE uint32_t larger_magnitudes(uint32_t largest, uint32_t items, uint32_t mask = MAGNITUDES) {
  return larger(Half2{largest}, Half2{items & mask}).bits;
}

DEVICE uint32_t larger_magnitudes(uint32_t largest, const uint4& items) {
  largest = larger_magnitudes(larger_magnitudes(largest, items.x), items.y);
  return larger_magnitudes(larger_magnitudes(largest, items.z), items.w);
}

// Add a warp's maxima to the image's: the bits of a float, which order as integers do. One atomic operation a warp.
DEVICE void record_largest(uint32_t largest, unsigned* maximum) {
  const unsigned half_bits = __reduce_max_sync(0xffffffffu, max(largest & 0xffff, largest >> 16));
  if (threadIdx.x % 32 == 0) atomicMax(maximum, __float_as_uint(float_of_half(static_cast<uint16_t>(half_bits))));
}

// ---- A 2x2 pool of staged tiles, for kernels whose threads do not hold whole windows. Finishing keeps the order, so
// the bits are those of pooling first.

// Where 16 bytes of a staged pixel lie.
template <class E>
DEVICE uint4& staged_piece(uint32_t tile, int pixel, int piece) {
  const uint32_t place = piece ^ (E::BYTES == 2 ? pixel % 8 : pixel / 2 % 4);
  return *reinterpret_cast<uint4*>(__cvta_shared_to_generic(tile + pixel * E::ROW_BYTES + place * 16));
}

template <int STORED>
DEVICE uint32_t larger_items(uint32_t a, uint32_t b) {
  static_assert(STORED != F16_PAIR, "the larger pair is not the larger of each half");
  if constexpr (STORED == F16) return larger(Half2{a}, Half2{b}).bits;
  if constexpr (STORED == BF16) return larger(Bfloat2{a}, Bfloat2{b}).bits;
  return STORED == U8 ? __vmaxu4(a, b) : __vmaxs4(a, b);
}
template <int STORED>
DEVICE uint4 larger_items(uint4 a, uint4 b) {
  return make_uint4(larger_items<STORED>(a.x, b.x), larger_items<STORED>(a.y, b.y), larger_items<STORED>(a.z, b.z),
                    larger_items<STORED>(a.w, b.w));
}

// LINES rows of PITCH pixels, the last of which is junk, in each of two staged tiles, the second `apart` bytes behind
// the first and its rows below: pooled, row by row, by the last 256 threads of a block. Returns the largest magnitudes
// of the first `visible` rows where they matter.
template <int STORED, int LINES, int PITCH>
DEVICE uint32_t pool_tiles(uint32_t tiles, uint32_t apart, uint32_t pooled, int visible) {
  typedef Stored<STORED> E;
  constexpr int PIECES = E::ROW_BYTES / 16, WIDTH = (PITCH - 1) / 2, THREADS = 256;
  uint32_t largest = 0;
  for (int i = threadIdx.x + THREADS - blockDim.x; i < LINES * WIDTH * PIECES; i += THREADS) {
    const int piece = i % PIECES, pixel = i / PIECES, x = 2 * (pixel % WIDTH);
    uint4 items[2];
    UNROLL
    for (int h = 0; h < 2; h++) {
      const int row = 2 * (pixel / WIDTH) + h, place = row % LINES * PITCH + x;
      const uint32_t tile = row < LINES ? tiles : tiles + apart;
      items[h] = larger_items<STORED>(staged_piece<E>(tile, place, piece), staged_piece<E>(tile, place + 1, piece));
    }
    items[0] = larger_items<STORED>(items[0], items[1]);
    staged_piece<E>(pooled, pixel, piece) = items[0];
    if (E::RECORDED && pixel / WIDTH < visible) largest = larger_magnitudes(largest, items[0]);
  }
  return largest;
}
