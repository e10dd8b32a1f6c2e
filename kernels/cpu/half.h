// float16 and bfloat16 for compilers that may not have them: values from bits, and bits of the nearest value (ties to
// even). NaN becomes the one NaN that NVIDIA's conversions give.
#pragma once

#include <stdint.h>
#include <string.h>

namespace cpu {

static inline float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

static inline uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

// No branches: the loops that call it run in vector lanes. Exponent 31 comes out as 2^16 or more and stands for
// infinity and NaN; denormal numbers are normalised by the product.
static inline float f16_value(uint16_t half) {
  const float magnitude = float_of(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 65536.0f ? 0x7f800000u : 0;
  return float_of(bits_of(magnitude) | special | static_cast<uint32_t>(half & 0x8000) << 16);
}

static inline uint16_t f16_bits(float v) {
  const uint32_t bits = bits_of(v), sign = bits >> 16 & 0x8000;
  const float magnitude = float_of(bits & 0x7fffffff);
  if (v != v) return 0x7fff;
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  // Below the normal numbers: 0.5 has the spacing of float16's denormal numbers, so the addition rounds.
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | (bits_of(magnitude + 0.5f) - bits_of(0.5f)));
  const uint32_t rounded = bits_of(magnitude) + 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

static inline float bf16_value(uint16_t brain) { return float_of(static_cast<uint32_t>(brain) << 16); }

}  // namespace cpu
