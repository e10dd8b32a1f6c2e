// conv_mma_first: out[n,y,x,oc] = stored([activation](dequant[oc] * (sum over kh, kw, c of pixel[n,c,y+kh-1,x+kw-1] *
//           weight[oc,c,kh,kw]) + bias[oc])), 3x3, stride 1, pad 1: the first convolution, which takes the network's
//           input in.
// Layouts:  source: IMAGE 0 (N,C,H,W) float; IMAGE 1 (N,H,W,C) bytes, pixel = fmaf(byte, mean_scale[c],
//           mean_shift[c]). weight (OC/64,3,4,32,8) of ELEMENT: by kh and 16 channels each lane's fragment, see
//           conv_mma_first.py; dequant, bias float; OC rounded up to 64 of each. out (N,H,W,pitch) of OUT_ELEMENT.
//           status (N) int; maxima: an int (bits of a float) per image, maxima_stride apart, written for float16.
// Integers: X_ELEMENT uint8 and int8, with ELEMENT float16: pixels become rint(pixel * in_scale), saturated, 0 for NaN;
//           weights are integers of int8. float16 holds both, and the sums, below 36 * 255 * 128 < 2^24, are exact in
//           float32 in any order. dequant is read there alone. Out in uint8 and int8: rint(v * out_scale), saturated.
// Mapping:  block: 64 channels x `rows` rows x TILE_COLUMNS columns of an image, channels first, then columns, rows,
//           images. Warp: 64 channels x rows x 8 columns through mma.sync (mma.cuh), two rows at once.
// Tiles:    ELEMENT (1), of the products: 1 float16, 2 bfloat16; X_ELEMENT (ELEMENT), of the pixels: the same, 4 uint8
//           or 5 int8; OUT_ELEMENT (ELEMENT): the same, with integers 0 float32, 4 or 5; IMAGE (0); IN_CHANNELS (3),
//           1 to 4; TILE_COLUMNS (32): a multiple of 8; MIN_BLOCKS on a multiprocessor (4).
// Shared:   dynamic: (rows+2)*TILE_COLUMNS*32 bytes; 4*TILE_COLUMNS threads. rows is even.
// Cost:     2*9*C FLOP per output; writes out once, which is what takes the time.
// Sums:     one chain of products per output, in the order of kh: the same bits for every tile, batch and position.
// Edges:    any N, H, W, OC. status[n] |= 1 if a float source has NaN or Inf. Channels from OC up to pitch are stored
//           as zero. A pixel beyond float16's range raises maxima[n] to infinity. The host zeroes status and maxima.
// Why:      conv_mma multiplies 8 channels where 3 hold something, nine times, of a copy of the input that two passes
//           make. There is no im2col: a pixel takes four channel slots, 8 bytes; an entry of a row in shared memory is
//           the pixels x and x+1, or x+2 and zeros, so that two of them, the operand of a product, are a kernel row,
//           and whatever is not finite meets no other pixel's zeros.
#include "first_image.cuh"

#ifndef ELEMENT
#define ELEMENT 1
#endif
#ifndef X_ELEMENT
#define X_ELEMENT ELEMENT
#endif
#ifndef OUT_ELEMENT
#define OUT_ELEMENT ELEMENT
#endif
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 32
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 4
#endif

constexpr bool INTEGERS = X_ELEMENT == U8 || X_ELEMENT == S8;
constexpr bool RECORDS = OUT_ELEMENT == F16;  // magnitudes
constexpr int THREADS = TILE_COLUMNS / 8 * 32;
constexpr int TILE_OC = 64, MT = TILE_OC / 16;
constexpr int CHANNELS = 2 * MT;          // neighbouring channels of a thread
constexpr int PIXELS = TILE_COLUMNS + 2;  // of a row of the input: the tile's columns and their neighbours
constexpr int ENTRY = 16;                 // bytes
constexpr int THIRDS_AT = TILE_COLUMNS * ENTRY;  // where, in a row, the entries with the third pixel begin
constexpr int ROW_NBYTES = 2 * THIRDS_AT;
constexpr int AT_ONCE = 5;                   // pixels of a thread that are read before the first is needed
constexpr unsigned INFINITE = 0x7f800000u;   // bits of a float
constexpr unsigned OVERFLOWS = 0x477ff000u;  // 65520, which float16 rounds to infinity

static_assert(TILE_COLUMNS % 8 == 0, "columns are multiplied by eight");
static_assert(ELEMENT == F16 || (ELEMENT == BF16 && !INTEGERS), "a channel slot has 16 bits, and holds every integer");
static_assert(INTEGERS || (X_ELEMENT == ELEMENT && OUT_ELEMENT == ELEMENT), "only integers are converted");

typedef OperandsOf<ELEMENT>::Type Elements;

// What makes operands of the pixels that a thread reads.
struct Pixels {
  float mean_scale[C], mean_shift[C];
  float in_scale;
  InputLimits limits;
  unsigned largest_read = 0, largest = 0;  // bits of the largest magnitude as it came, and as it is multiplied

  __device__ __forceinline__ Pixels(const float* scale, const float* shift, float in_scale_, InputLimits limits_)
      : in_scale(in_scale_), limits(limits_) {
    UNROLL
    for (int c = 0; c < C; c++) {
      mean_scale[c] = IMAGE == IMAGE_U8 ? scale[c] : 1.0f;
      mean_shift[c] = IMAGE == IMAGE_U8 ? shift[c] : 0.0f;
    }
  }

  // A pixel's four channels, zero where it is padding.
  __device__ __forceinline__ uint2 cell(const Image::Raw (&raw)[C], bool inside) {
    float v[4] = {};
    UNROLL
    for (int c = 0; c < C; c++) {
      const float value = Image::value(raw[c], mean_scale[c], mean_shift[c]);
      v[c] = inside ? limits(value) : 0.0f;
      if (IMAGE == IMAGE_F32) largest_read = max(largest_read, static_cast<unsigned>(magnitude_bits(value)));
      largest = max(largest, static_cast<unsigned>(magnitude_bits(v[c])));
      if constexpr (INTEGERS) v[c] = quantised<X_ELEMENT>(v[c] * in_scale);
    }
    const PackedValues<ELEMENT, 4> packed(v, nullptr);
    return make_uint2(packed.word[0], packed.word[1]);
  }
};

// Bring rows y0 - 1 to y0 + rows of an image to shared memory, each pixel into the three entries that hold it.
__device__ __forceinline__ void fill(char* halo, const Image::Raw* image, Pixels& pixels, int y0, int x0, int rows,
                                     int H, int W) {
  const int count = (rows + 2) * PIXELS;
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
      const uint2 cell = pixels.cell(raw[i], inside[i]);
      char* const entry = halo + place / PIXELS * ROW_NBYTES + column * ENTRY;
      if (column < TILE_COLUMNS) *reinterpret_cast<uint2*>(entry) = cell;
      if (column > 0 && column <= TILE_COLUMNS) *reinterpret_cast<uint2*>(entry - ENTRY + ENTRY / 2) = cell;
      if (column > 1) *reinterpret_cast<uint4*>(entry + THIRDS_AT - 2 * ENTRY) = make_uint4(cell.x, cell.y, 0, 0);
    }
  }
}

// Two rows of 8 pixels as products want them.
__device__ __forceinline__ void load_rows(unsigned (*rows)[1][2], const char* place) {
  unsigned pair[4];
  load_matrices(pair, place);
  UNROLL
  for (int e = 0; e < 4; e++) rows[e / 2][0][e % 2] = pair[e];
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) conv_mma_first(
    void* __restrict__ out, int* __restrict__ maxima, const void* __restrict__ source, const void* __restrict__ weight,
    const float* __restrict__ dequant, const float* __restrict__ bias, const float* __restrict__ mean_scale,
    const float* __restrict__ mean_shift, int* __restrict__ status, float in_scale, float out_scale, int H, int W,
    int OC, int pitch, int rows, ACTIVATION_PARAMETER(activation), int maxima_stride INPUT_PARAMETERS) {
  DYNAMIC_SHARED(char, halo);
  const int lane = threadIdx.x % 32, warp_column = threadIdx.x / 32 * 8;
  const int oc_tiles = (OC + TILE_OC - 1) / TILE_OC, column_tiles = (W + TILE_COLUMNS - 1) / TILE_COLUMNS;
  const int row_tiles = (H + rows - 1) / rows;
  const int oc_tile = blockIdx.x % oc_tiles, strip = blockIdx.x / oc_tiles, row_tile = strip / column_tiles;
  const int x0 = strip % column_tiles * TILE_COLUMNS, n = row_tile / row_tiles, y0 = row_tile % row_tiles * rows;
  const int height = min(rows, H - y0), pairs = (height + 1) / 2;

  unsigned a[3][MT][4];  // on their way while pixels come
  UNROLL
  for (int kh = 0; kh < 3; kh++) {
    UNROLL
    for (int i = 0; i < MT; i++) {
      const uint4 fragment = static_cast<const uint4*>(weight)[((oc_tile * 3 + kh) * MT + i) * 32 + lane];
      a[kh][i][0] = fragment.x;
      a[kh][i][1] = fragment.y;
      a[kh][i][2] = fragment.z;
      a[kh][i][3] = fragment.w;
    }
  }
  const int oc = oc_tile * TILE_OC + lane / 4 * CHANNELS;
  float channel_bias[CHANNELS], channel_dequant[CHANNELS], channel_scale[CHANNELS];
  UNROLL
  for (int v = 0; v < CHANNELS; v += 4) {
    unpack4(channel_bias + v, load4(bias + oc + v));
    if (INTEGERS) unpack4(channel_dequant + v, load4(dequant + oc + v));
  }
  UNROLL
  for (int v = 0; v < CHANNELS; v++) channel_scale[v] = out_scale;

  Pixels pixels(mean_scale, mean_shift, in_scale, INPUT_LIMITS);
  fill(halo, static_cast<const Image::Raw*>(source) + static_cast<long long>(n) * C * H * W, pixels, y0, x0, 2 * pairs,
       H, W);
  if (pixels.largest_read >= INFINITE) atomicOr(status + n, 1);
  if (RECORDS && pixels.largest >= OVERFLOWS)
    raise_maximum(maxima + static_cast<long long>(n) * maxima_stride, static_cast<int>(max(pixels.largest, INFINITE)));
  __syncthreads();  // the pixels are there

  const char* place = halo + lane / 16 * ROW_NBYTES + lane / 8 % 2 * THIRDS_AT + (warp_column + lane % 8) * ENTRY;
  const int x = x0 + warp_column + lane % 4 * 2;  // of this thread's first pixel; the second stands beside it
  const int columns = oc < pitch ? W - x : 0;     // of these, how many are stored
  const long long pixel_stride = pitch * element_nbytes(OUT_ELEMENT), row_stride = W * pixel_stride;
  char* target = static_cast<char*>(out) + ((static_cast<long long>(n) * H + y0) * W + x) * pixel_stride +
                 oc * element_nbytes(OUT_ELEMENT);
  unsigned b[4][1][2];  // rows of pixels: two of outputs, and what stands around them
  load_rows(b, place);
  load_rows(b + 2, place + 2 * ROW_NBYTES);
  unsigned magnitude = 0;
  ROLLED
  for (int pair = 0; pair < pairs; pair++) {
    float sum[2][MT][1][4] = {};
    UNROLL
    for (int kh = 0; kh < 3; kh++) {
      UNROLL
      for (int half = 0; half < 2; half++) add_products<Elements, MT, 1>(sum[half], a[kh], b[half + kh]);
    }
    UNROLL
    for (int e = 0; e < 4; e++) b[e / 2][0][e % 2] = b[2 + e / 2][0][e % 2];
    place += 2 * ROW_NBYTES;
    if (pair + 1 < pairs) load_rows(b + 2, place + 2 * ROW_NBYTES);
    if (!INTEGERS && oc + CHANNELS > OC) {  // infinity met a padded weight
      UNROLL
      for (int half = 0; half < 2; half++) {
        UNROLL
        for (int v = 0; v < CHANNELS; v++) {
          UNROLL
          for (int output = 0; output < 2; output++)
            if (oc + v >= OC) sum[half][v / 2][0][v % 2 * 2 + output] = 0.0f;
        }
      }
    }
    UNROLL
    for (int half = 0; half < 2; half++) {
      UNROLL
      for (int output = 0; output < 2; output++) {
        float value[CHANNELS];
        UNROLL
        for (int v = 0; v < CHANNELS; v++) {
          const float s = sum[half][v / 2][0][v % 2 * 2 + output];
          const float finished = INTEGERS ? fmaf(s, channel_dequant[v], channel_bias[v]) : s + channel_bias[v];
          value[v] = activated_as<OUT_ELEMENT>(finished, ACTIVATION(activation));
        }
        const PackedValues<OUT_ELEMENT, CHANNELS> packed(value, channel_scale);
        if (output < columns && 2 * pair + half < height) {
          packed.store(target + output * pixel_stride, OUT_ELEMENT == F32 ? pitch - oc : CHANNELS);
          if constexpr (RECORDS) {
            UNROLL
            for (const unsigned word : packed.word) magnitude = max2_magnitudes(magnitude, word);
          }
        }
      }
      target += row_stride;
    }
  }
  if (RECORDS) record_magnitudes(maxima + static_cast<long long>(n) * maxima_stride, magnitude);
}
