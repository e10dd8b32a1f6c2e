// What stored values are made of, read one or four at a time, written one: for the kernels beside the main path.
#pragma once

#include "mma_epilogue.cuh"

// load: element `index` as a float, a pair's halves being added. store: the nearest element, ties to even; returns the
// magnitude of what was stored (a pair's high half). `plane` is the distance from hi to lo, in elements.
template <int ELEMENT_>
struct StoredElement;

template <>
struct StoredElement<F32> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long) {
    return static_cast<const float*>(values)[index];
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long, float v) {
    static_cast<float*>(values)[index] = v;
    return fabsf(v);
  }
};

template <>
struct StoredElement<F16> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long) {
    return f16_value(static_cast<const unsigned short*>(values)[index]);
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long, float v) {
    static_cast<unsigned short*>(values)[index] = static_cast<unsigned short>(pack2_f16(v, 0.0f));
    return fabsf(round_to_f16(v));
  }
};

template <>
struct StoredElement<BF16> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long) {
    return __uint_as_float(static_cast<unsigned>(static_cast<const unsigned short*>(values)[index]) << 16);
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long, float v) {
    const unsigned bits = bf16_bits(v);
    static_cast<unsigned short*>(values)[index] = static_cast<unsigned short>(bits);
    return fabsf(__uint_as_float(bits << 16));
  }
};

template <>
struct StoredElement<F16_PAIR> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long plane) {
    return StoredElement<F16>::load(values, index, 0) + StoredElement<F16>::load(values, index + plane, 0);
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long plane, float v) {
    StoredElement<F16>::store(values, index + plane, 0, v - round_to_f16(v));
    return StoredElement<F16>::store(values, index, 0, v);
  }
};

template <>
struct StoredElement<U8> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long) {
    return static_cast<float>(static_cast<const unsigned char*>(values)[index]);
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long, float v) {
    const int q = quantise<U8>(v);
    static_cast<unsigned char*>(values)[index] = static_cast<unsigned char>(q);
    return static_cast<float>(q);
  }
};

template <>
struct StoredElement<S8> {
  static __device__ __forceinline__ float load(const void* values, long long index, long long) {
    return static_cast<float>(static_cast<const signed char*>(values)[index]);
  }
  static __device__ __forceinline__ float store(void* values, long long index, long long, float v) {
    const int q = quantise<S8>(v);
    static_cast<signed char*>(values)[index] = static_cast<signed char>(q);
    return fabsf(static_cast<float>(q));
  }
};

// 1 / v of a power of two, exactly: its exponent mirrored. Neither may be subnormal.
__device__ __forceinline__ float inverse_of_power(float v) { return __uint_as_float(0x7f000000u - __float_as_uint(v)); }

// The value of the 16 bits at place `i` of words of float16 or bfloat16.
template <int ELEMENT_>
__device__ __forceinline__ float half_of_words(const unsigned* words, int i) {
  const unsigned bits = words[i / 2] >> i % 2 * 16 & 0xffffu;
  return ELEMENT_ == BF16 ? __uint_as_float(bits << 16) : f16_value(static_cast<unsigned short>(bits));
}

// 4 neighbours from `index` on, of float32, float16 or bfloat16; where they begin is a multiple of their 16 or 8 bytes.
template <int ELEMENT_>
__device__ __forceinline__ void load4_stored(float* v, const void* values, long long index) {
  if constexpr (ELEMENT_ == F32) {
    unpack4(v, load4(static_cast<const float*>(values) + index));
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(values) + index);
    const unsigned word[2] = {words.x, words.y};
    UNROLL
    for (int i = 0; i < 4; i++) v[i] = half_of_words<ELEMENT_>(word, i);
  }
}

// The same of 8, which begin at a multiple of 16 bytes.
template <int ELEMENT_>
__device__ __forceinline__ void load8_stored(float* v, const void* values, long long index) {
  if constexpr (ELEMENT_ == F32) {
    load4_stored<F32>(v, values, index);
    load4_stored<F32>(v + 4, values, index + 4);
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(values) + index);
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
    UNROLL
    for (int i = 0; i < 8; i++) v[i] = half_of_words<ELEMENT_>(word, i);
  }
}

// WIDTH (4 or 8) neighbours, also in pairs of float16; `plane` is the distance from hi to lo, in elements.
template <int ELEMENT_, int WIDTH>
__device__ __forceinline__ void store_halves(void* values, long long index, long long plane, const float (&v)[WIDTH]) {
  if constexpr (ELEMENT_ == F16_PAIR) {
    float high[WIDTH], low[WIDTH];
    UNROLL
    for (int i = 0; i < WIDTH; i++) {
      high[i] = round_to_f16(v[i]);
      low[i] = v[i] - high[i];
    }
    PackedValues<F16, WIDTH>(high, nullptr).store(values, index, WIDTH);
    PackedValues<F16, WIDTH>(low, nullptr).store(values, plane + index, WIDTH);
  } else {
    PackedValues<ELEMENT_, WIDTH>(v, nullptr).store(values, index, WIDTH);
  }
}
