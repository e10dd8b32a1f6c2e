// Numbers of 16 bits, by the instructions of compute capability 9.0: what CUDA's own headers have of it, which not every
// compiler brings. PTX ISA: "Data Movement and Conversion Instructions: cvt", "Half Precision Floating-Point
// Instructions: max".
#pragma once

#include <stdint.h>

struct Half2 {  // two float16, the first one low
  uint32_t bits;
};
struct Bfloat2 {  // two bfloat16, the first one low
  uint32_t bits;
};

__device__ __forceinline__ uint16_t half_bits(float v) {  // of the nearest float16
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

__device__ __forceinline__ uint16_t bfloat_bits(float v) {  // of the nearest bfloat16
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

__device__ __forceinline__ float float_of_half(uint16_t bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}

__device__ __forceinline__ float low_of(Half2 v) {
  float low;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(low) : "r"(v.bits));
  return low;
}

__device__ __forceinline__ float high_of(Half2 v) {
  float high;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(high) : "r"(v.bits));
  return high;
}

__device__ __forceinline__ Half2 nearest_half2(float low, float high) {
  Half2 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v.bits) : "f"(high), "f"(low));
  return v;
}

__device__ __forceinline__ Bfloat2 nearest_bfloat2(float low, float high) {
  Bfloat2 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v.bits) : "f"(high), "f"(low));
  return v;
}

__device__ __forceinline__ Half2 nearest_half2(float v) {  // twice the same
  Half2 twice;
  asm("{ .reg .f16 one; cvt.rn.f16.f32 one, %1; mov.b32 %0, {one, one}; }" : "=r"(twice.bits) : "f"(v));
  return twice;
}

__device__ __forceinline__ Bfloat2 nearest_bfloat2(float v) {  // twice the same
  Bfloat2 twice;
  asm("{ .reg .b16 one; cvt.rn.bf16.f32 one, %1; mov.b32 %0, {one, one}; }" : "=r"(twice.bits) : "f"(v));
  return twice;
}

// NaN stays.
__device__ __forceinline__ Half2 larger(Half2 a, Half2 b) {
  Half2 v;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(v.bits) : "r"(a.bits), "r"(b.bits));
  return v;
}

__device__ __forceinline__ Half2 smaller(Half2 a, Half2 b) {
  Half2 v;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(v.bits) : "r"(a.bits), "r"(b.bits));
  return v;
}

__device__ __forceinline__ Bfloat2 larger(Bfloat2 a, Bfloat2 b) {
  Bfloat2 v;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(v.bits) : "r"(a.bits), "r"(b.bits));
  return v;
}

__device__ __forceinline__ Bfloat2 smaller(Bfloat2 a, Bfloat2 b) {
  Bfloat2 v;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(v.bits) : "r"(a.bits), "r"(b.bits));
  return v;
}
