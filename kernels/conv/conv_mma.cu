// conv_mma: out[n,oh,ow,oc] = stored([pool2x2]([activation](dequant[oc] * (sum over kh, kw, c of inp[n, oh*SH-PT+kh,
//           ow*SW-PL+kw, c] * weight[oc,kh,kw,c]) + bias[oc])))
// Layouts:  inp (N,H,W,CP) of ELEMENT, CP * element bytes a multiple of 16; weight (OC,KH,KW,CP) of ELEMENT (int8 for
//           U8 and S8); bias, dequant, out_scale float, OC rounded up to 64 of each; out (N,OH,OW,pitch) of
//           OUT_ELEMENT; maxima: an int (bits of a float) per image, maxima_stride apart. Pairs of float16: all high
//           halves of inp and out before all low ones, CP a multiple of 32, weight (CP/16,KH,KW,2,OCP,16), high before
//           low, OCP = OC rounded up to 64.
// Mapping:  implicit GEMM. Rows are output channels, columns output pixels, k runs over (kh, kw, c), of pairs over (c
//           by 16, kh, kw), 64 bytes each time. Block: TILE_OC x TILE_PX, neighbours share pixels. Warp: WARP_OC x
//           WARP_PX through mma.sync (mma.cuh). With POOL four consecutive columns are one 2x2 pooling window, and a
//           thread has all four.
// Tiles:    TILE_OC (128), TILE_PX (128), WARP_OC (64): 32 or 64, WARP_PX (64): a multiple of 16; K_NBYTES (128): 64
//           or 128 bytes of k in a stage; STAGES (3), MIN_BLOCKS on a multiprocessor (2), POOL (0); ELEMENT (1): 1
//           float16, 2 bfloat16, 3 pairs, 4 uint8, 5 int8; OUT_ELEMENT (1): the same or 0 float32.
// Shared:   STAGES*(TILE_OC+TILE_PX)*K_NBYTES bytes, dynamic; 32*(TILE_OC/WARP_OC)*(TILE_PX/WARP_PX) threads.
// Cost:     2*N*OH*OW*OC*KH*KW*C FLOP, three times that for pairs. Global reads: (1/TILE_OC + 1/TILE_PX)*KH*KW*CP
//           elements per output. A warp of 64x64 reads 4 KB of shared memory for 32 products.
// Sums:     one chain of products per output in the order of k; pairs: as PairWarpProduct has them (mma_pairs.cuh): the
//           same bits for every tile, batch and position.
// Edges:    any KH, KW, stride, padding; what lies beyond the tensors is loaded as zero and not stored; channels from
//           OC up to pitch are stored as zero. dequant is read for 8-bit ELEMENT and pairs, out_scale for 8-bit and
//           paired OUT_ELEMENT, maxima written for OUT_ELEMENT 1 and 3: else any pointer will do. uint8 and int8:
//           rint(v * out_scale), saturated.
// Why:      the tensor-core convolution of every card since Turing, for every layer, and of the CPU.
#include "early_start.cuh"
#include "implicit_gemm.cuh"
#include "mma_pairs.cuh"

#ifndef TILE_OC
#define TILE_OC 128
#endif
#ifndef TILE_PX
#define TILE_PX 128
#endif
#ifndef WARP_OC
#define WARP_OC 64
#endif
#ifndef WARP_PX
#define WARP_PX 64
#endif
#ifndef K_NBYTES
#define K_NBYTES 128
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2
#endif
#ifndef POOL
#define POOL 0
#endif
#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT 1
#endif

constexpr bool IS_PAIR = ELEMENT == F16_PAIR;
constexpr bool RECORDS = has_magnitudes(OUT_ELEMENT);
constexpr int NBYTES = element_nbytes(ELEMENT);
constexpr int WARPS_OC = TILE_OC / WARP_OC;
constexpr int THREADS = 32 * WARPS_OC * (TILE_PX / WARP_PX);
constexpr int MT = WARP_OC / 16;                 // products of a warp across its channels
constexpr int NT = WARP_PX / 8;                  // and across its pixels
constexpr int CHANNELS = 2 * MT;                 // neighbouring channels of a thread
constexpr int PIECES = K_NBYTES / 16;            // 16-byte pieces in a row of a stage
constexpr int ROWS_PER_LOAD = THREADS / PIECES;  // pixels that all threads together fetch at once
constexpr int LOADS = TILE_PX / ROWS_PER_LOAD;   // pieces of pixels per thread and stage
constexpr int WEIGHT_NBYTES = TILE_OC * K_NBYTES;
constexpr int STAGE_NBYTES = WEIGHT_NBYTES + TILE_PX * K_NBYTES;
constexpr int FAR_ABOVE = -32768;              // map row of what must read as zero; maps have at most 32767 rows
constexpr int WINDOW = POOL ? 4 : 1;           // columns that make an output
constexpr int OUTPUTS = WARP_PX / 4 / WINDOW;  // pixels that a thread stores

static_assert(WARP_OC == 32 || WARP_OC == 64, "a thread stores 4 or 8 neighbouring channels");
static_assert(WARP_PX % 16 == 0, "pixels are read from shared memory 16 at a time, and hold whole windows");
static_assert(TILE_OC % WARP_OC == 0 && TILE_PX % WARP_PX == 0, "warps must cover the tile");
static_assert(TILE_PX % ROWS_PER_LOAD == 0 && TILE_OC % ROWS_PER_LOAD == 0, "tiles are fetched in whole rounds");

template <bool OF_PAIRS>
struct PartsOf {
  typedef WarpProduct<OperandsOf<ELEMENT>::Type, MT, NT, K_NBYTES> Product;
  typedef RowFetcher<TILE_OC, K_NBYTES, THREADS, MT> WeightFetcher;
};
template <>
struct PartsOf<true> {
  typedef PairWarpProduct<MT, NT, K_NBYTES> Product;
  typedef PairFetcher<TILE_OC, K_NBYTES, THREADS, MT> WeightFetcher;
};
typedef PartsOf<IS_PAIR>::Product Product;
typedef PartsOf<IS_PAIR>::WeightFetcher WeightFetcher;

struct Shape {
  int rows;    // output pixels that take part: N*OH*OW
  int H, W;    // input map
  int C;       // bytes of a pixel's channels
  int OH, OW;  // output map before pooling; even with POOL
  int KH, KW, SH, SW, PT, PL;
};

// Column of the product, counted from the block's first, in row r of the pixel tile. A thread's sums are of rows 2t, 2t
// + 1 of each eight: with POOL two eights are dealt so that these are a whole window.
__device__ __forceinline__ int column_of_row(int r) {
  return POOL ? r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2 : r;
}

// What one thread fetches of the pixel tile: 16 bytes at one place of k of LOADS pixels. All that does not change from
// stage to stage is computed once.
struct PixelFetcher {
  const char* first_image;  // of the block's columns
  int pixel_offset[LOADS];  // bytes from there to tap (0, 0), channel 0; may lie outside, then it is not read
  int origin[LOADS];        // map row and column of tap (0, 0), 16 bits each
  unsigned valid;           // bit l: whether the current tap of load l lies in the map
  int kh, kw, c;            // of the next fetch, advanced each time instead of divided

  __device__ __forceinline__ PixelFetcher(const Shape& s, const char* inp, int column0) {
    const int n0 = column0 / (s.OH * s.OW);
    const long long image = (long long)s.H * s.W * s.C;
    first_image = inp + n0 * image + (IS_PAIR ? threadIdx.x / 2 % 2 * (s.rows / (s.OH * s.OW) * image) : 0);
    UNROLL
    for (int l = 0; l < LOADS; l++) {
      const int column = column0 + column_of_row(threadIdx.x / PIECES + l * ROWS_PER_LOAD);
      int n, oh, ow;
      row_to_pixel<POOL>(s.OH, s.OW, column, n, oh, ow);
      const int ih = oh * s.SH - s.PT, iw = ow * s.SW - s.PL;
      pixel_offset[l] = (((n - n0) * s.H + ih) * s.W + iw) * s.C;
      origin[l] = (column < s.rows ? ih : FAR_ABOVE) * 65536 + (iw & 65535);  // beyond the tensor looks like padding
    }
    if (IS_PAIR) {
      kh = kw = 0;
      c = threadIdx.x % 2 * 16;
      advance_groups(s, threadIdx.x % PIECES / 4);
    } else {
      const int k = threadIdx.x % PIECES * 16, tap = k / s.C;
      c = k - tap * s.C;
      kh = tap / s.KW;
      kw = tap - kh * s.KW;
      enter_tap(s);
    }
  }

  // By groups of 16 pairs: all taps, then the next channels.
  __device__ __forceinline__ void advance_groups(const Shape& s, int count) {
    for (int i = 0; i < count; i++) {
      if (++kw < s.KW) continue;
      kw = 0;
      if (++kh < s.KH) continue;
      kh = 0;
      c += PRODUCT_NBYTES;
    }
    enter_tap(s);
  }

  __device__ __forceinline__ void enter_tap(const Shape& s) {
    valid = 0;
    UNROLL
    for (int l = 0; l < LOADS; l++) {
      const int ih = (origin[l] >> 16) + kh, iw = (short)origin[l] + kw;
      const bool inside = kh < s.KH && (unsigned)ih < (unsigned)s.H && (unsigned)iw < (unsigned)s.W;
      valid |= static_cast<unsigned>(inside) << l;
    }
  }

  // Start fetching the next stage. Taps beyond the last one read as zero.
  __device__ __forceinline__ void fetch(const Shape& s, char* tile) {
    const char* source = first_image + ((kh * s.W + kw) * s.C + c);
    char* target = tile + tile_offset<K_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    UNROLL
    for (int l = 0; l < LOADS; l++)
      copy16_async(target + l * ROWS_PER_LOAD * K_NBYTES, source + pixel_offset[l], valid >> l & 1);
    if (IS_PAIR) return advance_groups(s, K_NBYTES / PAIR_NBYTES);
    c += K_NBYTES;
    if (c < s.C) return;
    do {
      c -= s.C;
      if (++kw == s.KW) {
        kw = 0;
        kh++;
      }
    } while (c >= s.C);
    enter_tap(s);
  }
};

struct Fetcher {
  const Shape& shape;
  WeightFetcher weights;
  PixelFetcher pixels;

  __device__ __forceinline__ void fetch(char* stage) {
    weights.fetch(stage);
    pixels.fetch(shape, stage + WEIGHT_NBYTES);
  }
};

// What the epilogue knows of each of its thread's channels.
struct Channels {
  float dequant[CHANNELS], bias[CHANNELS], scale[CHANNELS];
  int first, real;  // the first channel, and how many of them are not padding

  __device__ __forceinline__ Channels(const float* all_dequant, const float* all_bias, const float* all_scale, int oc,
                                      int OC) {
    first = oc;
    real = OC - oc;
    UNROLL
    for (int v = 0; v < CHANNELS; v += 4) {
      const bool in_range = oc < (OC + 63) / 64 * 64;
      unpack4(bias + v, load4(all_bias + (in_range ? oc + v : 0)));
      if (has_scale(ELEMENT)) unpack4(dequant + v, load4(all_dequant + (in_range ? oc + v : 0)));
      if (has_scale(OUT_ELEMENT)) unpack4(scale + v, load4(all_scale + (in_range ? oc + v : 0)));
    }
  }

  // The thread's output values of pixel `output`, counted from its first: columns of two eights share a window.
  __device__ __forceinline__ void values(const Product& product, int output, Activation activation,
                                         float (&value)[CHANNELS]) const {
    UNROLL
    for (int v = 0; v < CHANNELS; v++) {
      const bool is_real = v < real;
      UNROLL
      for (int w = 0; w < WINDOW; w++) {
        const int column = output * WINDOW + w;  // of the thread's: two in each eight
        const auto sum = product.sum[v / 2][column / 2][v % 2 * 2 + column % 2];
        const float x = IS_PAIR ? finish_scaled(sum, dequant[v], bias[v], is_real, activation)
                                : finish(sum, dequant[v], bias[v], is_real, activation);
        value[v] = w == 0 ? x : max_nan(value[v], x);
      }
    }
  }
};

// Column of the product, counted from the warp's first, of which a thread stores its output number `output`.
__device__ __forceinline__ int stored_column(int output) {
  const int t = threadIdx.x % 4;
  return POOL ? output * 16 + t * 4 : output / 2 * 8 + t * 2 + output % 2;
}

// Each image that the warp's columns belong to (nearly always one) learns the largest magnitude stored for it.
__device__ __forceinline__ void record(int* maxima, int maxima_stride, const int (&magnitude)[OUTPUTS], const Shape& s,
                                       int column0) {
  const int hw = s.OH * s.OW, last = min(column0 + WARP_PX, s.rows) - 1;
  for (int n = column0 / hw; n <= last / hw && column0 <= last; n++) {
    int largest = 0;
    UNROLL
    for (int output = 0; output < OUTPUTS; output++) {
      const int pixel = column0 + stored_column(output) - n * hw;
      if (pixel >= 0 && pixel < hw) largest = max(largest, magnitude[output]);
    }
    record_f16_magnitude(maxima + (long long)n * maxima_stride, largest);
  }
}

__device__ __forceinline__ void store_tile(void* out, int* maxima, int maxima_stride, const Product& product,
                                           const Channels& channels, const Shape& s, int column0, int pitch,
                                           Activation activation) {
  int magnitude[OUTPUTS];
  UNROLL
  for (int output = 0; output < OUTPUTS; output++) {
    const long long column = column0 + stored_column(output);
    const bool stored = column < s.rows && channels.first < pitch;
    float value[CHANNELS];
    channels.values(product, output, activation, value);
    const PackedValues<OUT_ELEMENT, CHANNELS> packed(value, channels.scale);
    if (stored) {
      const long long index = column / WINDOW * pitch + channels.first;
      packed.store_planes(static_cast<char*>(out) + index * element_nbytes(OUT_ELEMENT), pitch - channels.first,
                          2ll * (s.rows / WINDOW) * pitch);
    }
    if (!RECORDS) continue;
    magnitude[output] = 0;
    UNROLL
    for (int v = 0; v < CHANNELS; v++)
      magnitude[output] =
          max(magnitude[output], stored ? magnitude_bits(IS_PAIR ? value[v] * channels.scale[v] : value[v]) : 0);
  }
  if (RECORDS) record(maxima, maxima_stride, magnitude, s, column0);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) conv_mma(
    void* __restrict__ out, int* __restrict__ maxima, const void* __restrict__ inp, const void* __restrict__ weight,
    const float* __restrict__ dequant, const float* __restrict__ bias, const float* __restrict__ out_scale, int rows,
    int H, int W, int CP, int OH, int OW, int OC, int pitch, int KH, int KW, int SH, int SW, int PT, int PL,
    ACTIVATION_PARAMETER(activation), int maxima_stride) {
  DYNAMIC_SHARED(char, shared);
  const Shape s{rows, H, W, CP * NBYTES, OH, OW, KH, KW, SH, SW, PT, PL};
  const int oc_tiles = (OC + TILE_OC - 1) / TILE_OC;
  const int oc0 = blockIdx.x % oc_tiles * TILE_OC, column0 = blockIdx.x / oc_tiles * TILE_PX;
  const int warp_oc = threadIdx.x / 32 % WARPS_OC * WARP_OC, warp_px = threadIdx.x / 32 / WARPS_OC * WARP_PX;
  const int k_nbytes = KH * KW * s.C * (IS_PAIR ? 2 : 1);

  Fetcher fetcher{s, WeightFetcher(weight, oc0, OC, 0, k_nbytes, k_nbytes),
                  PixelFetcher(s, static_cast<const char*>(inp), column0)};
  Product product;
  wait_for_previous_kernel();
  for_each_stage<STAGES, STAGE_NBYTES>(shared, (k_nbytes + K_NBYTES - 1) / K_NBYTES, fetcher, [&](const char* stage) {
    product.add(stage + warp_oc * K_NBYTES, stage + WEIGHT_NBYTES + warp_px * K_NBYTES);
  });
  product.finish();

  const Channels channels(dequant, bias, out_scale, oc0 + warp_oc + threadIdx.x % 32 / 4 * CHANNELS, OC);
  store_tile(out, maxima, maxima_stride, product, channels, s, column0 + warp_px, pitch, ACTIVATION(activation));
}
