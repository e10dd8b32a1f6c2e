// masked_gradient: out[n,h,w,c] = the sum of up to 4 gradients where map[n,h,w,c], what a ReLU has given, is above zero, else
//                  0; with POOL the first is that of the map's 2x2 maxima, which the first maximum of each window gets
// Layouts:  out, map and gradients of any strides; walk: {images, H, W, stored and real channels}, then the strides of
//           (n, h, w, c) of out, map and each gradient, in elements; the last number of all is 0. out of OUT; an operand
//           is of float32 where its bit is set in FLOATS, else of ELEMENT; bits count map and the gradients.
// Mapping:  grid (blocks of columns, rows, N), with POOL rows and columns of windows; block (channels, columns). A
//           thread has VECTOR channels of 4 pixels, one block's columns apart, with POOL those of a window. It loads all
//           that it reads before it looks at any of it.
// Tiles:    ELEMENT (0) 0 float32, 1 float16, 2 bfloat16; OUT (0) 0 float32, 2 bfloat16; POOL (0) 0, 1; GRADIENTS (1) 1
//           to 4; FLOATS (0); VECTOR (1) 8 or 4: neighbouring channels that are one access or two, of 16 bytes where
//           values allow it, every stride but that of c (1) a multiple of VECTOR; 1: any strides.
// Shared:   none; up to 128 threads.
// Cost:     a comparison and an addition for each gradient and value, 3 comparisons more with POOL; reads and writes
//           everything once.
// Sums:     in the order of the gradients, in float32, rounded once.
// Edges:    any N, H, W, C; channels behind the real ones become zero, whatever operands hold there. The last row and
//           column of odd maps have no window. NaN is above zero; of several in a window the last is the maximum, as of
//           pool_gradient_f32.
// Why:      mask, sum and the way through the pool are one pass over the map as the forward run has stored it: by
//           themselves each would read and write it once more, and as float32.
#include "stored.cuh"
#include "walk.cuh"

#ifndef ELEMENT
#define ELEMENT 0
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

  __device__ __forceinline__ void load(const void* source, long long at) {
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

  // `none` is 0, which no compiler knows: the same words, but nobody can look at them before `later` has been loaded.
  template <class Other>
  __device__ __forceinline__ void wait_for(const Other& later, unsigned none) {
    unsigned all = 0;
    UNROLL
    for (int i = 0; i < Other::WORDS; i += 4) all |= later.word[i];
    UNROLL
    for (int i = 0; i < WORDS; i++) word[i] |= all & none;
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

// What operand `row - MAP_STRIDES` is made of.
__device__ __forceinline__ constexpr int element_of(int row) {
  return ELEMENT == F32 || FLOATS >> (row - MAP_STRIDES) & 1 ? F32 : ELEMENT;
}

// An operand at the pixels of a thread.
template <int ROW>
struct Operand {
  Channels<element_of(ROW)> at[PIXELS];

  __device__ __forceinline__ void load(const void* source, const Walk& walk, const Place (&place)[PIXELS]) {
    UNROLL
    for (int p = 0; p < PIXELS; p++) at[p].load(source, place[p].in(walk.row[ROW]));
  }
};

// The gradients from number K on that are as large as the map.
template <int K>
struct Summands {
  Operand<FIRST_GRADIENT + K> here;
  Summands<K + 1> others;

  __device__ __forceinline__ void load(const void* const (&gradient)[4], const Walk& walk, const Place (&place)[PIXELS]) {
    here.load(gradient[K], walk, place);
    others.load(gradient, walk, place);
  }
  // The map is not looked at before all gradients are loaded. Else a compiler loads them one by one when it is done with
  // the map, to save registers, and each load is waited for by itself.
  __device__ __forceinline__ void hold_back(Operand<MAP_STRIDES>& x, unsigned none) const {
    UNROLL
    for (int p = 0; p < PIXELS; p++) x.at[p].wait_for(here.at[p], none);
    others.hold_back(x, none);
  }
  __device__ __forceinline__ float add(float sum, int p, int i) const {
    return others.add(sum + here.at[p].value(i), p, i);
  }
};
template <>
struct Summands<GRADIENTS> {
  __device__ __forceinline__ void load(const void* const (&)[4], const Walk&, const Place (&)[PIXELS]) {}
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

__device__ __forceinline__ void store(void* out, long long at, const float (&v)[VECTOR]) {
  if constexpr (VECTOR == 1)
    StoredElement<OUT>::store(out, at, 0, v[0]);
  else
    PackedValues<OUT, VECTOR>(v, nullptr).store(out, at, VECTOR);
}

// VECTOR channels of the pixels of a thread, the first of which lies in the map.
__device__ __forceinline__ void hand_back(void* out, const void* map, const void* const (&gradient)[4], const Walk& walk,
                                          const Place& first) {
  const auto& extent = walk.row[EXTENTS];
  const int real = extent[REAL] - first.c;
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
      if (inside[p]) store(out, place[p].in(walk.row[OUT_STRIDES]), zero);
    return;
  }
  Operand<MAP_STRIDES> x;
  Channels<element_of(FIRST_GRADIENT)> routed;
  Summands<POOL> summands;
  routed.clear();
  if (POOL && inside[PIXELS - 1]) routed.load(gradient[0], first.window().in(walk.row[FIRST_GRADIENT]));
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
      sum[i] = summands.add(POOL && maximum[i] == p ? routed.value(i) : 0.f, p, i);
      if (x.at[p].value(i) <= 0.f || i >= real) sum[i] = 0.f;
    }
    if (inside[p]) store(out, place[p].in(walk.row[OUT_STRIDES]), sum);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
masked_gradient(void* __restrict__ out, const void* __restrict__ map, const void* __restrict__ a,
                const void* __restrict__ b, const void* __restrict__ c, const void* __restrict__ d, const Walk walk) {
  const auto& extent = walk.row[EXTENTS];
  const void* const gradient[4] = {a, b, c, d};
  const int column = (blockIdx.x * blockDim.y * (POOL ? 1 : PIXELS) + threadIdx.y) * SIDE;
  if (column >= extent[COLUMNS]) return;
  for (int channel = threadIdx.x * VECTOR; channel < extent[STORED]; channel += blockDim.x * VECTOR)
    hand_back(out, map, gradient, walk, {blockIdx.z, static_cast<int>(blockIdx.y) * SIDE, column, channel});
}
