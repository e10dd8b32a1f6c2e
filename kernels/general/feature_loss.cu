// feature_loss_f32: partials[n,b] = scale * the sum of (feature - target)^2, or of |feature - target|, over the elements
//           of block b of image n; and, if wanted, the gradient of that: cotangent = slope * (feature - target), or
//           slope * sign(feature - target)
//           unit_loss_f32: the same of channels[c] * (u - v)^2, u and v the pixel's channels of feature and target,
//           divided by sqrt(1e-8 + the sum of their squares)
//           row_sum_f32: out[n] = the sum of row n of up to 8 operands, in their order
// Layouts:  feature, cotangent (N,P,pitch) float, target (N,P,C) float, C <= pitch; partials (N,blocks), channels (C),
//           operands (N,count), out (N).
// Mapping:  feature_loss: a block of 256 threads has 8192 elements of an image; a thread 8 times 4 neighbouring ones,
//           where C is a multiple of 4, else 32 single ones: a warp reads consecutive bytes. unit_loss: 8 lanes have a
//           pixel, 4 neighbouring channels a lane (or one), a block 32 pixels at a time, 4 times. row_sum: a block an image.
// Tiles:    none.
// Shared:   32 bytes; 256 threads.
// Cost:     reads feature and target once (unit_loss three times, from the caches after the first), writes the cotangent
//           once: loss and gradient are one pass.
// Sums:     each thread in order, lanes by a butterfly, warps in order, then blocks in order by row_sum: the same bits
//           in every run and on every device, whatever the batch is. No atomics.
// Edges:    any P, C, N. The cotangent's padding channels become zero. A difference of zero has no slope, NaN stays NaN.
//           A pixel whose channels are all zero has the unit vector 0, as 1e-8 stands under the root.
// Why:      the differences are needed for the loss and for its gradient: a second kernel would read both maps again.
#include "block_reduce.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int CHUNK = 8192;  // elements of a block of feature_loss
constexpr int PIXEL_LANES = 8;
constexpr int PIXELS = THREADS / PIXEL_LANES;  // at a time
constexpr int PIXEL_ROUNDS = 4;
constexpr int MAX_ROWS = 8;  // operands of row_sum
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

template <bool ABSOLUTE, int WIDTH>
__device__ __forceinline__ float chunk_loss(float* cotangent, const float* feature, const float* target, int pixels,
                                            int C, int pitch, float slope, bool wants_cotangent) {
  float sums[WIDTH] = {};
  const int vectors = C / WIDTH, count = pixels * vectors;
  const int first = static_cast<int>(blockIdx.x) * (CHUNK / WIDTH);
  for (int i = threadIdx.x; i < CHUNK / WIDTH && first + i < count; i += THREADS) {
    const int vector = first + i;
    const int pixel = pitch == C ? 0 : vector / vectors, c = (vector - pixel * vectors) * WIDTH;
    const long long at = static_cast<long long>(pixel) * pitch + c;
    const long long target_at = static_cast<long long>(vector) * WIDTH;
    float x[WIDTH], t[WIDTH], d[WIDTH];
    if (WIDTH == 4) {
      unpack4(x, load4(feature + at));
      unpack4(t, load4(target + target_at));
    } else {
      x[0] = feature[at];
      t[0] = target[target_at];
    }
    UNROLL
    for (int v = 0; v < WIDTH; v++) d[v] = slope * differ<ABSOLUTE>(x[v], t[v], sums[v]);
    if (!wants_cotangent) continue;
    if (WIDTH == 4)
      store4(cotangent + at, pack4(d));
    else
      cotangent[at] = d[0];
    if (pitch != C && c + WIDTH == C)
      for (int k = WIDTH; c + k < pitch; k++) cotangent[at + k] = 0.f;
  }
  float sum = sums[0];
  UNROLL
  for (int v = 1; v < WIDTH; v++) sum += sums[v];
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) feature_loss_f32(
    float* __restrict__ partials, float* __restrict__ cotangent, const float* __restrict__ feature,
    const float* __restrict__ target, int pixels, int C, int pitch, float scale, float slope, int absolute,
    int wants_cotangent) {
  __shared__ float scratch[WARPS];
  const long long n = blockIdx.y;
  feature += n * pixels * pitch;
  cotangent += n * pixels * pitch;
  target += n * pixels * C;
  const bool wants = wants_cotangent != 0;
  float sum;
  if (C % 4 == 0)
    sum = absolute ? chunk_loss<true, 4>(cotangent, feature, target, pixels, C, pitch, slope, wants)
                   : chunk_loss<false, 4>(cotangent, feature, target, pixels, C, pitch, slope, wants);
  else
    sum = absolute ? chunk_loss<true, 1>(cotangent, feature, target, pixels, C, pitch, slope, wants)
                   : chunk_loss<false, 1>(cotangent, feature, target, pixels, C, pitch, slope, wants);
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) partials[n * gridDim.x + blockIdx.x] = scale * sum;
}

// The sum over the lanes that share a pixel; everybody gets it.
__device__ __forceinline__ float pixel_sum(float value) {
  UNROLL
  for (int distance = PIXEL_LANES / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// Up to WIDTH neighbouring channels of a pixel.
template <int WIDTH>
__device__ __forceinline__ void load_channels(float (&values)[WIDTH], const float* source) {
  if (WIDTH == 4)
    unpack4(values, load4(source));
  else
    values[0] = *source;
}

template <int WIDTH>
__device__ __forceinline__ float pixel_loss(float* cotangent, const float* feature, const float* target,
                                            const float* channels, int C, int pitch, float slope, bool wants_cotangent,
                                            bool valid) {
  const int lane = threadIdx.x % PIXEL_LANES, step = PIXEL_LANES * WIDTH;
  const int end = valid ? C : 0;
  float x[WIDTH], t[WIDTH], w[WIDTH];
  float squares = 0.f, target_squares = 0.f;
  for (int c = lane * WIDTH; c < end; c += step) {
    load_channels<WIDTH>(x, feature + c);
    load_channels<WIDTH>(t, target + c);
    UNROLL
    for (int v = 0; v < WIDTH; v++) {
      squares = fmaf(x[v], x[v], squares);
      target_squares = fmaf(t[v], t[v], target_squares);
    }
  }
  const float length = sqrtf(EPSILON + pixel_sum(squares)), target_length = sqrtf(EPSILON + pixel_sum(target_squares));
  float loss = 0.f, along = 0.f;  // along: the part of the gradient in the direction of u, which its length undoes
  for (int c = lane * WIDTH; c < end; c += step) {
    load_channels<WIDTH>(x, feature + c);
    load_channels<WIDTH>(t, target + c);
    load_channels<WIDTH>(w, channels + c);
    UNROLL
    for (int v = 0; v < WIDTH; v++) {
      const float u = x[v] / length, d = u - t[v] / target_length, weighted = w[v] * d;
      loss = fmaf(weighted, d, loss);
      along = fmaf(weighted, u, along);
    }
  }
  along = pixel_sum(along);
  if (!wants_cotangent) return loss;
  for (int c = lane * WIDTH; c < end; c += step) {
    load_channels<WIDTH>(x, feature + c);
    load_channels<WIDTH>(t, target + c);
    load_channels<WIDTH>(w, channels + c);
    UNROLL
    for (int v = 0; v < WIDTH; v++) {
      const float u = x[v] / length, d = u - t[v] / target_length;
      x[v] = slope * (w[v] * d - along * u) / length;
    }
    if (WIDTH == 4)
      store4(cotangent + c, pack4(x));
    else
      cotangent[c] = x[0];
  }
  for (int c = C + lane; valid && c < pitch; c += PIXEL_LANES) cotangent[c] = 0.f;
  return loss;
}

extern "C" __global__ void __launch_bounds__(THREADS) unit_loss_f32(
    float* __restrict__ partials, float* __restrict__ cotangent, const float* __restrict__ feature,
    const float* __restrict__ target, const float* __restrict__ channels, int pixels, int C, int pitch, float scale,
    float slope, int wants_cotangent) {
  __shared__ float scratch[WARPS];
  const long long n = blockIdx.y;
  const bool wants = wants_cotangent != 0;
  float sum = 0.f;
  for (int round = 0; round < PIXEL_ROUNDS; round++) {
    const int pixel = (static_cast<int>(blockIdx.x) * PIXEL_ROUNDS + round) * PIXELS + threadIdx.x / PIXEL_LANES;
    const bool valid = pixel < pixels;  // all lanes come to the shuffles
    const long long at = (n * pixels + (valid ? pixel : 0)) * pitch, target_at = (n * pixels + (valid ? pixel : 0)) * C;
    sum += C % 4 == 0 ? pixel_loss<4>(cotangent + at, feature + at, target + target_at, channels, C, pitch, slope, wants,
                                      valid)
                      : pixel_loss<1>(cotangent + at, feature + at, target + target_at, channels, C, pitch, slope, wants,
                                      valid);
  }
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) partials[n * gridDim.x + blockIdx.x] = scale * sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
row_sum_f32(float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b,
            const float* __restrict__ c, const float* __restrict__ d, const float* __restrict__ e,
            const float* __restrict__ f, const float* __restrict__ g, const float* __restrict__ h, int count_a,
            int count_b, int count_c, int count_d, int count_e, int count_f, int count_g, int count_h) {
  __shared__ float scratch[WARPS];
  const float* const operand[MAX_ROWS] = {a, b, c, d, e, f, g, h};
  const int count[MAX_ROWS] = {count_a, count_b, count_c, count_d, count_e, count_f, count_g, count_h};
  const long long n = blockIdx.x;
  float sum = 0.f;
  UNROLL
  for (int k = 0; k < MAX_ROWS; k++)
    for (int i = threadIdx.x; i < count[k]; i += THREADS) sum += operand[k][n * count[k] + i];
  sum = block_reduce<false, WARPS>(sum, scratch);
  if (threadIdx.x == 0) out[n] = sum;
}
