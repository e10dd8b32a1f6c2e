// conv_mma_first_pairs: out[n,y,x,oc] = pair of ([activation](dequant[oc] * (sum over kh, kw, c of in_scale *
//           pixel[n,c,y+kh-1,x+kw-1] * weight_scale[oc] * weight[oc,c,kh,kw]) + bias[oc])) * out_scale[oc], 3x3, stride
//           1, pad 1: the first convolution, which takes the network's input in.
// Layouts:  source: as conv_mma_first. weight (OC/32,3,2,32,8) float: by kh and 16 channels each lane's fragment, see
//           conv_mma_first.py; weight_scale, dequant, bias, out_scale float, OC rounded up to 64 of each; in_scale (1)
//           float, a power of two; out (2,N,H,W,pitch) float16, high halves before low ones. status (N) int; maxima: an
//           int (bits of a float) per image, maxima_stride apart.
// Products: pixels and weights are three float16 each, which is all of a float32; six products, as of conv_first.
// Mapping:  block: 64 channels x `rows` rows x TILE_COLUMNS columns of an image, channels first, then columns, rows,
//           images. Warp: 32 channels x rows x 8 columns through mma.sync (mma.cuh), two rows at once.
// Tiles:    IMAGE (0); IN_CHANNELS (3), 1 to 4; TILE_COLUMNS (16): a multiple of 8; MIN_BLOCKS on a multiprocessor (2).
// Shared:   dynamic: (rows+2)*TILE_COLUMNS*96 bytes; 8*TILE_COLUMNS threads. rows is even.
// Cost:     12*9*C FLOP per output; writes out once, which is what takes the time.
// Sums:     of each kh a part, small products before large ones (mma_pairs.cuh), the parts added in order: the same
//           bits for every tile, batch and position.
// Edges:    any N, H, W, OC. status[n] |= 1 if a float source has NaN or Inf. Channels from OC up to pitch are stored
//           as zero. A pixel beyond float16's range becomes NaN, which maxima tell. The host zeroes status and maxima.
// Why:      conv_mma_first in float32: what it stores is all that later layers know of a picture. Entries of rows in
//           shared memory are its own, of the first float16 of each value and, behind all rows, of the next.
#include "first_image.cuh"
#include "mma_pairs.cuh"

#ifndef TILE_COLUMNS
#define TILE_COLUMNS 16
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2
#endif

constexpr int TILE_OC = 64, WARP_OC = 32, MT = WARP_OC / 16;
constexpr int WARPS_OC = TILE_OC / WARP_OC;
constexpr int THREADS = 32 * WARPS_OC * (TILE_COLUMNS / 8);
constexpr int CHANNELS = 2 * MT;          // neighbouring channels of a thread
constexpr int PIXELS = TILE_COLUMNS + 2;  // of a row of the input: the tile's columns and their neighbours
constexpr int ENTRY = 16;                 // bytes
constexpr int THIRDS_AT = TILE_COLUMNS * ENTRY;  // where, in a row, the entries with the third pixel begin
constexpr int ROW_NBYTES = 2 * THIRDS_AT;
constexpr int AT_ONCE = 5;                  // pixels of a thread that are read before the first is needed
constexpr unsigned INFINITE = 0x7f800000u;  // bits of a float

static_assert(TILE_COLUMNS % 8 == 0, "columns are multiplied by eight");

constexpr int PARTS = 3;  // of a value
constexpr int PRODUCTS = 6;
// Which parts of weights and of pixels a product has, small ones first.
__device__ __forceinline__ constexpr int part_of_weights(int product) { return 0x001021 >> 4 * product & 15; }
__device__ __forceinline__ constexpr int part_of_pixels(int product) { return 0x010201 >> 4 * product & 15; }

// A pixel's four channel slots, part by part.
struct Cell {
  uint2 part[PARTS];

  __device__ __forceinline__ explicit Cell(float (&v)[4]) {
    UNROLL
    for (int p = 0; p < PARTS; p++) {
      const unsigned first = take2_f16(v[0], v[1]);
      part[p] = make_uint2(first, take2_f16(v[2], v[3]));
    }
  }
};

// What makes operands of the pixels that a thread reads.
struct Pixels {
  float mean_scale[C], mean_shift[C];
  float in_scale;
  InputLimits limits;
  unsigned largest_read = 0;  // bits of the largest magnitude as it came

  __device__ __forceinline__ Pixels(const float* scale, const float* shift, float in_scale_, InputLimits limits_)
      : in_scale(in_scale_), limits(limits_) {
    UNROLL
    for (int c = 0; c < C; c++) {
      mean_scale[c] = IMAGE == IMAGE_U8 ? scale[c] : 1.0f;
      mean_shift[c] = IMAGE == IMAGE_U8 ? shift[c] : 0.0f;
    }
  }

  // A pixel, zero where it is padding.
  __device__ __forceinline__ Cell cell(const Image::Raw (&raw)[C], bool inside) {
    float v[4] = {};
    UNROLL
    for (int c = 0; c < C; c++) {
      const float value = Image::value(raw[c], mean_scale[c], mean_shift[c]);
      v[c] = inside ? limits(value) * in_scale : 0.0f;
      if (IMAGE == IMAGE_F32) largest_read = max(largest_read, static_cast<unsigned>(magnitude_bits(value)));
    }
    return Cell(v);
  }
};

// Into the three entries that hold a pixel of this column.
__device__ __forceinline__ void store_cell(char* entry, int column, const uint2& cell) {
  if (column < TILE_COLUMNS) *reinterpret_cast<uint2*>(entry) = cell;
  if (column > 0 && column <= TILE_COLUMNS) *reinterpret_cast<uint2*>(entry - ENTRY + ENTRY / 2) = cell;
  if (column > 1) *reinterpret_cast<uint4*>(entry + THIRDS_AT - 2 * ENTRY) = make_uint4(cell.x, cell.y, 0, 0);
}

// Bring rows y0 - 1 to y0 + rows of an image to shared memory.
__device__ __forceinline__ void fill(char* halo, const Image::Raw* image, Pixels& pixels, int y0, int x0, int rows,
                                     int H, int W) {
  const int count = (rows + 2) * PIXELS, plane = (rows + 2) * ROW_NBYTES;
  for (int first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
    Image::Raw raw[AT_ONCE][C];
    bool inside[AT_ONCE];
    UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
      const int place = first + i * THREADS, y = y0 + place / PIXELS - 1, x = x0 + place % PIXELS - 1;
      inside[i] = place < count && static_cast<unsigned>(y) < static_cast<unsigned>(H) &&
                  static_cast<unsigned>(x) < static_cast<unsigned>(W);
      UNROLL
      for (int c = 0; c < C; c++) raw[i][c] = inside[i] ? image[Image::offset(c, y * W + x, H * W)] : 0;
    }
    UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
      const int place = first + i * THREADS, column = place % PIXELS;
      if (place >= count) break;
      const Cell cell = pixels.cell(raw[i], inside[i]);
      char* const entry = halo + place / PIXELS * ROW_NBYTES + column * ENTRY;
      UNROLL
      for (int p = 0; p < PARTS; p++) store_cell(entry + p * plane, column, cell.part[p]);
    }
  }
}

// The weights of a warp.
struct Weights {
  unsigned part[PARTS][3][MT][4];

  // fragments: of the warp's first kh; scale: of the lane's first row.
  __device__ __forceinline__ Weights(const float* fragments, const float* scale) {
    UNROLL
    for (int kh = 0; kh < 3; kh++) {
      UNROLL
      for (int i = 0; i < MT; i++) {
        float w[8];
        const float* place = fragments + ((kh * MT + i) * 32 + threadIdx.x % 32) * 8;
        unpack4(w, load4(place));
        unpack4(w + 4, load4(place + 4));
        UNROLL
        for (int e = 0; e < 4; e++) {
          const float by = scale[2 * i + e % 2];
          float low = w[2 * e] * by, high = w[2 * e + 1] * by;
          UNROLL
          for (int p = 0; p < PARTS; p++) part[p][kh][i][e] = take2_f16(low, high);
        }
      }
    }
  }
};

// Rows of 8 pixels as products want them: four, of which two are read at once.
struct Rows {
  unsigned part[PARTS][4][1][2];

  // From row `first` on. plane: bytes from one part to the next.
  __device__ __forceinline__ void load(int first, const char* place, int plane) {
    UNROLL
    for (int p = 0; p < PARTS; p++) {
      unsigned pair[4];
      load_matrices(pair, place + p * plane);
      UNROLL
      for (int e = 0; e < 4; e++) part[p][first + e / 2][0][e % 2] = pair[e];
    }
  }

  // The last two become the first.
  __device__ __forceinline__ void advance() {
    UNROLL
    for (int p = 0; p < PARTS; p++) {
      UNROLL
      for (int e = 0; e < 4; e++) part[p][e / 2][0][e % 2] = part[p][2 + e / 2][0][e % 2];
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) conv_mma_first_pairs(
    void* __restrict__ out, int* __restrict__ maxima, const void* __restrict__ source, const float* __restrict__ weight,
    const float* __restrict__ weight_scale, const float* __restrict__ dequant, const float* __restrict__ bias,
    const float* __restrict__ out_scale, const float* __restrict__ in_scale, const float* __restrict__ mean_scale,
    const float* __restrict__ mean_shift, int* __restrict__ status, int N, int H, int W, int OC, int pitch, int rows,
    ACTIVATION_PARAMETER(activation), int maxima_stride INPUT_PARAMETERS) {
  DYNAMIC_SHARED(char, halo);
  const int lane = threadIdx.x % 32, warp_oc = threadIdx.x / 32 % WARPS_OC * WARP_OC;
  const int warp_column = threadIdx.x / 32 / WARPS_OC * 8;
  const int oc_tiles = (OC + TILE_OC - 1) / TILE_OC, column_tiles = (W + TILE_COLUMNS - 1) / TILE_COLUMNS;
  const int row_tiles = (H + rows - 1) / rows;
  const int oc_tile = blockIdx.x % oc_tiles, strip = blockIdx.x / oc_tiles, row_tile = strip / column_tiles;
  const int x0 = strip % column_tiles * TILE_COLUMNS, n = row_tile / row_tiles, y0 = row_tile % row_tiles * rows;
  const int height = min(rows, H - y0), pairs = (height + 1) / 2;
  const int first_oc = oc_tile * TILE_OC + warp_oc, oc = first_oc + lane / 4 * CHANNELS;

  const Weights w(weight + static_cast<long long>(first_oc) * (3 * 16), weight_scale + oc);
  Pixels pixels(mean_scale, mean_shift, in_scale[0], INPUT_LIMITS);
  fill(halo, static_cast<const Image::Raw*>(source) + static_cast<long long>(n) * C * H * W, pixels, y0, x0, 2 * pairs,
       H, W);
  if (pixels.largest_read >= INFINITE) atomicOr(status + n, 1);
  float channel_bias[CHANNELS], channel_dequant[CHANNELS], channel_scale[CHANNELS];
  unpack4(channel_bias, load4(bias + oc));
  unpack4(channel_dequant, load4(dequant + oc));
  unpack4(channel_scale, load4(out_scale + oc));
  __syncthreads();  // the pixels are there

  const char* place = halo + lane / 16 * ROW_NBYTES + lane / 8 % 2 * THIRDS_AT + (warp_column + lane % 8) * ENTRY;
  const int plane = (2 * pairs + 2) * ROW_NBYTES;
  const int x = x0 + warp_column + lane % 4 * 2;  // of this thread's first pixel; the second stands beside it
  const int columns = oc < pitch ? W - x : 0;     // of these, how many are stored
  const long long pixel_stride = 2 * pitch, row_stride = W * pixel_stride;
  const long long out_plane = static_cast<long long>(N) * H * row_stride;
  char* target = static_cast<char*>(out) + ((static_cast<long long>(n) * H + y0) * W + x) * pixel_stride + oc * 2;
  Rows b;  // two of outputs, and what stands around them
  b.load(0, place, plane);
  b.load(2, place + 2 * ROW_NBYTES, plane);
  unsigned magnitude = 0;
  ROLLED
  for (int pair = 0; pair < pairs; pair++) {
    float sum[2][MT][1][4];
    UNROLL
    for (int kh = 0; kh < 3; kh++) {
      float part[2][MT][1][4] = {};
      UNROLL
      for (int p = 0; p < PRODUCTS; p++) {
        UNROLL
        for (int half = 0; half < 2; half++)
          add_products<Fp16, MT, 1>(part[half], w.part[part_of_weights(p)][kh], b.part[part_of_pixels(p)][half + kh]);
      }
      UNROLL
      for (int half = 0; half < 2; half++) {
        if (kh == 0) set_zero(sum[half]);
        add_part(sum[half], part[half]);
      }
    }
    b.advance();
    place += 2 * ROW_NBYTES;
    if (pair + 1 < pairs) b.load(2, place + 2 * ROW_NBYTES, plane);
    UNROLL
    for (int half = 0; half < 2; half++) {
      UNROLL
      for (int output = 0; output < 2; output++) {
        float value[CHANNELS];
        UNROLL
        for (int v = 0; v < CHANNELS; v++)
          value[v] = finish_scaled(sum[half][v / 2][0][v % 2 * 2 + output], channel_dequant[v], channel_bias[v],
                                   oc + v < OC, ACTIVATION(activation));
        const PackedValues<F16_PAIR, CHANNELS> packed(value, channel_scale);
        if (output < columns && 2 * pair + half < height) {
          packed.store_planes(target + output * pixel_stride, CHANNELS, out_plane);
          UNROLL
          for (const unsigned word : packed.word) magnitude = max2_magnitudes(magnitude, word);
        }
      }
      target += row_stride;
    }
  }
  record_magnitudes(maxima + static_cast<long long>(n) * maxima_stride, magnitude);
}
