// gemv: out[o] = [activation](dequant[o] * sum_k inp[k] * weight[o,k] + bias[o]); dequant is 1 where it is NULL
// Layouts:  weight (OUT,K) row-major, inp (K), out (pitch), K a multiple of 64, elements of their own: 0 F32, 1 F16, 2
//           BF16, 3 F16_PAIR (two planes (2,K): hi, lo), 4 U8, 5 S8. bias, dequant, out_scale (OUT) float; out_scale is
//           read for OUTPUT 3, 4, 5; OUTPUT 1, 3 raise maxima[0]. taken: a word, zero before a run and after it.
// Mapping:  a group of 8 warps computes a unit of OUTPUTS rows at a time, 8 * ROWS / SPLIT_K: SPLIT_K warps share ROWS
//           of them, a lane takes 16 bytes of each, UNROLL_K times 32 lanes side by side, then the next warp's: a
//           round. While it is summed the loads of the next are under way, of these rows or of the next unit's. The
//           first two units of a group are fixed by its number, then it takes whichever is the next.
// Tiles:    WEIGHT (1), INPUT (1), OUTPUT (1): elements, 8-bit weights (5) go with 8-bit inputs and only with them;
//           ROWS (4), UNROLL_K (1), SPLIT_K (8): SPLIT_K divides 8, UNROLL_K is 1, 2 or 4, 8 * ROWS / SPLIT_K at most
//           32; GROUPS (1): of a block, 1, or 4: these share the input, copied to shared memory, and a row has at most
//           MAX_ROUNDS rounds.
// Shared:   64*ROWS*GROUPS bytes and more, static; GROUPS 4: the input, dynamic. 256*GROUPS threads.
// Cost:     2*OUT*K FLOP; the weights come from memory once, the input from L2 once a block of four groups; to one
//           group by L1, once a unit.
// Sums:     fp32: a lane adds its products in order, one chain for each of its UNROLL_K pieces; then pieces and lanes
//           by trees, warps in order. 8 bit: int32, exact for K <= 65536. Who computes a row changes no bit.
// Edges:    any OUT; outputs OUT..pitch-1 are written as zero. GROUPS 1: a block for each unit, or fewer; GROUPS 4: a
//           grid in which every block has a unit.
// Why:      at batch 1 a fully connected layer is one read of its weights: loads that pass L1 and leave L2 first,
//           enough of them under way to cover the latency, the first ones before the previous kernel has ended, and
//           without a gap between rows. Multiprocessors get unequal shares of the memory's rate, so who is done takes
//           more.
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
#ifndef GROUPS
#define GROUPS 1
#endif

constexpr int WARPS = 8, GROUP_THREADS = 32 * WARPS, THREADS = GROUPS * GROUP_THREADS;
constexpr int GROUPS_PER_SM = 4;                 // together they keep 64 KB of weights under way
constexpr int OUTPUTS = WARPS / SPLIT_K * ROWS;  // of a unit
constexpr bool STAGED = GROUPS > 1;
constexpr int MAX_ROUNDS = 64;  // barriers for a staged input
constexpr bool INTEGER = WEIGHT == S8;
static_assert(INTEGER == (INPUT == U8 || INPUT == S8), "8-bit weights meet 8-bit inputs");
static_assert(INTEGER || WEIGHT == F32 || WEIGHT == F16 || WEIGHT == BF16, "weights are one tensor, signed");
static_assert(WARPS % SPLIT_K == 0, "warps that share rows are in one group");
static_assert(OUTPUTS <= 32, "one warp finishes the outputs of a unit");
static_assert(UNROLL_K == 1 || UNROLL_K == 2 || UNROLL_K == 4, "the pieces are added by a tree");
static_assert(GROUPS_PER_SM % GROUPS == 0, "blocks fill a multiprocessor");

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
      values[i] = i % 2 == 0 ? low_of(Half2{words[i / 2]}) : high_of(Half2{words[i / 2]});
  }
}

// The inputs from k on, as many as a piece of weights meets. Not through the read-only path: the previous kernel may
// still write them when this one starts.
template <int ELEMENT>
DEVICE void load_inputs(float (&values)[PIECE], const char* inp, int K, int k) {
  uint32_t words[PIECE * BYTES<ELEMENT> / 4];
  load_words(words, inp + k * BYTES<ELEMENT>);
  unpack<ELEMENT>(values, words);
  if constexpr (ELEMENT == F16_PAIR) {
    float low[PIECE];
    load_words(words, inp + (K + k) * BYTES<ELEMENT>);
    unpack<ELEMENT>(low, words);
    UNROLL
    for (int i = 0; i < PIECE; i++) values[i] += low[i];
  }
}

template <int ELEMENT>
DEVICE void load_inputs(uint32_t (&values)[4], const char* inp, int, int k) {
  load_words(values, inp + k);
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

// Where the inputs are read. STAGED: in shared memory, where they come in the order in which they are needed, what the
// pieces of a round meet by one copy, and a barrier for each round.
struct Inputs {
  const char* values;
  uint32_t arrived;
  int seen = 0;  // rounds that are known to be there

  DEVICE void prepare(int rounds) const {
    if (threadIdx.x == 0) {
      for (int round = 0; round < rounds; round++) barrier_init(arrived + 8 * round, 1);
      barrier_init_fence();
    }
    __syncthreads();  // the barriers are initialised
  }

  DEVICE void ask(const char* inp, int rounds, int K) const {
    constexpr int PLANES = INPUT == F16_PAIR ? 2 : 1, ROUND = STEP * PIECE;
    for (int round = 0; round < rounds; round++) {
      const int nbytes = min(ROUND, K - round * ROUND) * BYTES<INPUT>;
      barrier_arrive_expect(arrived + 8 * round, PLANES * nbytes);
      for (int plane = 0; plane < PLANES; plane++) {
        const int at = (plane * K + round * ROUND) * BYTES<INPUT>;
        load_bytes(shared_address(values) + at, inp + at, nbytes, arrived + 8 * round);
      }
    }
  }

  DEVICE void wait_for(int round) {
    if (round < seen) return;
    while (!barrier_try_wait(arrived + 8 * round, 0)) {  // it comes: this block has asked for it
    }
    seen = round + 1;
  }
};

// The weights that a warp sums in a unit: ROWS rows, or as many as there are.
struct Rows {
  const uint4* first;
  int count;  // of the layer from there on: 0 or less beyond its end
};

struct Layer {
  const uint4* weight;
  int OUT, pieces;

  DEVICE Rows rows(int unit) const {
    const int row = unit * OUTPUTS + threadIdx.x / 32 % WARPS / SPLIT_K * ROWS;
    return {weight + static_cast<long long>(row) * pieces, OUT - row};
  }
};

typedef uint4 Loaded[ROWS][UNROLL_K];

DEVICE void load(Loaded& loaded, const Layer& layer, const Rows& rows, int piece) {
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int u = 0; u < UNROLL_K; u++)
      if (piece + 32 * u < layer.pieces && r < rows.count)
        loaded[r][u] = load16_once(rows.first + static_cast<long long>(r) * layer.pieces + piece + 32 * u);
  }
}

// A warp's sums of `rows`, whose first round has been asked for in `next`; there the first round of `later` is then.
DEVICE void sum_rows(Sum (&sum)[ROWS][UNROLL_K], Loaded& next, const Layer& layer, const Rows& rows, const Rows& later,
                     Inputs& inputs, int K) {
  const int lane = threadIdx.x % 32, warps_first = threadIdx.x / 32 % SPLIT_K * 32 * UNROLL_K;
  for (int round = 0, first = warps_first; first < layer.pieces; round++, first += STEP) {
    Loaded weights;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int u = 0; u < UNROLL_K; u++) weights[r][u] = next[r][u];
    }
    const bool last = first + STEP >= layer.pieces;
    const Rows asked{last ? later.first : rows.first, last ? later.count : rows.count};
    load(next, layer, asked, (last ? warps_first : first + STEP) + lane);
    if constexpr (STAGED) inputs.wait_for(round);
    UNROLL
    for (int u = 0; u < UNROLL_K; u++) {
      const int piece = first + 32 * u + lane;
      if (piece >= layer.pieces) break;
      Value x[VALUES];
      load_inputs<INPUT>(x, inputs.values, K, piece * PIECE);
      UNROLL
      for (int r = 0; r < ROWS; r++) {
        const uint4& w = weights[r][u];
        sum[r][u] = add_products<INPUT>(sum[r][u], {w.x, w.y, w.z, w.w}, x);
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

// Of output `output` of a unit: the sums of the warps that share its row.
DEVICE Sum sum_of_warps(const Sum (&sums)[WARPS][ROWS], int output) {
  Sum total = 0;
  UNROLL
  for (int s = 0; s < SPLIT_K; s++) total += sums[output / ROWS * SPLIT_K + s][output % ROWS];
  return total;
}

// Writes the value of output o; the bits of what is stored as a magnitude, 0 where maxima are not recorded.
DEVICE unsigned store_value(void* out, float value, float scale, int pitch, int o) {
  if constexpr (OUTPUT == F32) {
    static_cast<float*>(out)[o] = value;
  } else if constexpr (OUTPUT == BF16) {
    static_cast<uint16_t*>(out)[o] = bfloat_bits(value);
  } else if constexpr (OUTPUT == F16 || OUTPUT == F16_PAIR) {
    const float scaled = OUTPUT == F16 ? value : value * scale;
    const uint16_t hi = half_bits(scaled);
    static_cast<uint16_t*>(out)[o] = hi;
    if constexpr (OUTPUT == F16_PAIR) static_cast<uint16_t*>(out)[pitch + o] = half_bits(scaled - float_of_half(hi));
    return __float_as_uint(fabsf(float_of_half(hi)));
  } else {
    const int lowest = OUTPUT == U8 ? 0 : -128, highest = OUTPUT == U8 ? 255 : 127;
    static_cast<int8_t*>(out)[o] = static_cast<int8_t>(min(max(__float2int_rn(value * scale), lowest), highest));
  }
  return 0;
}

// What a unit's sums are finished with and where they go.
struct Finished {
  void* out;
  const float *bias, *dequant, *out_scale;
  int OUT, pitch;
  Activation activation;

  DEVICE unsigned store(Sum total, int o) const {
    float value = 0.0f;
    if (o < OUT) value = fmaf(static_cast<float>(total), dequant ? dequant[o] : 1.0f, bias[o]);
    value = activation(value);
    const bool scaled = OUTPUT >= F16_PAIR && o < OUT;
    return store_value(out, value, scaled ? out_scale[o] : 1.0f, pitch, o);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_PER_SM / GROUPS)
    gemv(void* out, const char* inp, const uint4* __restrict__ weight, const float* __restrict__ bias,
         const float* __restrict__ dequant, const float* __restrict__ out_scale, unsigned* taken, unsigned* maxima,
         int OUT, int K, int pitch, ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  __shared__ Sum sums[2][GROUPS][WARPS][ROWS];  // of two units in turn, as `claims`: one barrier for each is enough
  __shared__ int claims[2][GROUPS];
  __shared__ uint64_t arrived[STAGED ? MAX_ROUNDS : 1];
  DYNAMIC_SHARED(char, staged);
  let_next_kernel_start();
  const int group = GROUPS == 1 ? 0 : threadIdx.x / GROUP_THREADS;
  const int warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
  const bool speaker = threadIdx.x % GROUP_THREADS == 0;
  const int units = (pitch + OUTPUTS - 1) / OUTPUTS, groups = gridDim.x * GROUPS;
  const Layer layer{weight, OUT, K / PIECE};
  int unit = blockIdx.x * GROUPS + group, following = unit + groups;
  Loaded next;
  load(next, layer, layer.rows(unit), warp % SPLIT_K * 32 * UNROLL_K + lane);
  Inputs inputs{STAGED ? staged : inp, shared_address(arrived)};
  const int rounds = (layer.pieces + STEP - 1) / STEP;
  if constexpr (STAGED) inputs.prepare(rounds);
  wait_for_previous_kernel();
  TIMED(if (threadIdx.x == 0) STAMP(OPERANDS);)
  if (STAGED && threadIdx.x == 0) inputs.ask(inp, rounds, K);
  const Finished finished{out, bias, dequant, out_scale, OUT, pitch, ACTIVATION(activation)};
  unsigned magnitude = 0;
  for (int turn = 0; unit < units; turn ^= 1) {
    unsigned claim = 0;  // of the units that are not fixed; with the last claim of all groups the word is 0 again
    if (speaker && following < units && 2 * groups < units) claim = atomicInc(taken, units - groups - 1);
    Sum sum[ROWS][UNROLL_K] = {};
    sum_rows(sum, next, layer, layer.rows(unit), layer.rows(following), inputs, K);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const Sum total = sum_of_warp(sum[r]);
      if (lane == 0) sums[turn][group][warp][r] = total;
    }
    if (speaker) claims[turn][group] = 2 * groups + claim;
    named_barrier(1 + group, GROUP_THREADS);  // the sums of all warps are there, and the claim
    const int o = unit * OUTPUTS + lane;
    if (warp == 0 && lane < OUTPUTS && o < pitch)
      magnitude = max(magnitude, finished.store(sum_of_warps(sums[turn][group], lane), o));
    unit = following;
    following = claims[turn][group];
  }
  TIMED(__syncthreads(); if (threadIdx.x == 0) STAMP(SUMS_READY);)  // of the block's last group
  if constexpr (OUTPUT == F16 || OUTPUT == F16_PAIR) {
    magnitude = __reduce_max_sync(0xffffffffu, magnitude);
    if (lane == 0 && warp == 0) atomicMax(maxima, magnitude);
  }
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
