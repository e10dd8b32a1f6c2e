// masked_gradient: out[n,h,w,c] = the sum of up to 4 gradients where map[n,h,w,c], what a ReLU has given, is above zero, else
//                  0; with POOL the first is that of the map's 2x2 maxima, which the first maximum of each window gets
// Layouts:  out, map and gradients of any strides, of pairs all of hi before all of lo; walk: {images, H, W, stored and real channels}, then the strides of
//           (n, h, w, c) of out, map and each gradient, in elements, then flags. out of OUT; an operand is of float32
//           where its bit is set in `floats`, else of ELEMENT; bits count map and the gradients. a_factors and so on, of
//           gradients that are pairs: what each image is multiplied by, a power of two. parts (N,blocks).
// Mapping:  grid (blocks, N); one thread per 4 channels of a pixel, with POOL of the 4 pixels of a window, channels
//           fastest: 16 bytes of float32, 8 of others, where the bit of out, map, gradient is set in `vectors`; else
//           element by element.
// Tiles:    ELEMENT (0) 0 float32, 1 float16, 2 bfloat16, 3 pair of float16; OUT (0) 0 float32, 2 bfloat16; POOL (0) 0,
//           1; PARTS (0) 0, 1: parts[n,b] is the largest magnitude that block b writes of image n, NaN if one is.
// Shared:   none, with PARTS 32 bytes; 256 threads.
// Cost:     a comparison and an addition for each gradient and value, 3 comparisons more with POOL; reads and writes
//           everything once.
// Sums:     in the order of the gradients, in float32, rounded once.
// Edges:    any N, H, W, C; channels behind the real ones become zero and are never read. The last row and column of
//           odd maps have no window. NaN is above zero; of several in a window the last is the maximum, as of
//           pool_gradient_f32. Of a map of pairs hi alone says whether a value is above zero.
// Why:      mask, sum and the way through the pool are one pass over the map as the forward run has stored it: by
//           themselves each would read and write it once more, and as float32.
#include "block_reduce.cuh"
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
#ifndef PARTS
#define PARTS 0
#endif

constexpr int THREADS = 256;
constexpr int BLOCKS = POOL || ELEMENT == F16_PAIR ? 4 : 8;  // of a multiprocessor, by their registers
constexpr int GRADIENTS = 4;
constexpr int WIDTH = 4;  // channels of a thread
constexpr int SIDE = POOL ? 2 : 1, PIXELS = SIDE * SIDE;  // of a thread
enum : int { EXTENTS, OUT_STRIDES, MAP_STRIDES, FIRST_GRADIENT, FLAGS = FIRST_GRADIENT + GRADIENTS };  // rows of the walk
enum : int { IMAGES, HEIGHT, COLUMNS, STORED, REAL };  // of EXTENTS
enum : int { COUNT, FLOATS, VECTORS };                 // of FLAGS; COUNT: of the gradients

struct Place {
  long long n;
  int h, w, c;

  __device__ __forceinline__ Place neighbour(int p) const { return {n, h + p / SIDE, w + p % SIDE, c}; }
  __device__ __forceinline__ Place window() const { return {n, h / SIDE, w / SIDE, c}; }
  __device__ __forceinline__ long long in(const int (&stride)[RANK]) const {
    return n * stride[0] + static_cast<long long>(h) * stride[1] + static_cast<long long>(w) * stride[2] +
           static_cast<long long>(c) * stride[3];
  }
};

template <int E>
__device__ __forceinline__ void load_channels(float (&v)[WIDTH], const void* source, long long at, int step, int real,
                                              bool in_vectors) {
  if (in_vectors && real >= WIDTH) return load4_stored<E>(v, source, at);
  UNROLL
  for (int i = 0; i < WIDTH; i++)
    v[i] = i < real ? StoredElement<E>::load(source, at + static_cast<long long>(i) * step, 0) : 0.f;
}

// Operand `row - MAP_STRIDES` at a place: that many of 4 channels as are real, zeros behind. Of pairs, the map's scales
// stay in, which are those of whole channels.
__device__ __forceinline__ void load_operand(float (&v)[WIDTH], const void* source, const float* factors,
                                             const Walk& walk, int row, const Place& place, int real) {
  const auto& stride = walk.row[row];
  const long long at = place.in(stride);
  const bool in_vectors = walk.row[FLAGS][VECTORS] >> (row - OUT_STRIDES) & 1;
  if (ELEMENT == F32 || walk.row[FLAGS][FLOATS] >> (row - MAP_STRIDES) & 1)
    return load_channels<F32>(v, source, at, stride[3], real, in_vectors);
  if constexpr (ELEMENT == F16_PAIR) {
    load_channels<F16>(v, source, at, stride[3], real, in_vectors);
    if (row == MAP_STRIDES && !POOL) return;
    const long long plane = static_cast<long long>(walk.row[EXTENTS][IMAGES]) * stride[0];
    const float inverse = row == MAP_STRIDES ? 1.f : inverse_of_power(factors[place.n]);
    float low[WIDTH];
    load_channels<F16>(low, source, at + plane, stride[3], real, in_vectors);
    UNROLL
    for (int i = 0; i < WIDTH; i++) v[i] = (v[i] + low[i]) * inverse;
  } else {
    load_channels<ELEMENT>(v, source, at, stride[3], real, in_vectors);
  }
}

__device__ __forceinline__ void store_channels(void* out, const Walk& walk, const Place& place, const float (&v)[WIDTH]) {
  const auto& stride = walk.row[OUT_STRIDES];
  const long long at = place.in(stride);
  if (walk.row[FLAGS][VECTORS] & 1) {
    if constexpr (OUT == F32) {
      store4(static_cast<float*>(out) + at, pack4(v));
    } else {
      const uint2 words = make_uint2(bf16_bits(v[0]) | bf16_bits(v[1]) << 16, bf16_bits(v[2]) | bf16_bits(v[3]) << 16);
      *reinterpret_cast<uint2*>(static_cast<unsigned short*>(out) + at) = words;
    }
    return;
  }
  UNROLL
  for (int i = 0; i < WIDTH; i++)
    if (place.c + i < walk.row[EXTENTS][STORED])
      StoredElement<OUT>::store(out, at + static_cast<long long>(i) * stride[3], 0, v[i]);
}

// Of the pixels of a thread, the first of which is `corner`; gives the largest magnitude.
__device__ __forceinline__ float hand_back(void* out, const void* map, const void* const (&gradient)[GRADIENTS],
                                           const float* const (&factors)[GRADIENTS], const Walk& walk,
                                           const Place& corner) {
  const auto& extent = walk.row[EXTENTS];
  const int real = extent[REAL] - corner.c;
  float x[PIXELS][WIDTH], best[WIDTH], routed[WIDTH];
  int first[WIDTH];  // which pixel of the window is the maximum
  UNROLL
  for (int p = 0; p < PIXELS; p++) {
    const Place place = corner.neighbour(p);
    const bool inside = place.h < extent[HEIGHT] && place.w < extent[COLUMNS];
    load_operand(x[p], map, nullptr, walk, MAP_STRIDES, place, inside ? real : 0);
    UNROLL
    for (int v = 0; v < WIDTH; v++)
      if (p == 0 || x[p][v] > best[v] || x[p][v] != x[p][v]) {
        best[v] = x[p][v];
        first[v] = p;
      }
  }
  const bool has_window = corner.h + 1 < extent[HEIGHT] && corner.w + 1 < extent[COLUMNS];
  if (POOL && has_window) load_operand(routed, gradient[0], factors[0], walk, FIRST_GRADIENT, corner.window(), real);
  float most = 0.f;
  UNROLL
  for (int p = 0; p < PIXELS; p++) {
    const Place place = corner.neighbour(p);
    if (place.h >= extent[HEIGHT] || place.w >= extent[COLUMNS]) continue;
    float sum[WIDTH] = {}, g[WIDTH];
    if (POOL && has_window) {
      UNROLL
      for (int v = 0; v < WIDTH; v++) sum[v] = first[v] == p ? routed[v] : 0.f;
    }
    UNROLL
    for (int k = POOL; k < GRADIENTS; k++) {
      if (k >= walk.row[FLAGS][COUNT]) break;
      load_operand(g, gradient[k], factors[k], walk, FIRST_GRADIENT + k, place, real);
      UNROLL
      for (int v = 0; v < WIDTH; v++) sum[v] += g[v];
    }
    UNROLL
    for (int v = 0; v < WIDTH; v++) sum[v] = x[p][v] <= 0.f ? 0.f : sum[v];  // of padding x is 0
    store_channels(out, walk, place, sum);
    UNROLL
    for (int v = 0; v < WIDTH; v++) most = max_nan(most, fabsf(sum[v]));
  }
  return most;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
masked_gradient(void* __restrict__ out, const void* __restrict__ map, const void* __restrict__ a,
                const void* __restrict__ b, const void* __restrict__ c, const void* __restrict__ d,
                const float* __restrict__ a_factors, const float* __restrict__ b_factors,
                const float* __restrict__ c_factors, const float* __restrict__ d_factors, float* __restrict__ parts,
                const Walk walk) {
  const auto& extent = walk.row[EXTENTS];
  const int quads = (extent[STORED] + WIDTH - 1) / WIDTH, across = (extent[COLUMNS] + SIDE - 1) / SIDE;
  const int index = blockIdx.x * THREADS + threadIdx.x, tile = index / quads;
  const Place corner = {blockIdx.y, tile / across * SIDE, tile % across * SIDE, index % quads * WIDTH};
  const void* const gradient[GRADIENTS] = {a, b, c, d};
  const float* const factors[GRADIENTS] = {a_factors, b_factors, c_factors, d_factors};
  float most = 0.f;
  if (corner.h < extent[HEIGHT]) most = hand_back(out, map, gradient, factors, walk, corner);
  if constexpr (PARTS) {
    __shared__ float scratch[THREADS / 32];
    most = block_reduce<true, THREADS / 32>(most, scratch);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = most;
  }
}
