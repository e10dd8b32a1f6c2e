// gemv: out[n,o] = [relu](dequant[o] * sum_k inp[n,k] * weight[o,k] + bias[o]); dequant is 1 where it is NULL
// Layouts:  weight (OUT,K) row-major, inp (N,K), out (N,pitch), K a multiple of 64, elements of their own: 0 F32, 1
//           F16, 2 BF16, 3 F16_PAIR (two planes (2,N,K): hi, lo), 4 U8, 5 S8. bias, dequant, out_scale (OUT) float;
//           out_scale is read for OUTPUT 3, 4, 5; OUTPUT 1, 3 raise maxima[n*maxima_stride].
// Mapping:  SPLIT_K warps share ROWS rows of weights: a lane takes 16 bytes of each, UNROLL_K times 32 lanes side by
//           side, then the next warp's; while a round is summed the loads of the next are under way. Block: 8 warps,
//           8 * ROWS / SPLIT_K outputs of TILE_N images; blockIdx.x counts outputs, blockIdx.y images.
// Tiles:    WEIGHT (1), INPUT (1), OUTPUT (1): elements, 8-bit weights (5) go with 8-bit inputs and only with them;
//           ROWS (4), UNROLL_K (1), SPLIT_K (8), TILE_N (1): SPLIT_K divides 8, UNROLL_K is 1, 2 or 4, TILE_N at most
//           8, 8 * ROWS / SPLIT_K at most 32.
// Shared:   32*ROWS*TILE_N bytes, static; 256 threads.
// Cost:     2*N*OUT*K FLOP; the weights come from memory ceil(N/TILE_N) times, the input from L1.
// Sums:     fp32: a lane adds its products in order, one chain for each of its UNROLL_K pieces; then pieces and lanes
//           by trees, warps in order. 8 bit: int32, exact for K <= 65536. An image's bits do not depend on N.
// Edges:    any N and OUT; outputs OUT..pitch-1 are written as zero.
// Why:      at batch 1 a fully connected layer is one read of its weights: loads that pass L1 and leave L2 first,
//           enough of them under way to cover the latency, the first ones before the previous kernel has ended.
#include "wgmma_tile.cuh"

#ifndef WEIGHT
#define WEIGHT 1
#endif
#ifndef INPUT
#define INPUT 1
#endif
#ifndef OUTPUT
#define OUTPUT 1
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef UNROLL_K
#define UNROLL_K 1
#endif
#ifndef SPLIT_K
#define SPLIT_K 8
#endif
#ifndef TILE_N
#define TILE_N 1
#endif

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int BLOCKS_PER_SM = TILE_N == 1 ? 4 : 2;  // together they keep 64 KB of weights under way
constexpr int OUTPUTS = WARPS / SPLIT_K * ROWS;     // of a block
constexpr bool INTEGER = WEIGHT == S8;
static_assert(INTEGER == (INPUT == U8 || INPUT == S8), "8-bit weights meet 8-bit inputs");
static_assert(INTEGER || WEIGHT == F32 || WEIGHT == F16 || WEIGHT == BF16, "weights are one tensor, signed");
static_assert(WARPS % SPLIT_K == 0, "warps that share rows are in one block");
static_assert(OUTPUTS <= 32 && TILE_N <= WARPS, "one warp finishes the outputs of an image");
static_assert(UNROLL_K == 1 || UNROLL_K == 2 || UNROLL_K == 4, "the pieces are added by a tree");

template <int ELEMENT>
constexpr int BYTES = ELEMENT == F32 ? 4 : (ELEMENT >= U8 ? 1 : 2);

constexpr int PIECE = 16 / BYTES<WEIGHT>;      // weights of a 16-byte load
constexpr int VALUES = INTEGER ? 4 : PIECE;    // registers that hold a piece's inputs
constexpr int STEP = 32 * UNROLL_K * SPLIT_K;  // pieces of a row in a round

template <bool IS_INTEGER>
struct Types {
  typedef float Sum;
  typedef float Value;
};
template <>
struct Types<true> {
  typedef int Sum;
  typedef uint32_t Value;  // four bytes
};
typedef Types<INTEGER>::Sum Sum;
typedef Types<INTEGER>::Value Value;

template <int COUNT>
DEVICE void load_words(uint32_t (&words)[COUNT], const void* source) {
  if constexpr (COUNT == 2) {
    const uint2 v = *static_cast<const uint2*>(source);
    words[0] = v.x;
    words[1] = v.y;
  } else {
    UNROLL
    for (int i = 0; i < COUNT; i += 4) {
      const uint4 v = static_cast<const uint4*>(source)[i / 4];
      words[i] = v.x;
      words[i + 1] = v.y;
      words[i + 2] = v.z;
      words[i + 3] = v.w;
    }
  }
}

template <int ELEMENT, int COUNT, int WORDS>
DEVICE void unpack(float (&values)[COUNT], const uint32_t (&words)[WORDS]) {
  UNROLL
  for (int i = 0; i < COUNT; i++) {
    if constexpr (ELEMENT == F32)
      values[i] = __uint_as_float(words[i]);
    else if constexpr (ELEMENT == BF16)
      values[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000);
    else
      values[i] = i % 2 == 0 ? __low2float(half2_of(words[i / 2])) : __high2float(half2_of(words[i / 2]));
  }
}

// Image n's inputs from k on, as many as a piece of weights meets. Not through the read-only path: the previous kernel
// may still write them when this one starts.
template <int ELEMENT>
DEVICE void load_inputs(float (&values)[PIECE], const char* inp, int n, int N, int K, int k) {
  uint32_t words[PIECE * BYTES<ELEMENT> / 4];
  load_words(words, inp + (static_cast<long long>(n) * K + k) * BYTES<ELEMENT>);
  unpack<ELEMENT>(values, words);
  if constexpr (ELEMENT == F16_PAIR) {
    float low[PIECE];
    load_words(words, inp + (static_cast<long long>(N + n) * K + k) * BYTES<ELEMENT>);
    unpack<ELEMENT>(low, words);
    UNROLL
    for (int i = 0; i < PIECE; i++) values[i] += low[i];
  }
}

template <int ELEMENT>
DEVICE void load_inputs(uint32_t (&values)[4], const char* inp, int n, int N, int K, int k) {
  load_words(values, inp + static_cast<long long>(n) * K + k);
}

template <int ELEMENT>
DEVICE float add_products(float sum, const uint32_t (&weights)[4], const float (&x)[PIECE]) {
  float w[PIECE];
  unpack<WEIGHT>(w, weights);
  UNROLL
  for (int i = 0; i < PIECE; i++) sum = fmaf(w[i], x[i], sum);
  return sum;
}

// "Integer Arithmetic Instructions: dp4a": four products of signed weights with bytes of the input's sign.
template <int ELEMENT>
DEVICE int add_products(int sum, const uint32_t (&weights)[4], const uint32_t (&x)[4]) {
  UNROLL
  for (int i = 0; i < 4; i++) {
    if constexpr (ELEMENT == U8)
      asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights[i]), "r"(x[i]));
    else
      asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights[i]), "r"(x[i]));
  }
  return sum;
}

// A warp's sums: the rows at `row`, every one `pieces` long, of which it takes those of its `split`.
DEVICE void sum_rows(Sum (&sum)[TILE_N][ROWS][UNROLL_K], const uint4* const (&row)[ROWS], int pieces, int split,
                     const char* inp, int n0, int N, int K TIMELINE_PARAMETER) {
  const int lane = threadIdx.x % 32;
  uint4 next[ROWS][UNROLL_K];
  const auto load = [&](int first) {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int u = 0; u < UNROLL_K; u++)
        if (first + 32 * u + lane < pieces) next[r][u] = load16_once(row[r] + first + 32 * u + lane);
    }
  };
  load(split * 32 * UNROLL_K);
  wait_for_previous_kernel();
  TIMED(if (threadIdx.x == 0) STAMP(OPERANDS);)
  for (int first = split * 32 * UNROLL_K; first < pieces; first += STEP) {
    uint4 weights[ROWS][UNROLL_K];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int u = 0; u < UNROLL_K; u++) weights[r][u] = next[r][u];
    }
    load(first + STEP);
    UNROLL
    for (int u = 0; u < UNROLL_K; u++) {
      const int piece = first + 32 * u + lane;
      if (piece >= pieces) break;
      UNROLL
      for (int n = 0; n < TILE_N; n++) {
        Value x[VALUES];
        load_inputs<INPUT>(x, inp, min(n0 + n, N - 1), N, K, piece * PIECE);  // beyond N: the last image, not stored
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const uint4& w = weights[r][u];
          sum[n][r][u] = add_products<INPUT>(sum[n][r][u], {w.x, w.y, w.z, w.w}, x);
        }
      }
    }
  }
}

DEVICE Sum sum_of_warp(const Sum (&sum)[UNROLL_K]) {
  Sum total = sum[0];
  if constexpr (UNROLL_K == 2) total += sum[1];
  if constexpr (UNROLL_K == 4) total = (total + sum[1]) + (sum[2] + sum[3]);
  UNROLL
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
  return total;
}

// Writes image n's value of output o; the bits of what is stored as a magnitude, 0 where maxima are not recorded.
DEVICE unsigned store_value(void* out, float value, float scale, int n, int N, int pitch, int o) {
  const long long at = static_cast<long long>(n) * pitch + o;
  if constexpr (OUTPUT == F32) {
    static_cast<float*>(out)[at] = value;
  } else if constexpr (OUTPUT == BF16) {
    static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
  } else if constexpr (OUTPUT == F16 || OUTPUT == F16_PAIR) {
    const float scaled = OUTPUT == F16 ? value : value * scale;
    const __half hi = __float2half_rn(scaled);
    static_cast<__half*>(out)[at] = hi;
    if constexpr (OUTPUT == F16_PAIR)
      static_cast<__half*>(out)[static_cast<long long>(N) * pitch + at] = __float2half_rn(scaled - __half2float(hi));
    return __float_as_uint(fabsf(__half2float(hi)));
  } else {
    const int lowest = OUTPUT == U8 ? 0 : -128, highest = OUTPUT == U8 ? 255 : 127;
    static_cast<int8_t*>(out)[at] = static_cast<int8_t>(min(max(__float2int_rn(value * scale), lowest), highest));
  }
  return 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) gemv(
    void* out, const void* inp, const uint4* __restrict__ weight, const float* __restrict__ bias,
    const float* __restrict__ dequant, const float* __restrict__ out_scale, unsigned* maxima, int maxima_stride, int N,
    int OUT, int K, int pitch, int apply_relu TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  __shared__ Sum warp_sum[TILE_N][WARPS][ROWS];
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int o0 = blockIdx.x * OUTPUTS, n0 = blockIdx.y * TILE_N, first = o0 + warp / SPLIT_K * ROWS;
  const int pieces = K / PIECE;
  const uint4* row[ROWS];
  UNROLL
  for (int r = 0; r < ROWS; r++) row[r] = weight + static_cast<long long>(min(first + r, OUT - 1)) * pieces;
  Sum sum[TILE_N][ROWS][UNROLL_K] = {};
  sum_rows(sum, row, first < OUT ? pieces : 0, warp % SPLIT_K, static_cast<const char*>(inp), n0, N, K TIMELINE_ARGUMENT);
  UNROLL
  for (int n = 0; n < TILE_N; n++) {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const Sum total = sum_of_warp(sum[n][r]);
      if (lane == 0) warp_sum[n][warp][r] = total;
    }
  }
  __syncthreads();  // the sums of all warps are there
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)

  const int n = n0 + warp, o = o0 + lane;  // warp i finishes image i of the tile
  if (warp >= TILE_N || n >= N) return;
  unsigned magnitude = 0;
  if (lane < OUTPUTS && o < pitch) {
    Sum total = 0;
    UNROLL
    for (int s = 0; s < SPLIT_K; s++) total += warp_sum[warp][lane / ROWS * SPLIT_K + s][lane % ROWS];
    float value = 0.0f;
    if (o < OUT) value = fmaf(static_cast<float>(total), dequant ? dequant[o] : 1.0f, bias[o]);
    if (apply_relu) value = relu(value);
    const bool scaled = OUTPUT >= F16_PAIR && o < OUT;
    magnitude = store_value(out, value, scaled ? out_scale[o] : 1.0f, n, N, pitch, o);
  }
  if constexpr (OUTPUT == F16 || OUTPUT == F16_PAIR) {
    magnitude = __reduce_max_sync(0xffffffffu, magnitude);
    if (lane == 0) atomicMax(maxima + static_cast<long long>(n) * maxima_stride, magnitude);
  }
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
