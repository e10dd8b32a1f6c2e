// masked_gradient: out[n,h,w,c] = the sum of up to 4 gradients where map[n,h,w,c], what a ReLU has given, is above zero,
//                  else 0; with POOL the first is that of the map's 2x2 maxima, which the first maximum of each window
//                  gets. With the macro CLIPS a Clip has given the map, and the sum goes where it is above low and
//                  below high. With SCALED times factors[n], 2^k with 2^(exponent-1) <= 2^k * bound < 2^exponent, the
//                  bound being the sum of what the gradients' magnitudes come to at most; factors[N + n] = 2^(k - growth)
// Layouts:  out, map and gradients of any strides, of pairs all of hi before all of lo; walk: {images, H, W, stored and
//           real channels}, then the strides of (n, h, w, c) of out, map and each gradient, in elements; the last number
//           of all is 0. out of OUT; an operand is of float32 where its bit is set in FLOATS, else of ELEMENT; bits count
//           map and the gradients. a_factors and so on, of gradients whose bit (bits count these) is set in FACTORS: what
//           each image is multiplied by, a power of two; else not read. a_most and so on: the largest magnitude stored of
//           each image, read with SCALED alone; then factors (2,N) is written, and maxima[n] raised: image_factor.cuh.
// Mapping:  grid (blocks of columns, rows, N), with POOL rows and columns of windows; block (channels, columns). A
//           thread has VECTOR channels of 4 pixels, one block's columns apart, with POOL those of a window. It loads all
//           that it reads before it looks at any of it.
// Tiles:    ELEMENT (0), MAP (0 by FLOATS, else ELEMENT), OUT (0) 0 float32, 1 float16, 2 bfloat16, 3 pair of float16;
//           POOL (0) 0, 1; GRADIENTS (1) 1 to 4; FLOATS (0); FACTORS (0); SCALED (0) 0, 1; VECTOR (1) 8 or 4:
//           neighbouring channels that are one access or two, of 16 bytes where values allow it, every stride but that of
//           c (1) a multiple of VECTOR; 1: any strides.
// Shared:   none; up to 128 threads.
// Cost:     a comparison and an addition for each gradient and value, 3 comparisons more with POOL; reads and writes
//           everything once.
// Sums:     in the order of the gradients, in float32, rounded once.
// Edges:    any N, H, W, C; channels behind the real ones become zero, whatever operands hold there. The last row and
//           column of odd maps have no window. NaN is above zero; of several in a window the last is the maximum, as of
//           pool_gradient_f32. The map's scales, of whole channels, stay in; where nothing is pooled its hi alone says
//           whether a value is above zero.
// Why:      mask, sum and the way through the pool are one pass over the map as the forward run has stored it: by
//           themselves each would read and write it once more, and as float32. A bound that is known before lets float16
//           be written at once: it may be larger than what is left behind the mask, which costs bits of range alone.
#include "image_factor.cuh"
#include "walk.cuh"

#ifndef ELEMENT
#define ELEMENT 0
#endif
#ifndef MAP
#define MAP (FLOATS & 1 ? 0 : ELEMENT)
#endif
#ifndef OUT
#define OUT 0
#endif
#ifndef POOL
#define POOL 0
#endif
#ifndef GRADIENTS
#define GRADIENTS 1
#endif
#ifndef FLOATS
#define FLOATS 0
#endif
#ifndef VECTOR
#define VECTOR 1
#endif
#ifndef FACTORS
#define FACTORS 0
#endif
#ifndef SCALED
#define SCALED 0
#endif

constexpr int THREADS = 128, MIN_BLOCKS = 4;  // on a multiprocessor: registers for all that is loaded
constexpr int PIXELS = 4;  // of a thread
constexpr int SIDE = POOL ? 2 : 1;
enum : int { EXTENTS, OUT_STRIDES, MAP_STRIDES, FIRST_GRADIENT };  // rows of the walk
enum : int { IMAGES, HEIGHT, COLUMNS, STORED, REAL };              // of EXTENTS

// VECTOR channels of a pixel as they are stored; of 1 the value.
template <int E>
struct Channels {
  static constexpr int WORDS = VECTOR == 1 ? 1 : VECTOR * element_nbytes(E) / 4;
  unsigned word[WORDS];

  __device__ __forceinline__ void clear() {
    UNROLL
    for (int i = 0; i < WORDS; i++) word[i] = 0;
  }

  __device__ __forceinline__ void load(const void* source, long long at, long long /* plane */) {
    if constexpr (VECTOR == 1) {
      word[0] = __float_as_uint(StoredElement<E>::load(source, at, 0));
    } else if constexpr (WORDS == 2) {
      const uint2 pair = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(source) + at);
      word[0] = pair.x;
      word[1] = pair.y;
    } else {
      const uint4* const vectors =
          reinterpret_cast<const uint4*>(static_cast<const char*>(source) + at * element_nbytes(E));
      UNROLL
      for (int i = 0; i < WORDS; i += 4) {
        const uint4 vector = vectors[i / 4];
        word[i] = vector.x;
        word[i + 1] = vector.y;
        word[i + 2] = vector.z;
        word[i + 3] = vector.w;
      }
    }
  }

  // A word of every access.
  __device__ __forceinline__ unsigned loaded() const {
    unsigned all = 0;
    UNROLL
    for (int i = 0; i < WORDS; i += 4) all |= word[i];
    return all;
  }

  // The same words, as `zero` is 0; but nobody can look at them before that is known.
  __device__ __forceinline__ void wait_for(unsigned zero) {
    UNROLL
    for (int i = 0; i < WORDS; i++) word[i] |= zero;
  }

  __device__ __forceinline__ float value(int i) const {
    if constexpr (VECTOR == 1 || E == F32) {
      return __uint_as_float(word[i]);
    } else {
      const unsigned bits = word[i / 2] >> i % 2 * 16 & 0xffffu;
      return E == BF16 ? __uint_as_float(bits << 16) : f16_value(static_cast<unsigned short>(bits));
    }
  }
};

template <>
struct Channels<F16_PAIR> {
  Channels<F16> high, low;

  __device__ __forceinline__ void clear() {
    high.clear();
    low.clear();
  }
  __device__ __forceinline__ void load(const void* source, long long at, long long plane) {
    high.load(source, at, 0);
    low.load(source, at + plane, 0);
  }
  __device__ __forceinline__ unsigned loaded() const { return high.loaded() | low.loaded(); }
  __device__ __forceinline__ void wait_for(unsigned zero) {
    high.wait_for(zero);
    low.wait_for(zero);
  }
  __device__ __forceinline__ float value(int i) const { return high.value(i) + low.value(i); }
};

static_assert(MAP != F16_PAIR || !Passed::HAS_LIMITS, "pairs hold a map times a scale");

struct Place {
  long long n;
  int h, w, c;

  __device__ __forceinline__ Place pixel(int p) const {
    return POOL ? Place{n, h + p / SIDE, w + p % SIDE, c} : Place{n, h, w + p * static_cast<int>(blockDim.y), c};
  }
  __device__ __forceinline__ Place window() const { return {n, h / SIDE, w / SIDE, c}; }
  __device__ __forceinline__ long long in(const int (&stride)[RANK]) const {
    return n * stride[0] + static_cast<long long>(h) * stride[1] + static_cast<long long>(w) * stride[2] +
           static_cast<long long>(c) * (VECTOR == 1 ? stride[3] : 1);
  }
};

// What is read of operand `row - MAP_STRIDES`.
__device__ __forceinline__ constexpr int element_of(int row) {
  if (row == MAP_STRIDES) return MAP == F16_PAIR && !POOL ? F16 : MAP;
  return ELEMENT == F32 || FLOATS >> (row - MAP_STRIDES) & 1 ? F32 : ELEMENT;
}

// From hi to lo of an operand that is a pair.
__device__ __forceinline__ long long plane_of(const Walk& walk, int row) {
  return static_cast<long long>(walk.row[EXTENTS][IMAGES]) * walk.row[row][0];
}

__device__ __forceinline__ constexpr bool has_factor(int row) { return FACTORS >> (row - FIRST_GRADIENT) & 1; }

// What takes the factor of a gradient's image out.
template <int ROW>
__device__ __forceinline__ float inverse_factor(const float* factors, long long n) {
  if constexpr (has_factor(ROW))
    return inverse_of_power(factors[n]);
  else
    return 1.f;
}

// A gradient's value, its factor taken out.
template <int ROW>
__device__ __forceinline__ float taken_out(float value, float inverse) {
  return has_factor(ROW) ? value * inverse : value;
}

// An operand at the pixels of a thread.
template <int ROW>
struct Operand {
  Channels<element_of(ROW)> at[PIXELS];

  __device__ __forceinline__ void load(const void* source, const Walk& walk, const Place (&place)[PIXELS]) {
    UNROLL
    for (int p = 0; p < PIXELS; p++) at[p].load(source, place[p].in(walk.row[ROW]), plane_of(walk, ROW));
  }
};

struct Gradients {
  const void* values[4];
  const float* factors[4];
  const float* most[4];

  // What the magnitudes of the sum come to at most, in image n.
  template <int K>
  __device__ __forceinline__ float bound(int n) const {
    if constexpr (K == GRADIENTS)
      return 0.f;
    else
      return most[K][n] * inverse_factor<FIRST_GRADIENT + K>(factors[K], n) + bound<K + 1>(n);
  }
};

// The gradients from number K on that are as large as the map.
template <int K>
struct Summands {
  static constexpr int ROW = FIRST_GRADIENT + K;
  Operand<ROW> here;
  float inverse;
  Summands<K + 1> others;

  __device__ __forceinline__ void load(const Gradients& gradient, const Walk& walk, const Place (&place)[PIXELS]) {
    here.load(gradient.values[K], walk, place);
    inverse = inverse_factor<ROW>(gradient.factors[K], place[0].n);
    others.load(gradient, walk, place);
  }
  // The map is not looked at before all gradients are loaded. Else a compiler loads them one by one when it is done with
  // the map, to save registers, and each load is waited for by itself. `none` is 0, which no compiler knows.
  __device__ __forceinline__ void hold_back(Operand<MAP_STRIDES>& x, unsigned none) const {
    UNROLL
    for (int p = 0; p < PIXELS; p++) x.at[p].wait_for(here.at[p].loaded() & none);
    others.hold_back(x, none);
  }
  __device__ __forceinline__ float add(float sum, int p, int i) const {
    return others.add(sum + taken_out<ROW>(here.at[p].value(i), inverse), p, i);
  }
};
template <>
struct Summands<GRADIENTS> {
  __device__ __forceinline__ void load(const Gradients&, const Walk&, const Place (&)[PIXELS]) {}
  __device__ __forceinline__ void hold_back(Operand<MAP_STRIDES>&, unsigned) const {}
  __device__ __forceinline__ float add(float sum, int, int) const { return sum; }
};

// Which of a window's pixels has the maximum of channel i.
__device__ __forceinline__ int first_maximum(const Operand<MAP_STRIDES>& x, int i) {
  float best = x.at[0].value(i);
  int first = 0;
  UNROLL
  for (int p = 1; p < PIXELS; p++) {
    const float v = x.at[p].value(i);
    if (v > best || v != v) {
      best = v;
      first = p;
    }
  }
  return first;
}

template <int LENGTH>
__device__ __forceinline__ void store(void* out, long long at, long long plane, const float (&v)[LENGTH]) {
  if constexpr (LENGTH == 1)
    StoredElement<OUT>::store(out, at, plane, v[0]);
  else
    store_halves<OUT, LENGTH>(out, at, plane, v);
}

// VECTOR channels of the pixels of a thread, the first of which lies in the map. factor: of the image.
__device__ __forceinline__ void hand_back(void* out, const void* map, const Gradients& gradient, const Walk& walk,
                                          const Place& first, float factor, const Passed& passed) {
  const auto& extent = walk.row[EXTENTS];
  const int real = extent[REAL] - first.c;
  const long long plane = plane_of(walk, OUT_STRIDES);
  Place place[PIXELS];
  bool inside[PIXELS];
  UNROLL
  for (int p = 0; p < PIXELS; p++) {
    place[p] = first.pixel(p);
    inside[p] = place[p].h < extent[HEIGHT] && place[p].w < extent[COLUMNS];
    if (!inside[p]) place[p] = first;  // loads without conditions are all under way at once
  }
  if (VECTOR == 1 && real <= 0) {  // operands may have nothing there
    const float zero[VECTOR] = {};
    UNROLL
    for (int p = 0; p < PIXELS; p++)
      if (inside[p]) store(out, place[p].in(walk.row[OUT_STRIDES]), plane, zero);
    return;
  }
  Operand<MAP_STRIDES> x;
  Channels<element_of(FIRST_GRADIENT)> routed;
  float inverse = 1.f;
  Summands<POOL> summands;
  routed.clear();
  if (POOL && inside[PIXELS - 1]) {
    routed.load(gradient.values[0], first.window().in(walk.row[FIRST_GRADIENT]), plane_of(walk, FIRST_GRADIENT));
    inverse = inverse_factor<FIRST_GRADIENT>(gradient.factors[0], first.n);
  }
  x.load(map, walk, place);
  summands.load(gradient, walk, place);
  summands.hold_back(x, walk.row[RANK - 1][RANK - 1]);
  int maximum[VECTOR];
  UNROLL
  for (int i = 0; i < VECTOR; i++) maximum[i] = first_maximum(x, i);
  UNROLL
  for (int p = 0; p < PIXELS; p++) {
    float sum[VECTOR];
    UNROLL
    for (int i = 0; i < VECTOR; i++) {
      const float from_pool = taken_out<FIRST_GRADIENT>(routed.value(i), inverse);
      sum[i] = summands.add(POOL && maximum[i] == p ? from_pool : 0.f, p, i);
      if (passed.is_at_end(x.at[p].value(i)) || i >= real) sum[i] = 0.f;
      if (SCALED) sum[i] *= factor;
    }
    if (inside[p]) store(out, place[p].in(walk.row[OUT_STRIDES]), plane, sum);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
masked_gradient(void* __restrict__ out, const void* __restrict__ map, const void* __restrict__ a,
                const void* __restrict__ b, const void* __restrict__ c, const void* __restrict__ d,
                const float* __restrict__ a_factors, const float* __restrict__ b_factors,
                const float* __restrict__ c_factors, const float* __restrict__ d_factors,
                const float* __restrict__ a_most, const float* __restrict__ b_most, const float* __restrict__ c_most,
                const float* __restrict__ d_most, float* __restrict__ factors, unsigned* __restrict__ maxima,
                const Walk walk, int exponent, int growth PASSED_PARAMETERS GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  const auto& extent = walk.row[EXTENTS];
  const Gradients gradient = {
      {a, b, c, d}, {a_factors, b_factors, c_factors, d_factors}, {a_most, b_most, c_most, d_most}};
  const int n = blockIdx.z;
  float by = 1.f;
  if constexpr (SCALED) {
    const ImageFactor factor(gradient.bound<0>(n), exponent, growth);
    by = factor.of_image;
    const bool is_first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && threadIdx.y == 0;
    if (is_first) factor.store(factors, maxima, n, gridDim.z);
  }
  const int column = (blockIdx.x * blockDim.y * (POOL ? 1 : PIXELS) + threadIdx.y) * SIDE;
  if (column < extent[COLUMNS]) {
    for (int channel = threadIdx.x * VECTOR; channel < extent[STORED]; channel += blockDim.x * VECTOR) {
      const Place first = {n, static_cast<int>(blockIdx.y) * SIDE, column, channel};
      hand_back(out, map, gradient, walk, first, by, PASSED);
    }
  }
}
