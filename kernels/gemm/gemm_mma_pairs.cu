// gemm_mma_pairs: out[n,o] = stored([activation](dequant[o] * (sum over k of inp[n,k] * row_scale[o] * weight[o,k]) +
//           bias[o])), inp in pairs of float16; gemm_mma_pairs sums parts of k, gemm_mma_pairs_finish adds them and
//           does the rest
// Layouts:  inp (2,N,KP) float16, high halves before low ones; weight (OUT,KP) float, KP a multiple of 32; row_scale
//           (OUT) float, powers of two; partial (parts,N,OUTP) float, OUTP = OUT rounded up to 64; dequant, bias,
//           out_scale (OUTP) float; out (N,pitch) float or (2,N,pitch) float16; maxima: an int (bits of a float) per
//           image, maxima_stride apart.
// Mapping:  as gemm_mma. A stage holds 32 of k: of weights 128 bytes, of inputs 64 bytes of high halves, then of low.
//           The weights become three float16 in registers, which is all of a float32; five products.
// Tiles:    TILE_OUT (64), TILE_N (8), WARP_OUT (32): 32 or 64, WARP_N (8): a multiple of 8; STAGES (4), MIN_BLOCKS on
//           a multiprocessor (4); OUT_ELEMENT (3): pairs or 0 float32.
// Shared:   STAGES*(TILE_OUT+TILE_N)*128 bytes, dynamic; 32*(TILE_OUT/WARP_OUT)*(TILE_N/WARP_N) threads, 256 in
//           gemm_mma_pairs_finish.
// Cost:     10*N*OUT*K FLOP; weights are read ceil(N/TILE_N) times, inputs ceil(OUT/TILE_OUT) times; 8*parts*N*OUT
//           bytes of partial sums, which stay in the L2 cache.
// Sums:     a part of k as PairWarpProduct has it (mma_pairs.cuh), parts are added in order: the same bits for every
//           tile, batch and position, as long as part_nbytes is a function of K.
// Edges:    any N, OUT; outputs OUT..pitch-1 of out are stored as zero. out_scale is read and maxima are written for
//           OUT_ELEMENT 3: else any pointer will do.
// Why:      gemm_splitk, which computes images that are out of range, reads the same float32 weights: two copies of a
//           VGG's fully connected layers would be a gigabyte.
#include "early_start.cuh"
#include "mma_pairs.cuh"

#ifndef TILE_OUT
#define TILE_OUT 64
#endif
#ifndef TILE_N
#define TILE_N 8
#endif
#ifndef WARP_OUT
#define WARP_OUT 32
#endif
#ifndef WARP_N
#define WARP_N 8
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 4
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT 3
#endif

constexpr int K_NBYTES = 128;              // of a row of weights, and of both halves of a row of inputs, in a stage
constexpr int HALF_NBYTES = K_NBYTES / 2;  // of the high halves, and of the low ones
constexpr int WARPS_OUT = TILE_OUT / WARP_OUT;
constexpr int THREADS = 32 * WARPS_OUT * (TILE_N / WARP_N);
constexpr int FINISH_THREADS = 256;
constexpr int MT = WARP_OUT / 16;  // products of a warp across its outputs
constexpr int NT = WARP_N / 8;     // and across its images
constexpr int OUTPUTS = 2 * MT;    // neighbouring outputs of a thread
constexpr int WEIGHT_NBYTES = TILE_OUT * K_NBYTES;
constexpr int STAGE_NBYTES = WEIGHT_NBYTES + TILE_N * K_NBYTES;

static_assert(WARP_OUT == 32 || WARP_OUT == 64, "a thread stores 4 or 8 neighbouring sums");
static_assert(TILE_OUT % WARP_OUT == 0 && TILE_N % WARP_N == 0, "warps must cover the tile");

// What one thread fetches of the inputs: 16 bytes of one half of LOADS images.
struct InputFetcher {
  static constexpr int PIECES = K_NBYTES / 16, ROWS_PER_LOAD = THREADS / PIECES;
  static constexpr int LOADS = (TILE_N + ROWS_PER_LOAD - 1) / ROWS_PER_LOAD;
  static_assert(ROWS_PER_LOAD % 8 == 0, "the pieces of all loads of a thread are exchanged alike");

  const char* source;
  int pitch, rows, k, k_nbytes;  // bytes of one half

  // From byte k0 up to byte k_end of a row of weights.
  __device__ __forceinline__ InputFetcher(const void* inp, int n0, int N, int k0, int k_end, int KP) {
    const int first = n0 + threadIdx.x / PIECES, half = threadIdx.x % PIECES / 4;
    pitch = 2 * KP;
    rows = N - first;
    k = k0 / 2 + threadIdx.x % 4 * 16;
    k_nbytes = k_end / 2;
    source = static_cast<const char*>(inp) + (static_cast<long long>(half) * N + first) * pitch + k;
  }

  __device__ __forceinline__ void fetch(char* tile) {
    char* target = tile + tile_offset<K_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    UNROLL
    for (int l = 0; l < LOADS; l++) {
      if (TILE_N % ROWS_PER_LOAD != 0 && threadIdx.x / PIECES + l * ROWS_PER_LOAD >= TILE_N) break;
      copy16_async(target + l * ROWS_PER_LOAD * K_NBYTES, source + static_cast<long long>(l) * ROWS_PER_LOAD * pitch,
                   k < k_nbytes && l * ROWS_PER_LOAD < rows);
    }
    source += HALF_NBYTES;
    k += HALF_NBYTES;
  }
};

struct Fetcher {
  RowFetcher<TILE_OUT, K_NBYTES, THREADS, MT> weights;
  InputFetcher inputs;

  __device__ __forceinline__ void fetch(char* stage) {
    weights.fetch(stage);
    inputs.fetch(stage + WEIGHT_NBYTES);
  }
};

// Which of the eight rows of weights that the lanes of a quarter of a product share is this lane's: those that read
// together meet different banks.
__device__ __forceinline__ int row_of_lane() { return threadIdx.x % 32 / 4 % 4 * 2 + threadIdx.x % 32 / 16; }

struct Product : PairWarpProduct<MT, NT, K_NBYTES> {
  float scale[MT][2];  // of the thread's rows of weights

  // Weights and inputs of a stage, from the warp's first row of each.
  __device__ __forceinline__ void add_stage(const char* weights, const char* inputs) {
    const int lane = threadIdx.x % 32;
    const int first_a = tile_offset<K_NBYTES>(row_of_lane(), lane % 4 / 2) + lane % 2 * 8;
    const int first_b = tile_offset<K_NBYTES>(lane % 8, lane / 16 * 4 + lane / 8 % 2);
    UNROLL
    for (int step = 0; step < HALF_NBYTES / PRODUCT_NBYTES; step++) {
      unsigned a[3][MT][4], b_high[NT][2], b_low[NT][2];
      UNROLL
      for (int j = 0; j < NT; j++) {
        unsigned both[4];
        load_matrices(both, inputs + (first_b ^ step * PRODUCT_NBYTES) + j * 8 * K_NBYTES);
        UNROLL
        for (int e = 0; e < 2; e++) {
          b_high[j][e] = both[e];
          b_low[j][e] = both[2 + e];
        }
      }
      UNROLL
      for (int i = 0; i < MT; i++) {
        UNROLL
        for (int e = 0; e < 4; e++) {  // rows r and r + 8, then the same of the later eight of k
          const char* place = weights + (first_a ^ (step * 64 + e / 2 * 32)) + (i * 16 + e % 2 * 8) * K_NBYTES;
          const float2 two = *reinterpret_cast<const float2*>(place);
          float first = two.x * scale[i][e % 2], second = two.y * scale[i][e % 2];
          UNROLL
          for (int p = 0; p < 3; p++) a[p][i][e] = take2_f16(first, second);
        }
      }
      float part[MT][NT][4] = {};
      add_products<Fp16, MT, NT>(part, a[1], b_low);
      add_products<Fp16, MT, NT>(part, a[2], b_high);
      add_products<Fp16, MT, NT>(part, a[1], b_high);
      add_products<Fp16, MT, NT>(part, a[0], b_low);
      add_products<Fp16, MT, NT>(part, a[0], b_high);
      add_to_sums(part);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_mma_pairs(float* __restrict__ partial, const void* __restrict__ inp, const void* __restrict__ weight,
               const float* __restrict__ row_scale, int N, int OUT, int KP, int part_nbytes) {
  DYNAMIC_SHARED(char, shared);
  const int OUTP = (OUT + 63) / 64 * 64, image_tiles = (N + TILE_N - 1) / TILE_N;
  const int o0 = blockIdx.x / image_tiles * TILE_OUT, n0 = blockIdx.x % image_tiles * TILE_N;
  const int warp_o = threadIdx.x / 32 % WARPS_OUT * WARP_OUT, warp_n = threadIdx.x / 32 / WARPS_OUT * WARP_N;
  const int pitch = 4 * KP, k0 = blockIdx.y * part_nbytes, k_end = min(pitch, k0 + part_nbytes);
  const int o = o0 + warp_o + row_of_lane() * OUTPUTS;

  Fetcher fetcher{{weight, o0, OUT, k0, k_end, pitch}, {inp, n0, N, k0, k_end, KP}};
  Product product;
  UNROLL
  for (int v = 0; v < OUTPUTS; v++) product.scale[v / 2][v % 2] = o + v < OUT ? row_scale[o + v] : 0.0f;
  wait_for_previous_kernel();
  for_each_stage<STAGES, STAGE_NBYTES>(shared, (k_end - k0 + K_NBYTES - 1) / K_NBYTES, fetcher, [&](const char* stage) {
    product.add_stage(stage + warp_o * K_NBYTES, stage + WEIGHT_NBYTES + warp_n * K_NBYTES);
  });
  product.finish();

  UNROLL
  for (int column = 0; column < 2 * NT; column++) {
    const int n = n0 + warp_n + column / 2 * 8 + threadIdx.x % 4 * 2 + column % 2;
    if (n >= N || o >= OUTP) continue;
    float* target = partial + (static_cast<long long>(blockIdx.y) * N + n) * OUTP + o;
    UNROLL
    for (int v = 0; v < OUTPUTS; v += 4) {
      float value[4];
      UNROLL
      for (int i = 0; i < 4; i++) value[i] = product.sum[(v + i) / 2][column / 2][i % 2 * 2 + column % 2];
      store4(target + v, pack4(value));
    }
  }
}

extern "C" __global__ void __launch_bounds__(FINISH_THREADS) gemm_mma_pairs_finish(
    void* __restrict__ out, int* __restrict__ maxima, const float* partial,  // read behind the wait
    const float* __restrict__ dequant, const float* __restrict__ bias, const float* __restrict__ out_scale, int N,
    int OUT, int pitch, int parts, ACTIVATION_PARAMETER(activation), int maxima_stride) {
  const int OUTP = (OUT + 63) / 64 * 64;
  const int blocks_per_image = (pitch / 4 + FINISH_THREADS - 1) / FINISH_THREADS;
  const int n = blockIdx.x / blocks_per_image;
  const int o = (blockIdx.x % blocks_per_image * FINISH_THREADS + threadIdx.x) * 4;
  int magnitude = 0;
  wait_for_previous_kernel();
  if (o < pitch) {
    float sum[4] = {}, b[4], d[4], scale[4], value[4];
    for (int part = 0; part < parts; part++) {
      float more[4];
      unpack4(more, load4(partial + (static_cast<long long>(part) * N + n) * OUTP + o));
      UNROLL
      for (int v = 0; v < 4; v++) sum[v] += more[v];
    }
    unpack4(b, load4(bias + o));
    unpack4(d, load4(dequant + o));
    unpack4(scale, load4(has_scale(OUT_ELEMENT) ? out_scale + o : bias));
    UNROLL
    for (int v = 0; v < 4; v++) {
      value[v] = finish_scaled(sum[v], d[v], b[v], o + v < OUT, ACTIVATION(activation));
      if (has_scale(OUT_ELEMENT)) magnitude = max(magnitude, magnitude_bits(value[v] * scale[v]));
    }
    const long long index = static_cast<long long>(n) * pitch + o;
    char* const target = static_cast<char*>(out) + index * element_nbytes(OUT_ELEMENT);
    PackedValues<OUT_ELEMENT, 4>(value, scale).store_planes(target, 4, 2ll * N * pitch);
  }
  if (has_magnitudes(OUT_ELEMENT)) record_f16_magnitude(maxima + static_cast<long long>(n) * maxima_stride, magnitude);
}
