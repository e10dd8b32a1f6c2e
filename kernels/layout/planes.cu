// planes_to_rgb: out[n,y,x,c] = clip(Y + b[c] * (Cb - 128) + r[c] * (Cr - 128)) at y,x, with b = (0, -0.34414, 1.772) and
//         r = (1.402, -0.71414, 0), of pictures that lie as luminance and two colours, as a JPEG file stores them. A
//         colour of half the width (and height) is interpolated first, 3 to 1 from the nearest sample and its neighbour,
//         in each direction. The bits are libjpeg's: constants times 2^16, its halves up and down, its clamping.
// Layouts:  inp: pictures, each (h,w), (ch,cw), (ch,cw) unsigned char with rows at multiples of 16 bytes, ch and cw the
//           sides by `down` and `across`, rounded up; out (h,w,3) unsigned char. Both at offsets of 64 bits. table:
//           HEADER ints, the first the number of pictures, then a Planes for each.
// Mapping:  grid (blocks, pictures at most): blocks behind the last picture return. A thread has every so many pixels of
//           its picture; neighbours read neighbouring samples.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     64 pictures 500x375, 4:2:0: 18 MB read, 36 written, 13 us of memory on an H200; 12 M pixels of 9 loads and
//           some 40 operations, 18 us at the full rate.
// Edges:    any h and w from 1. `across` 1 or 2, `down` 1 or, where across is 2, 2. Colours of two columns or fewer are
//           repeated, not interpolated, as libjpeg does it.
// Why:      the decoders of NVIDIA's cards give these planes to the bit as libjpeg has them, and what they make of them
//           is not what libjpeg makes. So a picture has the same bytes, whoever decodes it.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int HEADER = 2;  // words of the table before the first picture
constexpr int PITCH = 16;  // bytes of which a row is a multiple
constexpr int BITS = 16, HALF = 1 << (BITS - 1);  // behind the point of a constant
constexpr int RED_CR = 91881, GREEN_CB = 22554, GREEN_CR = 46802, BLUE_CB = 116130;
constexpr int NARROW = 2;  // columns of a colour that is not interpolated

struct Planes {
  int from[2], to[2];  // 64 bits each, low words first: bytes
  int h, w;
  int across, down;  // how many pixels a sample of the colours has
};

__device__ __forceinline__ long long wide(const int (&words)[2]) {
  return static_cast<long long>(words[1]) << 32 | static_cast<unsigned>(words[0]);
}

__device__ __forceinline__ int pitch_of(int w) { return (w + PITCH - 1) / PITCH * PITCH; }

__device__ __forceinline__ int clipped(int v) { return min(max(v, 0), 255); }

// The sample next to the one of pixel `i`, on the side where that pixel lies in it.
__device__ __forceinline__ int beside(int i, int size) { return min(max((i >> 1) + (i & 1 ? 1 : -1), 0), size - 1); }

// The colour of a pixel. pitch, h, w: of the colour's plane.
__device__ __forceinline__ int colour(const unsigned char* plane, int pitch, int h, int w, const Planes& p, int y,
                                      int x) {
  const int row = y / p.down, column = x / p.across;
  const unsigned char* near = plane + static_cast<long long>(row) * pitch;
  if (p.across == 1 || w <= NARROW) return near[column];
  const int next = beside(x, w), odd = x & 1;
  if (p.down == 1) return (3 * near[column] + near[next] + 1 + odd) >> 2;
  const unsigned char* far = plane + static_cast<long long>(beside(y, h)) * pitch;
  const int here = 3 * near[column] + far[column], there = 3 * near[next] + far[next];
  return (3 * here + there + 8 - odd) >> 4;
}

extern "C" __global__ void __launch_bounds__(THREADS)
planes_to_rgb(unsigned char* __restrict__ out, const unsigned char* __restrict__ inp, const int* __restrict__ table) {
  if (static_cast<int>(blockIdx.y) >= table[0]) return;
  const Planes p = reinterpret_cast<const Planes*>(table + HEADER)[blockIdx.y];
  const int ch = (p.h + p.down - 1) / p.down, cw = (p.w + p.across - 1) / p.across;
  const int pitch = pitch_of(p.w), colour_pitch = pitch_of(cw);
  const unsigned char* luminance = inp + wide(p.from);
  const unsigned char* blue = luminance + static_cast<long long>(p.h) * pitch;
  const unsigned char* red = blue + static_cast<long long>(ch) * colour_pitch;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < p.h * p.w; i += gridDim.x * THREADS) {
    const int y = i / p.w, x = i % p.w;
    const int v = luminance[static_cast<long long>(y) * pitch + x];
    const int cb = colour(blue, colour_pitch, ch, cw, p, y, x) - 128;
    const int cr = colour(red, colour_pitch, ch, cw, p, y, x) - 128;
    unsigned char* pixel = out + wide(p.to) + 3LL * i;
    pixel[0] = static_cast<unsigned char>(clipped(v + ((RED_CR * cr + HALF) >> BITS)));
    pixel[1] = static_cast<unsigned char>(clipped(v + ((HALF - GREEN_CB * cb - GREEN_CR * cr) >> BITS)));
    pixel[2] = static_cast<unsigned char>(clipped(v + ((BLUE_CB * cb + HALF) >> BITS)));
  }
}
