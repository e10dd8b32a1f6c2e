// gemm_mma: out[n,o] = stored([activation](dequant[o] * (sum over k of inp[n,k] * weight[o,k]) + bias[o])); gemm_mma
//           sums parts of k, gemm_mma_finish adds them and does the rest
// Layouts:  inp (N,KP) of ELEMENT, weight (OUT,KP) of ELEMENT (int8 for U8 and S8), KP * element bytes a multiple of
//           16; partial (parts,N,OUTP) of float or int32, OUTP = OUT rounded up to 64; bias, dequant, out_scale (OUTP)
//           float; out (N,pitch) of OUT_ELEMENT; maxima: an int (bits of a float) per image, maxima_stride apart.
// Mapping:  gemm_mma: block: TILE_OUT outputs x TILE_N images x one part of k (blockIdx.y), blocks with the same
//           weights are neighbours; warp: WARP_OUT x WARP_N through mma.sync (mma.cuh). gemm_mma_finish: thread: 4
//           outputs of an image.
// Tiles:    TILE_OUT (64), TILE_N (8), WARP_OUT (32): 32 or 64, WARP_N (8): 8 or a multiple of 16; K_NBYTES (128): 64
//           or 128 bytes of k in a stage; STAGES (4), MIN_BLOCKS on a multiprocessor (4); ELEMENT (1): 1 float16, 2
//           bfloat16, 4 uint8, 5 int8; OUT_ELEMENT (1): the same or 0 float32.
// Shared:   STAGES*(TILE_OUT+TILE_N)*K_NBYTES bytes, dynamic; 32*(TILE_OUT/WARP_OUT)*(TILE_N/WARP_N) threads, 256 in
//           gemm_mma_finish.
// Cost:     2*N*OUT*K FLOP; weights are read ceil(N/TILE_N) times, inputs ceil(OUT/TILE_OUT) times; 8*parts*N*OUT
//           bytes of partial sums, which stay in the L2 cache.
// Sums:     a part is one chain of products in the order of k, parts are added in order: the same bits for every tile,
//           batch and position, as long as part_nbytes is a function of K.
// Edges:    any N, OUT; outputs OUT..pitch-1 of out are stored as zero. dequant is read for 8-bit ELEMENT alone,
//           out_scale for 8-bit OUT_ELEMENT, maxima written for OUT_ELEMENT 1: else any pointer will do.
// Why:      fully connected layers at batch 2 and up: each weight is read once for up to 128 images.
#include "early_start.cuh"
#include "mma.cuh"

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
#ifndef K_NBYTES
#define K_NBYTES 128
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 4
#endif
#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT 1
#endif

typedef OperandsOf<ELEMENT>::Type Elements;
typedef Elements::Sum Sum;

constexpr int NBYTES = element_nbytes(ELEMENT);
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

typedef WarpProduct<Elements, MT, NT, K_NBYTES> Product;

struct Fetcher {
  RowFetcher<TILE_OUT, K_NBYTES, THREADS, MT> weights;
  RowFetcher<TILE_N, K_NBYTES, THREADS, 0> inputs;

  __device__ __forceinline__ void fetch(char* stage) {
    weights.fetch(stage);
    inputs.fetch(stage + WEIGHT_NBYTES);
  }
};

// Sums as they are, 32 bits each.
__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(int v) { return __int_as_float(v); }

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm_mma(void* __restrict__ partial,
                                                                           const void* __restrict__ inp,
                                                                           const void* __restrict__ weight, int N,
                                                                           int OUT, int KP, int part_nbytes) {
  DYNAMIC_SHARED(char, shared);
  const int OUTP = (OUT + 63) / 64 * 64, image_tiles = (N + TILE_N - 1) / TILE_N;
  const int o0 = blockIdx.x / image_tiles * TILE_OUT, n0 = blockIdx.x % image_tiles * TILE_N;
  const int warp_o = threadIdx.x / 32 % WARPS_OUT * WARP_OUT, warp_n = threadIdx.x / 32 / WARPS_OUT * WARP_N;
  const int pitch = KP * NBYTES, k0 = blockIdx.y * part_nbytes, k_end = min(pitch, k0 + part_nbytes);

  Fetcher fetcher{{weight, o0, OUT, k0, k_end, pitch}, {inp, n0, N, k0, k_end, pitch}};
  Product product;
  wait_for_previous_kernel();
  for_each_stage<STAGES, STAGE_NBYTES>(shared, (k_end - k0 + K_NBYTES - 1) / K_NBYTES, fetcher, [&](const char* stage) {
    product.add(stage + warp_o * K_NBYTES, stage + WEIGHT_NBYTES + warp_n * K_NBYTES);
  });

  const int o = o0 + warp_o + threadIdx.x % 32 / 4 * OUTPUTS;
  UNROLL
  for (int column = 0; column < 2 * NT; column++) {
    const int n = n0 + warp_n + column / 2 * 8 + threadIdx.x % 4 * 2 + column % 2;
    if (n >= N || o >= OUTP) continue;
    float* target = static_cast<float*>(partial) + ((long long)blockIdx.y * N + n) * OUTP + o;
    UNROLL
    for (int v = 0; v < OUTPUTS; v += 4) {
      float value[4];
      UNROLL
      for (int i = 0; i < 4; i++) value[i] = as_float(product.sum[(v + i) / 2][column / 2][i % 2 * 2 + column % 2]);
      store4(target + v, pack4(value));
    }
  }
}

__device__ __forceinline__ void add_sum(float& sum, float bits) { sum += bits; }
__device__ __forceinline__ void add_sum(int& sum, float bits) { sum += __float_as_int(bits); }

extern "C" __global__ void __launch_bounds__(FINISH_THREADS) gemm_mma_finish(
    void* __restrict__ out, int* __restrict__ maxima, const void* partial,  // read behind the wait
    const float* __restrict__ dequant, const float* __restrict__ bias, const float* __restrict__ out_scale, int N,
    int OUT, int pitch, int parts, ACTIVATION_PARAMETER(activation), int maxima_stride) {
  const int OUTP = (OUT + 63) / 64 * 64;
  const int blocks_per_image = (pitch / 4 + FINISH_THREADS - 1) / FINISH_THREADS;
  const int n = blockIdx.x / blocks_per_image;
  const int o = (blockIdx.x % blocks_per_image * FINISH_THREADS + threadIdx.x) * 4;
  int magnitude = 0;
  wait_for_previous_kernel();
  if (o < pitch) {
    Sum sum[4] = {};
    for (int part = 0; part < parts; part++) {
      float bits[4];
      unpack4(bits, load4(static_cast<const float*>(partial) + ((long long)part * N + n) * OUTP + o));
      UNROLL
      for (int v = 0; v < 4; v++) add_sum(sum[v], bits[v]);
    }
    float b[4], d[4], scale[4], value[4];
    unpack4(b, load4(bias + o));
    unpack4(d, load4(NBYTES == 1 ? dequant + o : bias));
    unpack4(scale, load4(element_nbytes(OUT_ELEMENT) == 1 ? out_scale + o : bias));
    UNROLL
    for (int v = 0; v < 4; v++) {
      value[v] = finish(sum[v], d[v], b[v], o + v < OUT, ACTIVATION(activation));
      magnitude = max(magnitude, magnitude_bits(value[v]));
    }
    PackedValues<OUT_ELEMENT, 4>(value, scale).store(out, (long long)n * pitch + o, 4);
  }
  if (OUT_ELEMENT == F16) record_f16_magnitude(maxima + (long long)n * maxima_stride, magnitude);
}
