// What becomes of the sums of an mma.sync kernel: bias, activation, rounding to the stored element, vectors of them in
// memory, the largest magnitude of an image. From equal sums come equal bits, on a GPU and on the CPU.
#pragma once

#include "common.cuh"
#include "element.cuh"
#ifndef __CUDACC__
#include "cpu/half.h"
#endif

// Bytes of a stored value, of a pair in each plane.
__device__ __forceinline__ constexpr int element_nbytes(int element) {
  return element == F32 ? 4 : element == U8 || element == S8 ? 1 : 2;
}

// Whether sums of products of an element, or what is stored of it, have scales, and whether magnitudes are recorded.
__device__ __forceinline__ constexpr bool has_scale(int element) {
  return element == U8 || element == S8 || element == F16_PAIR;
}
__device__ __forceinline__ constexpr bool has_magnitudes(int element) { return element == F16 || element == F16_PAIR; }

// The nearest float16 (ties to even) of two values, `low` in the low half.
__device__ __forceinline__ unsigned pack2_f16(float low, float high) {
#ifdef __CUDACC__
  unsigned packed;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.f16.f32 low, %1;\n"
      "  cvt.rn.f16.f32 high, %2;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(packed)
      : "f"(low), "f"(high));
  return packed;
#else
  return cpu::f16_bits(low) | static_cast<unsigned>(cpu::f16_bits(high)) << 16;
#endif
}

// The nearest bfloat16 (ties to even); its bits are the upper half of a float's. There is an instruction from Ampere
// on.
__device__ __forceinline__ unsigned bf16_bits(float v) {
  const unsigned bits = __float_as_uint(v);
  return v != v ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

__device__ __forceinline__ unsigned pack2_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#else
  return bf16_bits(low) | bf16_bits(high) << 16;
#endif
}

// The value of the float16 with these bits.
__device__ __forceinline__ float f16_value(unsigned short bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return cpu::f16_value(bits);
#endif
}

// The nearest float16 of two values in one word; what that leaves of them stays.
__device__ __forceinline__ unsigned take2_f16(float& low, float& high) {
  const unsigned taken = pack2_f16(low, high);
  low -= f16_value(static_cast<unsigned short>(taken));
  high -= f16_value(static_cast<unsigned short>(taken >> 16));
  return taken;
}

// The value of v's nearest float16.
__device__ __forceinline__ float round_to_f16(float v) {
#ifdef __CUDACC__
  float rounded;
  asm("{ .reg .b16 half;\n"
      "  cvt.rn.f16.f32 half, %1;\n"
      "  cvt.f32.f16 %0, half; }"
      : "=f"(rounded)
      : "f"(v));
  return rounded;
#else
  return cpu::f16_value(cpu::f16_bits(v));
#endif
}

// The nearest number within the element's range; 0 for a quiet NaN, as products are: fmaxf drops it.
template <int ELEMENT_>
__device__ __forceinline__ float saturated(float v) {
  constexpr float LEAST = ELEMENT_ == U8 ? 0.0f : -128.0f, MOST = ELEMENT_ == U8 ? 255.0f : 127.0f;
  return fminf(fmaxf(ELEMENT_ != U8 && v != v ? 0.0f : v, LEAST), MOST);
}

// The nearest integer (ties to even) that the element holds; 0 for NaN.
template <int ELEMENT_>
__device__ __forceinline__ int quantise(float v) {
  return static_cast<int>(rintf(saturated<ELEMENT_>(v)));
}

// 1.5 * 2^23: a small number that is added to it becomes the nearest integer, ties to even, in the low bits of the sum.
// A GPU converts a float to an integer at a quarter of the rate of an addition.
constexpr float ROUNDS = 12582912.0f;

// quantise, as a float.
template <int ELEMENT_>
__device__ __forceinline__ float quantised(float v) {
  return (saturated<ELEMENT_>(v) + ROUNDS) - ROUNDS;
}

// quantise, of four values, in one word.
template <int ELEMENT_>
__device__ __forceinline__ unsigned quantise4(const float (&v)[4]) {
#ifdef __CUDACC__
  unsigned bits[4];
  UNROLL
  for (int i = 0; i < 4; i++) bits[i] = __float_as_uint(saturated<ELEMENT_>(v[i]) + ROUNDS);
  return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
#else
  unsigned word = 0;
  UNROLL
  for (int i = 0; i < 4; i++) word |= (quantise<ELEMENT_>(v[i]) & 0xffu) << 8 * i;
  return word;
#endif
}

// Words to memory that is aligned to all of them, 16 bytes at most at once; only the first `nbytes`.
template <int WORDS>
__device__ __forceinline__ void store_words(char* place, const unsigned (&word)[WORDS], int nbytes) {
  constexpr int WIDTH = WORDS < 4 ? WORDS : 4;  // words that go out at once
  unsigned* target = reinterpret_cast<unsigned*>(place);
  UNROLL
  for (int w = 0; w < WORDS; w += WIDTH) {
    if (w > 0 && w * 4 >= nbytes) break;
    if constexpr (WIDTH == 4)
      *reinterpret_cast<uint4*>(target + w) = make_uint4(word[w], word[w + 1], word[w + 2], word[w + 3]);
    else if constexpr (WIDTH == 2)
      *reinterpret_cast<uint2*>(target + w) = make_uint2(word[w], word[w + 1]);
    else
      target[w] = word[w];
  }
}

// `LENGTH` (4 or 8) values of an element in 32-bit words, in order.
template <int ELEMENT_, int LENGTH>
struct PackedValues {
  static constexpr int WORDS = LENGTH * element_nbytes(ELEMENT_) / 4;
  unsigned word[WORDS];

  // scale[] matters to the quantised elements alone: stored = value * scale.
  __device__ __forceinline__ PackedValues(const float* value, const float* scale) {
    UNROLL
    for (int w = 0; w < WORDS; w++) {
      if constexpr (ELEMENT_ == F32) {
        word[w] = __float_as_uint(value[w]);
      } else if constexpr (ELEMENT_ == F16) {
        word[w] = pack2_f16(value[2 * w], value[2 * w + 1]);
      } else if constexpr (ELEMENT_ == BF16) {
        word[w] = pack2_bf16(value[2 * w], value[2 * w + 1]);
      } else {
        float scaled[4];
        UNROLL
        for (int i = 0; i < 4; i++) scaled[i] = value[4 * w + i] * scale[4 * w + i];
        word[w] = quantise4<ELEMENT_>(scaled);
      }
    }
  }

  // To element number `index` of a map, a multiple of LENGTH; only the first `room` values, a multiple of 4.
  __device__ __forceinline__ void store(void* map, long long index, int room) const {
    store(static_cast<char*>(map) + index * element_nbytes(ELEMENT_), room);
  }

  __device__ __forceinline__ void store(char* place, int room) const {
    store_words(place, word, room * element_nbytes(ELEMENT_));
  }

  // As pairs have it; there is one plane.
  __device__ __forceinline__ void store_planes(char* place, int room, long long) const { store(place, room); }
};

// The same of pairs: value * scale = the float16 in `word` + those in `rest`.
template <int LENGTH>
struct PackedValues<F16_PAIR, LENGTH> {
  static constexpr int WORDS = LENGTH / 2;
  unsigned word[WORDS], rest[WORDS];

  __device__ __forceinline__ PackedValues(const float* value, const float* scale) {
    UNROLL
    for (int w = 0; w < WORDS; w++) {
      float low = value[2 * w] * scale[2 * w], high = value[2 * w + 1] * scale[2 * w + 1];
      word[w] = take2_f16(low, high);
      rest[w] = pack2_f16(low, high);
    }
  }

  // plane: bytes from a value to its rest.
  __device__ __forceinline__ void store_planes(char* place, int room, long long plane) const {
    store_words(place, word, room * 2);
    store_words(place + plane, rest, room * 2);
  }
};

// The bits of |v|: magnitudes order like these integers, NaN above infinity.
__device__ __forceinline__ int magnitude_bits(float v) { return __float_as_int(v) & 0x7fffffff; }

// The larger magnitude in each half of two pairs of float16; NaN above infinity.
__device__ __forceinline__ unsigned max2_magnitudes(unsigned largest, unsigned pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned larger;
  asm("{ .reg .b32 positive;\n"
      "  and.b32 positive, %2, 0x7fff7fff;\n"
      "  max.NaN.f16x2 %0, %1, positive; }"
      : "=r"(larger)
      : "r"(largest), "r"(pair));
  return larger;
#else
  const unsigned low = max(largest & 0xffffu, pair & 0x7fffu), high = max(largest >> 16, pair >> 16 & 0x7fffu);
  return low | high << 16;
#endif
}

// Raise *maximum to `bits`. A look first: thousands of warps raise one word, and all but a few find it high enough.
__device__ __forceinline__ void raise_maximum(int* maximum, int bits) {
#ifdef __CUDACC__
  const int known = *static_cast<volatile int*>(maximum);
#else
  const int known = __atomic_load_n(maximum, __ATOMIC_RELAXED);
#endif
  if (known < bits) atomicMax(maximum, bits);
}

// Raise *maximum, the bits of a float, to the largest magnitude that any lane of the warp has, as float16 stores it.
__device__ __forceinline__ void record_f16_magnitude(int* maximum, int bits) {
  UNROLL
  for (int distance = 16; distance > 0; distance /= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
  if (threadIdx.x % 32 == 0) raise_maximum(maximum, __float_as_int(round_to_f16(__int_as_float(bits))));
}

// Raise *maximum to the largest magnitude of all lanes, of those that max2_magnitudes found in each.
__device__ __forceinline__ void record_magnitudes(int* maximum, unsigned pair) {
  const unsigned larger = max(pair & 0xffffu, pair >> 16);
  record_f16_magnitude(maximum, __float_as_int(f16_value(static_cast<unsigned short>(larger))));
}

// The larger value, or NaN if either is NaN; 0 is above -0.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
#else
  return a > b || a != a || (a == b && !(__float_as_uint(a) >> 31)) ? a : b;
#endif
}

// The activation, with one instruction for a ReLU from Ampere on.
__device__ __forceinline__ float activated(float v, Activation activation) {
#ifdef CLIPS
  return activation(v);
#else
  return activation.is_relu ? larger_or_nan(v, 0.0f) : v;
#endif
}

// The activation of a value that is stored as ELEMENT_: unsigned bytes, which saturate at zero, need no ReLU.
template <int ELEMENT_>
__device__ __forceinline__ float activated_as(float v, Activation activation) {
#ifndef CLIPS
  if (ELEMENT_ == U8) return v;
#endif
  return activated(v, activation);
}

// What becomes of a sum: one of integers or pairs gets its scale, then bias and activation. Padded channels are zero
// even where infinity met a padded weight.
__device__ __forceinline__ float finish(float sum, float, float bias, bool real_channel, Activation activation) {
  const float v = sum + bias;
  return real_channel ? activation(v) : 0.0f;
}

__device__ __forceinline__ float finish_scaled(float sum, float dequant, float bias, bool real_channel,
                                               Activation activation) {
  const float v = fmaf(sum, dequant, bias);
  return real_channel ? activation(v) : 0.0f;
}

__device__ __forceinline__ float finish(int sum, float dequant, float bias, bool real_channel, Activation activation) {
  return finish_scaled(static_cast<float>(sum), dequant, bias, real_channel, activation);
}
