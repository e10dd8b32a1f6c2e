// What the kernels of a network's first convolution share: pixels from the run-time input, and both operands of its 3x3
// products over one to four channels, laid out for wgmma without im2col.
//
// A pixel takes four channel slots of an element. Entry e of a row in shared memory is 16 bytes: pixels e and e + 1
// (bytes: to e + 3). A kernel row is entries e and e + 2 against two pieces of weights, of 64 channels x 16 bytes each
// (bytes: entry e alone, the other piece is zero), and overlapping core matrices let all pixels share the entries.
// The kernel may set ELEMENT (1), SOURCE (0) and IN_CHANNELS (3) before it includes this.
#pragma once

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

constexpr int C = IN_CHANNELS;
static_assert(C >= 1 && C <= 4, "a pixel has four channel slots");

typedef Stored<ELEMENT> E;
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

constexpr int ENTRY = 16;                                                     // bytes: a row of a core matrix
constexpr int SLOTS = ENTRY / E::BYTES;                                       // channel slots of an entry
constexpr int CELL = 4 * E::BYTES;                                            // bytes of a pixel's four channel slots
constexpr int KP = (9 * C * sizeof(Weight) + 31) / 32 * 32 / sizeof(Weight);  // weights of an output channel in memory
constexpr int PIECE = 64 * ENTRY;                                             // 64 output channels x one entry
constexpr int FIRST_WEIGHT_BYTES = 3 * 2 * PIECE;  // a part: three kernel rows of two entries

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
        cell[0][h] = nearest_half2(a, b).bits;
      } else if constexpr (ELEMENT == BF16) {
        cell[0][h] = nearest_bfloat2(a, b).bits;
      } else {
        float rest[2] = {a * scale, b * scale};
        UNROLL
        for (int part = 0; part < PARTS; part++) {
          const Half2 taken = nearest_half2(rest[0], rest[1]);
          cell[part][h] = taken.bits;
          rest[0] -= low_of(taken);
          rest[1] -= high_of(taken);
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

// What makes operands of the pixels that a thread reads.
struct Pixels {
  typedef SourceAs<SOURCE> Source;
  typedef Source::Raw Raw[C];

  float scale, mean_scale[C], mean_shift[C];
  InputLimits limits;
  unsigned largest = 0;  // bits of the largest magnitude read

  DEVICE Pixels(const float* in_scale, const float* mean_scale, const float* mean_shift, InputLimits limits)
      : scale(USES_SCALE ? __ldg(in_scale) : 1.0f), limits(limits) {
    UNROLL
    for (int c = 0; c < C; c++) {
      this->mean_scale[c] = SOURCE == SOURCE_U8 ? __ldg(mean_scale + c) : 1.0f;
      this->mean_shift[c] = SOURCE == SOURCE_U8 ? __ldg(mean_shift + c) : 0.0f;
    }
  }

  // Start reading pixel (y, x) of an image; zero outside of it.
  static DEVICE void fetch(Raw& raw, const char* image, int y, int x, int H, int W, bool inside) {
    UNROLL
    for (int c = 0; c < C; c++)
      raw[c] = Source::load(image + Source::offset(c, y, x, H, W) * static_cast<long long>(Source::BYTES), inside);
  }

  DEVICE void convert(const Raw& raw, uint32_t (&cell)[PARTS][CELL / 4]) {
    float v[4] = {};
    UNROLL
    for (int c = 0; c < C; c++) {
      largest = max(largest, Source::magnitude(raw[c]));
      v[c] = limits(Source::value(raw[c], mean_scale[c], mean_shift[c]));
    }
    make_cell(v, scale, cell);
  }

  DEVICE bool met_nonfinite() const { return largest >= 0x7f800000; }
};

// The next part of a weight; of a float32 the rest stays.
DEVICE Word take_part(Word weight) { return weight; }
DEVICE Word take_part(float& rest) {
  const uint16_t part = half_bits(rest);
  rest -= float_of_half(part);
  return part;
}

// The weights of 64 output channels from memory into shared memory, by 128 threads: piece kh * 2 + q of a part holds
// the channel slots of entry q of kernel row kh.
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
        *reinterpret_cast<uint4*>(target + part * FIRST_WEIGHT_BYTES + piece * PIECE + row * ENTRY) =
            *reinterpret_cast<const uint4*>(slots);
    }
  }
}
