// The power of two that brings an image of a map to where float16 has its bits, from a bound of its magnitudes.
#pragma once

#include "stored.cuh"

__device__ __forceinline__ float power_of_two(int k) { return __uint_as_float(static_cast<unsigned>(k + 127) << 23); }

// 2^k with 2^(exponent-1) <= 2^k * most < 2^exponent; k is 0 where `most` is zero, infinite or NaN, and else such that
// 2^k and 2^(k - growth), what results have that are 2^growth times as large, lie between 2^-126 and 2^126.
struct ImageFactor {
  float of_image, of_results;
  float largest;  // what `most` becomes in float16; of zeros what is in range

  __device__ __forceinline__ ImageFactor(float most, int exponent, int growth) {
    const int found = static_cast<int>(__float_as_uint(most) >> 23 & 0xff);  // 2^(found-127) <= most, but for tiny ones
    const int wanted = exponent - (found - 126), least = max(-126, growth - 126), highest = min(126, growth + 126);
    const int k = most == 0.f || found == 0xff ? 0 : min(max(wanted, least), highest);
    of_image = power_of_two(k);
    of_results = power_of_two(k - growth);
    largest = most == 0.f ? power_of_two(exponent - 1) : round_to_f16(most * of_image);
  }

  // For one thread of an image: factors (2,images).
  __device__ __forceinline__ void store(float* factors, unsigned* maxima, int image, int images) const {
    factors[image] = of_image;
    factors[images + image] = of_results;
    atomicMax(maxima + image, __float_as_uint(largest));
  }
};
