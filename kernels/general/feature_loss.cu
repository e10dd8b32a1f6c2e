// feature_loss_f32: out[n,b] = scale * the sum of (feature - target)^2, or of |feature - target|, over the elements
//           of block b of image n; and, if wanted, the gradient of that: cotangent = slope * (feature - target), or
//           slope * sign(feature - target)
//           unit_loss_f32: the same of channels[c] * (u - v)^2, u and v the pixel's channels of feature and target,
//           divided by sqrt(1e-8 + the sum of their squares)
//           With LARGEST largest[n] is raised to the bits of the largest magnitude of the cotangent; NaN is the largest.
// Layouts:  feature (N,P,pitch) of FEATURE, target (N,P,target_pitch) of TARGET, cotangent (N,P,cotangent_pitch), C at
//           most each pitch; out (N,blocks), channels (C). Of pairs, all of hi before all of lo, feature_scale and target_scale
//           have a power of two for each stored channel; else they are not read.
// Mapping:  feature_loss: a block of 256 threads has 8192 elements of an image; a thread 8 times 4 neighbouring ones,
//           where C is a multiple of 4, else 32 single ones: a warp reads consecutive bytes. unit_loss: `lanes` have a
//           pixel, 16 channels a lane in registers, two times 8 neighbours where C is a multiple of 8; more than 32
//           lanes hold come in chunks. A block has 2 pixels for each group of lanes.
// Tiles:    FEATURE (0), TARGET (0): 0 float32, 1 float16, 2 bfloat16, 3 pair of float16; LARGEST (0) 0, 1.
// Shared:   32 bytes; 256 threads.
// Cost:     reads feature and target once (unit_loss more than 512 channels three times, from the caches after the
//           first), writes the cotangent once: loss and gradient are one pass.
// Sums:     each thread in order, lanes by a butterfly, warps in order, then blocks in order by row_sum: the same bits
//           in every run and on every device, whatever the batch is. No atomics.
// Edges:    any P, C, N. The cotangent's padding channels become zero. A difference of zero has no slope, NaN stays NaN.
//           A pixel whose channels are all zero has the unit vector 0, as 1e-8 stands under the root.
// Why:      the differences are needed for the loss and for its gradient: a second kernel would read both maps again.
#include "block_reduce.cuh"
#include "stored.cuh"

#ifndef FEATURE
#define FEATURE 0
#endif
#ifndef TARGET
#define TARGET 0
#endif
#ifndef LARGEST
#define LARGEST 0
#endif

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int CHUNK = 8192;  // elements of a block of feature_loss
constexpr int UNIT_BLOCKS = FEATURE == 3 && TARGET == 3 ? 2 : 3;  // on a multiprocessor: caps the registers
constexpr int PIXEL_ROUNDS = 2;  // of unit_loss, THREADS / lanes pixels each
constexpr float EPSILON = 1e-8f;

__device__ __forceinline__ float sign_of(float v) { return v > 0.f ? 1.f : v < 0.f ? -1.f : v; }

// Adds the loss of one element to `sum`; gives what the cotangent is, but for the slope.
template <bool ABSOLUTE>
__device__ __forceinline__ float differ(float feature, float target, float& sum) {
  const float d = feature - target;
  if (ABSOLUTE) {
    sum += fabsf(d);
    return sign_of(d);
  }
  sum = fmaf(d, d, sum);
  return d;
}

// WIDTH neighbouring channels of a pixel: 8 or 4, which begin at a multiple of 4, or 1.
template <int WIDTH>
__device__ __forceinline__ void load_channels(float* values, const float* source) {
  if constexpr (WIDTH == 1) {
    *values = *source;
  } else {
    UNROLL
    for (int i = 0; i < WIDTH; i += 4) unpack4(values + i, load4(source + i));
  }
}

template <int WIDTH>
__device__ __forceinline__ void store_channels(float* target, const float* values) {
  if constexpr (WIDTH == 1) {
    *target = *values;
  } else {
    UNROLL
    for (int i = 0; i < WIDTH; i += 4) store4(target + i, pack4(values + i));
  }
}

// The same of a map of ELEMENT, the feature or the target, from element `at` on.
template <int ELEMENT, int WIDTH>
__device__ __forceinline__ void load_stored(float* values, const void* map, long long at) {
  if constexpr (WIDTH == 1)
    *values = StoredElement<ELEMENT>::load(map, at, 0);
  else if constexpr (WIDTH == 4)
    load4_stored<ELEMENT>(values, map, at);
  else
    load8_stored<ELEMENT>(values, map, at);
}

// The feature or the target, a map of ELEMENT as it is stored.
template <int ELEMENT>
struct Map {
  const void* values;
  const float* scale;  // of pairs
  long long plane;     // from hi to lo, in elements

  // WIDTH neighbouring channels, from `c` on, of the pixel that begins at element `at`.
  template <int WIDTH>
  __device__ __forceinline__ void load(float* v, long long at, int c) const {
    load_stored<ELEMENT == F16_PAIR ? F16 : ELEMENT, WIDTH>(v, values, at + c);
    if constexpr (ELEMENT == F16_PAIR) {
      float low[WIDTH], by[WIDTH];
      load_stored<F16, WIDTH>(low, values, plane + at + c);
      load_channels<WIDTH>(by, scale + c);
      UNROLL
      for (int i = 0; i < WIDTH; i++) v[i] = (v[i] + low[i]) * inverse_of_power(by[i]);
    }
  }
};
typedef Map<FEATURE> Feature;
typedef Map<TARGET> Target;

// With LARGEST raises `most` to the largest of these magnitudes.
template <int LENGTH>
__device__ __forceinline__ void note_largest(float& most, const float (&values)[LENGTH]) {
  UNROLL
  for (int i = 0; LARGEST && i < LENGTH; i++) most = max_nan(most, fabsf(values[i]));
}

// For a whole block: raises the word of its image to the bits of what its threads have noted.
__device__ __forceinline__ void store_largest(unsigned* words, float most, float* scratch) {
  if constexpr (LARGEST) {
    most = block_reduce<true, WARPS>(most, scratch);
    if (threadIdx.x == 0) atomicMax(words + blockIdx.y, __float_as_uint(most));
  }
}

template <bool ABSOLUTE, int WIDTH>
struct Differences {};

// first_at, target_first: where the image begins in `feature` and `target`.
template <bool ABSOLUTE, int WIDTH>
__device__ __forceinline__ float chunk_loss(Differences<ABSOLUTE, WIDTH>, float* cotangent, const Feature& feature,
                                            long long first_at, const Target& target, long long target_first,
                                            int pixels, int C, int pitch, int target_pitch, int cotangent_pitch,
                                            float slope, bool wants_cotangent, float& most) {
  float sums[WIDTH] = {};
  const int vectors = C / WIDTH, count = pixels * vectors;
  const bool has_scales = FEATURE == F16_PAIR || TARGET == F16_PAIR;
  const bool is_flat = !has_scales && pitch == C && target_pitch == C && cotangent_pitch == C;  // then all is one row
  const int first = static_cast<int>(blockIdx.x) * (CHUNK / WIDTH);
  for (int i = threadIdx.x; i < CHUNK / WIDTH && first + i < count; i += THREADS) {
    const int vector = first + i;
    const int pixel = is_flat ? 0 : vector / vectors, c = (vector - pixel * vectors) * WIDTH;
    const long long at = static_cast<long long>(pixel) * cotangent_pitch + c;
    float x[WIDTH], t[WIDTH], d[WIDTH];
    feature.load<WIDTH>(x, first_at + static_cast<long long>(pixel) * pitch, c);
    target.load<WIDTH>(t, target_first + static_cast<long long>(pixel) * target_pitch, c);
    UNROLL
    for (int v = 0; v < WIDTH; v++) d[v] = slope * differ<ABSOLUTE>(x[v], t[v], sums[v]);
    if (!wants_cotangent) continue;
    store_channels<WIDTH>(cotangent + at, d);
    note_largest(most, d);
    if (cotangent_pitch != C && c + WIDTH == C)
      for (int k = WIDTH; c + k < cotangent_pitch; k++) cotangent[at + k] = 0.f;
  }
  float sum = sums[0];
  UNROLL
  for (int v = 1; v < WIDTH; v++) sum += sums[v];
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) feature_loss_f32(
    float* __restrict__ out, float* __restrict__ cotangent, const void* __restrict__ feature,
    const float* __restrict__ feature_scale, const void* __restrict__ target, const float* __restrict__ target_scale,
    unsigned* __restrict__ largest, int pixels, int C, int pitch, int target_pitch, int cotangent_pitch, float scale,
    float slope, int absolute, int wants_cotangent GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ float scratch[WARPS];
  const long long n = blockIdx.y, at = n * pixels * pitch, goal_at = n * pixels * target_pitch;
  const long long all_pixels = static_cast<long long>(gridDim.y) * pixels;
  const Feature map = {feature, feature_scale, all_pixels * pitch};
  const Target goal = {target, target_scale, all_pixels * target_pitch};
  cotangent += n * pixels * cotangent_pitch;
  const bool wants = wants_cotangent != 0;
  float sum, most = 0.f;
  const auto of_chunk = [&](auto differences) {
    return chunk_loss(differences, cotangent, map, at, goal, goal_at, pixels, C, pitch, target_pitch, cotangent_pitch,
                      slope, wants, most);
  };
  if (C % 4 == 0)
    sum = absolute ? of_chunk(Differences<true, 4>()) : of_chunk(Differences<false, 4>());
  else
    sum = absolute ? of_chunk(Differences<true, 1>()) : of_chunk(Differences<false, 1>());
  store_largest(largest, most, scratch);
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) out[n * gridDim.x + blockIdx.x] = scale * sum;
}

// The sum over the lanes that share a pixel, a power of two of them; everybody gets it.
__device__ __forceinline__ float pixel_sum(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// VALUES channels of a pixel in one lane: of chunk `chunk`, WIDTH neighbours at a time, the lanes side by side. Those
// behind `end` are zero and stay out.
template <int WIDTH>
struct Lane {
  static constexpr int VALUES = WIDTH == 8 ? 16 : 4;  // single ones take a register more each, for where they lie
  static constexpr int VECTORS = VALUES / WIDTH;
  const int lane, lanes;
  float x[VALUES], t[VALUES], w[VALUES];

  __device__ __forceinline__ int channel(int chunk, int vector) const {
    return ((chunk * VECTORS + vector) * lanes + lane) * WIDTH;
  }

  // Calls each(first channel, first value) of the vectors that lie before `end`.
  template <class Each>
  __device__ __forceinline__ void walk(int chunk, int end, const Each& each) const {
    UNROLL
    for (int vector = 0; vector < VECTORS; vector++) {
      const int c = channel(chunk, vector);
      if (c < end) each(c, vector * WIDTH);
    }
  }

  __device__ __forceinline__ void load_weights(const float* channels, int chunk, int end) {
    UNROLL
    for (int i = 0; i < VALUES; i++) w[i] = 0.f;
    walk(chunk, end, [&](int c, int i) { load_channels<WIDTH>(w + i, channels + c); });
  }

  __device__ __forceinline__ void load(const Feature& feature, long long at, const Target& target, long long goal,
                                       int chunk, int end) {
    UNROLL
    for (int i = 0; i < VALUES; i++) x[i] = t[i] = 0.f;
    walk(chunk, end, [&](int c, int i) {
      feature.load<WIDTH>(x + i, at, c);
      target.load<WIDTH>(t + i, goal, c);
    });
  }
};

// The loss of a pixel, in this lane's channels, over `scale`; and its gradient. at, goal: where the pixel begins.
template <int WIDTH>
__device__ __forceinline__ float pixel_loss(Lane<WIDTH>& own, float* cotangent, const Feature& feature, long long at,
                                            const Target& target, long long goal, const float* channels, int C,
                                            int cotangent_pitch, float slope, bool wants_cotangent, bool valid,
                                            float& most) {
  constexpr int VALUES = Lane<WIDTH>::VALUES;
  const int chunks = (C + own.lanes * VALUES - 1) / (own.lanes * VALUES), end = valid ? C : 0;
  const bool is_held = chunks == 1;  // in registers, from the first round on
  float squares = 0.f, target_squares = 0.f;
  for (int chunk = 0; chunk < chunks; chunk++) {
    own.load(feature, at, target, goal, chunk, end);
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      squares = fmaf(own.x[i], own.x[i], squares);
      target_squares = fmaf(own.t[i], own.t[i], target_squares);
    }
  }
  const float inverse = 1.f / sqrtf(EPSILON + pixel_sum(squares, own.lanes));
  const float target_inverse = 1.f / sqrtf(EPSILON + pixel_sum(target_squares, own.lanes));
  float loss = 0.f, along = 0.f;  // along: the part of the gradient in the direction of u, which its length undoes
  for (int chunk = 0; chunk < chunks; chunk++) {
    if (!is_held) {
      own.load(feature, at, target, goal, chunk, end);
      own.load_weights(channels, chunk, C);
    }
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      const float u = own.x[i] * inverse, d = u - own.t[i] * target_inverse, weighted = own.w[i] * d;
      loss = fmaf(weighted, d, loss);
      along = fmaf(weighted, u, along);
    }
  }
  if (!wants_cotangent) return loss;
  along = pixel_sum(along, own.lanes);
  const float factor = slope * inverse;
  for (int chunk = 0; chunk < chunks; chunk++) {
    if (!is_held) {
      own.load(feature, at, target, goal, chunk, end);
      own.load_weights(channels, chunk, C);
    }
    float back[VALUES];
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      const float u = own.x[i] * inverse, d = u - own.t[i] * target_inverse;
      back[i] = factor * (own.w[i] * d - along * u);
    }
    note_largest(most, back);
    own.walk(chunk, end, [&](int c, int i) { store_channels<WIDTH>(cotangent + c, back + i); });
  }
  for (int c = C + own.lane; valid && c < cotangent_pitch; c += own.lanes) cotangent[c] = 0.f;
  return loss;
}

template <int WIDTH>
__device__ __forceinline__ float block_loss(float* cotangent, const Feature& feature, const Target& target,
                                            const float* channels, int pixels, int C, int pitch, int target_pitch,
                                            int cotangent_pitch, int lanes, float slope, bool wants_cotangent,
                                            float& most) {
  const int at_once = THREADS / lanes, thread = static_cast<int>(threadIdx.x);
  Lane<WIDTH> own = {thread % lanes, lanes};
  own.load_weights(channels, 0, C);
  float sum = 0.f;
  for (int round = 0; round < PIXEL_ROUNDS; round++) {
    const int pixel = (static_cast<int>(blockIdx.x) * PIXEL_ROUNDS + round) * at_once + thread / lanes;
    const bool valid = pixel < pixels;  // all lanes come to the shuffles
    const long long row = static_cast<long long>(blockIdx.y) * pixels + (valid ? pixel : 0);
    sum += pixel_loss<WIDTH>(own, cotangent + row * cotangent_pitch, feature, row * pitch, target, row * target_pitch,
                             channels, C,
                             cotangent_pitch, slope, wants_cotangent, valid, most);
  }
  return sum;
}

// lanes: of a pixel, a power of two up to 32.
extern "C" __global__ void __launch_bounds__(THREADS, UNIT_BLOCKS) unit_loss_f32(
    float* __restrict__ out, float* __restrict__ cotangent, const void* __restrict__ feature,
    const float* __restrict__ feature_scale, const void* __restrict__ target, const float* __restrict__ target_scale,
    const float* __restrict__ channels, unsigned* __restrict__ largest, int pixels, int C, int pitch, int target_pitch,
    int cotangent_pitch, int lanes, float scale, float slope, int wants_cotangent GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ float scratch[WARPS];
  const long long all_pixels = static_cast<long long>(gridDim.y) * pixels;
  const Feature map = {feature, feature_scale, all_pixels * pitch};
  const Target goal = {target, target_scale, all_pixels * target_pitch};
  const bool wants = wants_cotangent != 0;
  float sum, most = 0.f;
  if (C % 8 == 0)
    sum = block_loss<8>(cotangent, map, goal, channels, pixels, C, pitch, target_pitch, cotangent_pitch, lanes, slope,
                        wants, most);
  else
    sum = block_loss<1>(cotangent, map, goal, channels, pixels, C, pitch, target_pitch, cotangent_pitch, lanes, slope,
                        wants, most);
  store_largest(largest, most, scratch);
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = scale * sum;
}
