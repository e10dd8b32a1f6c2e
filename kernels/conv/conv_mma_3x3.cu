// conv_mma_3x3: out[n,h,w,oc] = stored([pool2x2]([activation](dequant[oc] * (sum over kh, kw, c of inp[n,h+kh-1,w+kw-1,c]
//           * weight[oc,kh,kw,c]) + bias[oc])))
// Layouts:  as conv_mma: inp (N,H,W,CP) of ELEMENT, CP * element bytes a multiple of 16; weight (OC,3,3,CP) of ELEMENT
//           (int8 for U8 and S8); bias, dequant, out_scale float, OC rounded up to 64 of each; out (N,H,W,pitch) of
//           OUT_ELEMENT, with POOL (N,H/2,W/2,pitch); maxima: an int (bits of a float) per image, maxima_stride apart.
//           Pairs of float16: all high halves of inp and out before all low ones, CP a multiple of 16, weight
//           (CP/16,3,3,2,OCP,16), high before low, OCP = OC rounded up to 64.
// Mapping:  the columns of all images stand side by side, N*W of them. Block: TILE_OC channels x TILE_ROWS rows x
//           TILE_COLUMNS columns; neighbours share pixels. Warp: WARP_OC channels x TILE_ROWS rows x 8 columns through
//           mma.sync (mma.cuh): a row of its pixels, read once, is multiplied by the weights of three kh, for three
//           rows of outputs.
// Tiles:    TILE_OC (64), TILE_ROWS (14): even but for pairs without POOL, TILE_COLUMNS (16): a multiple of 8, WARP_OC
//           (32), MIN_BLOCKS on a multiprocessor (2), POOL (0); ELEMENT (1): 1 float16, 2 bfloat16, 3 pairs, 4 uint8, 5
//           int8; OUT_ELEMENT (1): the same or 0 float32.
// Shared:   dynamic: two halos of (TILE_ROWS+2)*(TILE_COLUMNS+6) pixels, three slots of 3*TILE_OC weights, 64 bytes of
//           channels each, and 48 bytes; 32*(TILE_OC/WARP_OC)*(TILE_COLUMNS/8) threads. W >= 8 (with POOL: W/2*2 >= 8).
// Cost:     18*N*H*W*OC*C FLOP, three times that for pairs. A warp of 32 channels x 14 rows reads 7 KB of shared memory
//           for 84 products, one of 8 rows 11 KB for 144 of pairs; a tile fills shared memory with its pixels once for
//           nine taps.
// Sums:     one chain of products per output, in the order of 64 bytes of channels, kw, 32 bytes, kh; pairs: parts of
//           16 channels, kw and three kh (mma_pairs.cuh), added in order: the same bits for every tile, batch and
//           position.
// Edges:    what lies beyond the map is loaded as zero and not stored; channels from OC up to pitch are stored as zero.
//           dequant is read for 8-bit ELEMENT and pairs, out_scale for 8-bit and paired OUT_ELEMENT, maxima written for
//           OUT_ELEMENT 1 and 3.
// Why:      conv_mma fetches each pixel nine times, and its warps wait for each other at every stage: 10.2 ms for the
//           twelve layers of 128 images in float16 on an H200, 8.5 here. docs/performance.md says what each step gave.
//           Of pairs a chunk is as many bytes, so that halos, slots and barriers are those of float16.
#include "early_start.cuh"
#include "mma_pairs.cuh"
#include "slots.cuh"

#ifndef TILE_OC
#define TILE_OC 64
#endif
#ifndef TILE_ROWS
#define TILE_ROWS 14
#endif
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 16
#endif
#ifndef WARP_OC
#define WARP_OC 32
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
constexpr int PLANES = IS_PAIR ? 2 : 1;
constexpr int NBYTES = element_nbytes(ELEMENT);
constexpr bool RECORDS = has_magnitudes(OUT_ELEMENT);
constexpr int CHUNK_NBYTES = 64;  // of the channels, that lie in shared memory at once
constexpr int PLANE_NBYTES = CHUNK_NBYTES / PLANES;
constexpr int PIECES = CHUNK_NBYTES / 16;
constexpr int STEPS = CHUNK_NBYTES / PRODUCT_NBYTES;
constexpr int WARPS_OC = TILE_OC / WARP_OC;
constexpr int THREADS = 32 * WARPS_OC * (TILE_COLUMNS / 8);
constexpr int MT = WARP_OC / 16;                    // products of a warp across its channels
constexpr int CHANNELS = 2 * MT;                    // neighbouring channels of a thread
constexpr int SEGMENTS = 3;                         // images that TILE_COLUMNS may touch
constexpr int PITCH = TILE_COLUMNS + 2 * SEGMENTS;  // pixels in a row of the halo
constexpr int HALO_PIXELS = (TILE_ROWS + 2) * PITCH;
constexpr int HALO_NBYTES = HALO_PIXELS * CHUNK_NBYTES;
constexpr int ROW_NBYTES = PITCH * CHUNK_NBYTES;
constexpr int SLOT_NBYTES = 3 * TILE_OC * CHUNK_NBYTES;
constexpr int PIXELS_PER_LOAD = THREADS / PIECES;  // that all threads together fetch at once
constexpr int HALO_LOADS = IS_PAIR ? TILE_ROWS + 2 : (HALO_PIXELS + PIXELS_PER_LOAD - 1) / PIXELS_PER_LOAD;
constexpr int WEIGHT_LOADS = 3 * TILE_OC / PIXELS_PER_LOAD;
constexpr int PAIRS = (TILE_ROWS + 2) / 2;  // two rows of pixels are read at once
constexpr int TIMES = IS_PAIR ? TILE_ROWS : STEPS * PAIRS;  // (pairs of) rows that a slot of weights is multiplied by
// When, of these, the next but one slot begins to be filled, and when the next step's weights are read: late enough for
// slower warps, early enough for memory. Measured on an H200, but for pairs.
constexpr int FETCH_TIME = IS_PAIR ? TIMES / 2 - 1 : TIMES / 2 - 2, NEXT_PAIR = PAIRS / 2 + 1;
constexpr int NEXT_TIME = IS_PAIR ? TIMES - 1 : TIMES - PAIRS + NEXT_PAIR;
constexpr int WINDOW = POOL ? 2 : 1;  // rows, and columns, that make an output

static_assert(WARP_OC == 32 || WARP_OC == 64, "a thread stores 4 or 8 neighbouring channels");
static_assert(TILE_ROWS % 2 == 0 || (IS_PAIR && !POOL), "rows are read in pairs, and windows are whole");
static_assert(TILE_COLUMNS % 8 == 0, "columns are multiplied by eight");
static_assert(TILE_OC % PIXELS_PER_LOAD == 0, "weights are fetched in whole rounds");
static_assert(!IS_PAIR || PIXELS_PER_LOAD >= PITCH, "a row of a halo is fetched at once");
static_assert(!IS_PAIR || 64 % TILE_OC == 0, "packed pairs end at a multiple of 64 channels");
static_assert(PIXELS_PER_LOAD % 16 == 0, "the pieces of all loads of a thread are exchanged alike");

typedef OperandsOf<ELEMENT>::Type Elements;
typedef Elements::Sum Sum;

// The map, and where the block's tile lies in it.
struct Tile {
  int N, H, W;        // input
  int height, width;  // rows and columns of the product: even with POOL
  int channels;       // bytes of a pixel
  int oc0, row0, column0, n0;

  __device__ __forceinline__ Tile(int N_, int H_, int W_, int CP, int OC) {
    N = N_;
    H = H_;
    W = W_;
    height = H / WINDOW * WINDOW;
    width = W / WINDOW * WINDOW;
    channels = CP * NBYTES;
    const int oc_tiles = (OC + TILE_OC - 1) / TILE_OC, row_tiles = (height + TILE_ROWS - 1) / TILE_ROWS;
    const int place = blockIdx.x / oc_tiles;
    oc0 = blockIdx.x % oc_tiles * TILE_OC;
    row0 = place % row_tiles * TILE_ROWS;
    column0 = place / row_tiles * TILE_COLUMNS;
    n0 = column0 / width;
  }
};

// What one thread fetches of the tile's pixels: 16 bytes of channels of HALO_LOADS of them. Between two images of a row
// lie two columns of padding.
struct HaloFetcher {
  const char* first_image;
  int offset[HALO_LOADS];  // bytes from there; below 0 what lies outside of the maps, and is not read

  __device__ __forceinline__ HaloFetcher(const Tile& tile, const char* inp) {
    first_image = inp + (long long)tile.n0 * tile.H * tile.W * tile.channels;
    const int w0 = tile.column0 - tile.n0 * tile.width;
    UNROLL
    for (int l = 0; l < HALO_LOADS; l++) {
      const int pixel = threadIdx.x / PIECES + l * PIXELS_PER_LOAD;
      const int row = pixel / PITCH, h = tile.row0 + row - 1;
      int w = w0 + pixel % PITCH - 1, further = 0;
      UNROLL
      for (int s = 1; s < SEGMENTS; s++) {  // the places of an image end one beyond its last column
        const bool is_beyond = w > tile.width;
        w -= is_beyond ? tile.width + 2 : 0;
        further += is_beyond;
      }
      const bool inside = pixel < HALO_PIXELS && (unsigned)h < (unsigned)tile.H && (unsigned)w < (unsigned)tile.W &&
                          tile.n0 + further < tile.N;
      const int piece = threadIdx.x % PIECES * 16;
      offset[l] = inside ? ((further * tile.H + h) * tile.W + w) * tile.channels + piece : -1;
    }
  }

  // Fetch number l of HALO_LOADS. has_channels: whether the map has those that the thread would fetch.
  __device__ __forceinline__ void fetch(int l, char* halo, bool has_channels) const {
    const int pixel = threadIdx.x / PIECES + l * PIXELS_PER_LOAD;
    if (HALO_PIXELS % PIXELS_PER_LOAD != 0 && l + 1 == HALO_LOADS && pixel >= HALO_PIXELS) return;
    char* target = halo + pixel / PITCH * ROW_NBYTES + tile_offset<CHUNK_NBYTES>(pixel % PITCH, threadIdx.x % PIECES);
    copy16_async(target, first_image + offset[l], has_channels && offset[l] >= 0);
  }

  __device__ __forceinline__ void advance() { first_image += CHUNK_NBYTES; }
};

// The same of pairs, whose sums leave few registers: 16 bytes of one half of a column of pixels, row after row.
struct PairHaloFetcher {
  const char* source;  // of the next row; where that lies outside of the maps it is not read
  int row_nbytes;
  unsigned inside;  // bit l: whether row l of the column lies in a map

  __device__ __forceinline__ PairHaloFetcher(const Tile& tile, const char* inp) {
    const int half = threadIdx.x % PIECES / 2;
    const int column = threadIdx.x / PIECES;  // of the halo; the last threads have none
    int w = tile.column0 - tile.n0 * tile.width + column - 1, n = tile.n0;
    UNROLL
    for (int s = 1; s < SEGMENTS; s++) {
      const int beyond = w > tile.width;
      w -= beyond * (tile.width + 2);
      n += beyond;
    }
    row_nbytes = tile.W * tile.channels;
    source = inp + ((static_cast<long long>(half) * tile.N + n) * tile.H + tile.row0 - 1) * row_nbytes +
             w * tile.channels + threadIdx.x % 2 * 16;
    const bool has_column = static_cast<unsigned>(w) < static_cast<unsigned>(tile.W) && n < tile.N;
    inside = 0;
    UNROLL
    for (int l = 0; l < TILE_ROWS + 2; l++) {
      const bool has_row = static_cast<unsigned>(tile.row0 + l - 1) < static_cast<unsigned>(tile.H);
      inside |= static_cast<unsigned>(has_column && has_row) << l;
    }
  }

  __device__ __forceinline__ void fetch(int l, char* halo, bool has_channels) {
    char* target = halo + l * ROW_NBYTES + tile_offset<CHUNK_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    copy16_async_where(threadIdx.x / PIECES < PITCH, target, source, has_channels && (inside >> l & 1));
    source += row_nbytes;
  }

  // After all rows.
  __device__ __forceinline__ void advance() { source += PLANE_NBYTES - (TILE_ROWS + 2) * row_nbytes; }
};

// What one thread fetches of the weights: 16 bytes of channels of rows (kh, output channel) of one kw.
struct WeightFetcher {
  const char* source;
  int rows;  // output channels from that of the first load up
  int channels;

  __device__ __forceinline__ WeightFetcher(const Tile& tile, const char* weight, int OC) {
    channels = tile.channels;
    const int first = tile.oc0 + channel_of_row<MT>(threadIdx.x / PIECES);
    rows = OC - first;
    source = weight + (long long)first * 9 * channels + threadIdx.x % PIECES * 16;
  }

  // Fetch number l of WEIGHT_LOADS.
  __device__ __forceinline__ void fetch(int l, int kw, char* slot, bool has_channels) const {
    const int kh = l * PIXELS_PER_LOAD / TILE_OC, further = channel_of_row<MT>(l * PIXELS_PER_LOAD % TILE_OC);
    char* target = slot + tile_offset<CHUNK_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES);
    copy16_async(target + l * PIXELS_PER_LOAD * CHUNK_NBYTES, source + (further * 9 + kh * 3 + kw) * channels,
                 has_channels && further < rows);
  }

  __device__ __forceinline__ void advance() { source += CHUNK_NBYTES; }
};

// The same of pairs, which are packed: kw after kw, channels after channels.
struct PairWeightFetcher {
  const char* source;  // of the next kh
  int tap;             // bytes

  __device__ __forceinline__ PairWeightFetcher(const Tile& tile, const char* weight, int OC) {
    tap = (OC + 63) / 64 * 64 * CHUNK_NBYTES;
    source = weight + threadIdx.x % PIECES / 2 * (tap / 2) + threadIdx.x % 2 * 16 +
             (tile.oc0 + channel_of_row<MT>(threadIdx.x / PIECES)) * PLANE_NBYTES;
  }

  __device__ __forceinline__ void fetch(int l, int kw, char* slot, bool has_channels) {
    const int row = l * PIXELS_PER_LOAD;
    char* target = slot + tile_offset<CHUNK_NBYTES>(threadIdx.x / PIECES, threadIdx.x % PIECES) + row * CHUNK_NBYTES;
    copy16_async(target, source + channel_of_row<MT>(row % TILE_OC) * PLANE_NBYTES, has_channels);
    if ((row + PIXELS_PER_LOAD) % TILE_OC == 0) source += 3 * tap;
    if (l + 1 == WEIGHT_LOADS) source -= (kw < 2 ? 8 : 2) * tap;
  }

  __device__ __forceinline__ void advance() {}
};

// What a warp has of its block's product, but of pairs.
struct Product {
  Sum sum[TILE_ROWS][MT][1][4];

  __device__ __forceinline__ Product() {
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
      UNROLL
      for (int i = 0; i < MT; i++) {
        UNROLL
        for (int e = 0; e < 4; e++) sum[r][i][0][e] = 0;
      }
    }
  }

  struct Weights {
    unsigned a[3][MT][4];

    __device__ __forceinline__ void load(const char* first) {
      UNROLL
      for (int kh = 0; kh < 3; kh++) {
        UNROLL
        for (int i = 0; i < MT; i++) load_matrices(a[kh][i], first + (kh * TILE_OC + i * 16) * CHUNK_NBYTES);
      }
    }
  };

  struct Pixels {
    unsigned b[2][1][2];

    __device__ __forceinline__ void load(const char* first) {
      unsigned pair[4];
      load_matrices(pair, first);
      UNROLL
      for (int e = 0; e < 4; e++) b[e / 2][0][e % 2] = pair[e];
    }
  };

  Weights a[2];  // the next step's, and the next rows, are on their way while these are multiplied
  Pixels b[2];

  // Where a slot's first fragments lie: weights of the warp, and the lane's pixel of the row above the tile.
  struct Place {
    const char* a;
    const char* b;

    __device__ __forceinline__ Place(const char* weights, const char* halo, int place) {
      const int lane = threadIdx.x % 32;
      a = weights + tile_offset<CHUNK_NBYTES>(lane % 16, lane / 16);
      b = halo + lane / 16 * ROW_NBYTES + tile_offset<CHUNK_NBYTES>(place, lane / 8 % 2);
    }
  };

  __device__ __forceinline__ void start(const Place& first) {
    a[0].load(first.a);
    b[0].load(first.b);
  }

  // Add the products of one kw and CHUNK_NBYTES of channels, whose first fragments are there. `between` is called
  // before each of TIMES pairs of rows, and at NEXT_TIME has made `next` readable: its first fragments come while
  // products run.
  template <class Between>
  __device__ __forceinline__ void add(const Place& at, const Place& next, const Between& between) {
    UNROLL
    for (int step = 0; step < STEPS; step++) {
      const bool is_last = step + 1 == STEPS;
      UNROLL
      for (int pair = 0; pair < PAIRS; pair++) {
        const int time = step * PAIRS + pair;
        between(time);
        if (pair + 1 < PAIRS)
          b[(time + 1) % 2].load(moved(at.b, step) + (pair + 1) * 2 * ROW_NBYTES);
        else
          b[(time + 1) % 2].load(is_last ? next.b : moved(at.b, step + 1));
        if (pair == NEXT_PAIR) a[(step + 1) % 2].load(is_last ? next.a : moved(at.a, step + 1));
        UNROLL
        for (int half = 0; half < 2; half++) {
          UNROLL
          for (int kh = 0; kh < 3; kh++) {
            const int r = 2 * pair + half - kh;
            if (r >= 0 && r < TILE_ROWS)
              add_products<Elements, MT, 1>(sum[r], a[step % 2].a[kh], b[time % 2].b[half]);
          }
        }
      }
    }
  }

  // The place of a later step's 32 bytes of channels. Rows begin at multiples of CHUNK_NBYTES in shared memory.
  static __device__ __forceinline__ const char* moved(const char* first, int step) {
    return step == 0 ? first : reinterpret_cast<const char*>(reinterpret_cast<size_t>(first) ^ step * PRODUCT_NBYTES);
  }
};

// Set the sums of the thread's channels from `real` up to zero.
__device__ __forceinline__ void clear_from(Sum (&sum)[TILE_ROWS][MT][1][4], int real) {
  UNROLL
  for (int r = 0; r < TILE_ROWS; r++) {
    UNROLL
    for (int v = 0; v < CHANNELS; v++) {
      UNROLL
      for (int e = 0; e < 2; e++) sum[r][v / 2][0][v % 2 * 2 + e] = v < real ? sum[r][v / 2][0][v % 2 * 2 + e] : 0;
    }
  }
}

template <bool OF_PAIRS>
struct ProductOf {
  typedef Product Type;
  typedef HaloFetcher Pixels;
  typedef WeightFetcher Weights;
};
template <>
struct ProductOf<true> {
  typedef PairProduct<TILE_ROWS, MT, TILE_OC * CHUNK_NBYTES, ROW_NBYTES> Type;
  typedef PairHaloFetcher Pixels;
  typedef PairWeightFetcher Weights;
};
typedef ProductOf<IS_PAIR>::Type WarpSums;

constexpr int RESIDENT = IS_PAIR && !HAS_COPY_ASYNC ? 1 : MIN_BLOCKS;  // pairs are planned from Ampere on

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) conv_mma_3x3(
    void* __restrict__ out, int* __restrict__ maxima, const void* __restrict__ inp, const void* __restrict__ weight,
    const float* __restrict__ dequant, const float* __restrict__ bias, const float* __restrict__ out_scale, int N, int H,
    int W, int CP, int OC, int pitch, ACTIVATION_PARAMETER(activation), int maxima_stride) {
  DYNAMIC_SHARED(char, shared);
  const Tile tile(N, H, W, CP, OC);
  const int warp_oc = threadIdx.x / 32 % WARPS_OC * WARP_OC, warp_column = threadIdx.x / 32 / WARPS_OC * 8;
  const int chunks = (tile.channels + PLANE_NBYTES - 1) / PLANE_NBYTES;
  char* const weights = shared + 2 * HALO_NBYTES;  // a slot for each kw
  const Slots<3, THREADS> slots(weights + 3 * SLOT_NBYTES);
  const int column = warp_column + threadIdx.x % 8;  // of the lane's pixel
  const int place = column + 2 * ((tile.column0 + column) / tile.width - tile.n0);

  ProductOf<IS_PAIR>::Pixels pixels(tile, static_cast<const char*>(inp));
  ProductOf<IS_PAIR>::Weights rows(tile, static_cast<const char*>(weight), OC);
  const int own = threadIdx.x % (PIECES / PLANES) * 16;  // bytes of a chunk before those that the thread fetches
  wait_for_previous_kernel();
  UNROLL
  for (int l = 0; l < HALO_LOADS; l++) pixels.fetch(l, shared, own < tile.channels);
  pixels.advance();
  __syncthreads();  // barriers are there
  UNROLL
  for (int kw = 0; kw < 2; kw++) {
    UNROLL
    for (int l = 0; l < WEIGHT_LOADS; l++) rows.fetch(l, kw, weights + kw * SLOT_NBYTES, own < tile.channels);
    slots.note_fill(kw);
  }

  WarpSums product;
  const auto place_of = [&](int kw, int half) {
    const char* const slot = weights + kw * SLOT_NBYTES + warp_oc * CHUNK_NBYTES;
    return WarpSums::Place(slot, shared + half * HALO_NBYTES, place + kw);
  };
  slots.wait_until_filled(0, 0);
  product.start(place_of(0, 0));
  for (int chunk = 0; chunk < chunks; chunk++) {
    const int half = chunk & 1;
    UNROLL
    for (int kw = 0; kw < 3; kw++) {
      // Two kw on, weights go into the slot of the kw before, and with them half of the next chunk's pixels.
      const int filled = (kw + 2) % 3, next = (kw + 1) % 3;
      constexpr int FIRST_HALF = (HALO_LOADS + 1) / 2;
      const int first_pixel = kw == 0 ? 0 : FIRST_HALF;
      const int pixel_loads = kw == 0 ? FIRST_HALF : kw == 1 ? HALO_LOADS - FIRST_HALF : 0;
      const bool has_pixels = chunk + 1 < chunks, has_weights = kw == 0 || has_pixels;
      const int loads = WEIGHT_LOADS + pixel_loads;
      const bool has_next = (chunk + 1) * PLANE_NBYTES + own < tile.channels;
      const bool has_channels = kw == 0 ? chunk * PLANE_NBYTES + own < tile.channels : has_next;
      if (kw == 1) rows.advance();
      product.add(place_of(kw, half), place_of(next, kw == 2 ? half ^ 1 : half), [&](int time) {
        if (time == FETCH_TIME) slots.wait_until_read(filled, kw == 0 ? chunk - 1 : chunk);
        UNROLL
        for (int l = 0; l < HALO_LOADS + WEIGHT_LOADS; l++) {
          if (l >= loads || l * (TIMES - FETCH_TIME) / loads != time - FETCH_TIME) continue;
          if (l < pixel_loads) {
            if (has_pixels) pixels.fetch(first_pixel + l, shared + (half ^ 1) * HALO_NBYTES, has_next);
          } else if (has_weights) {
            rows.fetch(l - pixel_loads, filled, weights + filled * SLOT_NBYTES, has_channels);
          }
        }
        if (time == NEXT_TIME) slots.wait_until_filled(next, kw == 2 ? chunk + 1 : chunk);
      });
      slots.note_fill(filled);
      slots.note_read(kw);
      if (kw == 1) pixels.advance();
    }
  }

  const int oc = tile.oc0 + warp_oc + threadIdx.x % 32 / 4 * CHANNELS;
  if (oc + CHANNELS > OC) clear_from(product.sum, OC - oc);  // infinity met a padded weight
  float channel_bias[CHANNELS], channel_dequant[CHANNELS], channel_scale[CHANNELS];
  UNROLL
  for (int v = 0; v < CHANNELS; v += 4) {
    const int from = oc < (OC + 63) / 64 * 64 ? oc + v : 0;
    unpack4(channel_bias + v, load4(bias + from));
    if (has_scale(ELEMENT)) unpack4(channel_dequant + v, load4(dequant + from));
    if (has_scale(OUT_ELEMENT)) unpack4(channel_scale + v, load4(out_scale + from));
  }
  const int first = tile.column0 + warp_column, mine = first + threadIdx.x % 4 * 2;
  const int last = min((first + 7) / tile.width, N - 1);
  const int row_stride = tile.width / WINDOW * pitch * element_nbytes(OUT_ELEMENT);
  const long long out_plane = static_cast<long long>(N) * (tile.height / WINDOW) * row_stride;
  unsigned magnitude[2 / WINDOW] = {};
  int image[2 / WINDOW];
  UNROLL
  for (int output = 0; output < 2 / WINDOW; output++) {
    const int n = (mine + output) / tile.width, w = mine + output - n * tile.width;
    const int rows = n < N && oc < pitch ? tile.height - tile.row0 : 0;
    const long long map_row = static_cast<long long>(n) * (tile.height / WINDOW) + tile.row0 / WINDOW;
    const long long index = (map_row * (tile.width / WINDOW) + w / WINDOW) * pitch + oc;
    char* target = static_cast<char*>(out) + element_nbytes(OUT_ELEMENT) * index;
    image[output] = n;
    UNROLL
    for (int r = 0; r < TILE_ROWS; r += WINDOW) {
      float value[CHANNELS];
      UNROLL
      for (int v = 0; v < CHANNELS; v++) {
        if constexpr (NBYTES == 1) {
          UNROLL
          for (int e = 0; e < WINDOW * WINDOW; e++) {
            const float x = finish(product.sum[r + e / WINDOW][v / 2][0][v % 2 * 2 + (POOL ? e % 2 : output)],
                                   channel_dequant[v], channel_bias[v], true, ACTIVATION(activation));
            value[v] = e == 0 ? x : max_nan(value[v], x);
          }
        } else {
          float most = product.sum[r][v / 2][0][v % 2 * 2 + (POOL ? 0 : output)];
          UNROLL
          for (int e = 1; e < WINDOW * WINDOW; e++)
            most = larger_or_nan(most, product.sum[r + e / WINDOW][v / 2][0][v % 2 * 2 + e % 2]);
          const float finished = IS_PAIR ? fmaf(most, channel_dequant[v], channel_bias[v]) : most + channel_bias[v];
          value[v] = activated(finished, ACTIVATION(activation));
        }
      }
      const PackedValues<OUT_ELEMENT, CHANNELS> packed(value, channel_scale);
      if (r < rows) {
        packed.store_planes(target, pitch - oc, out_plane);
        if constexpr (RECORDS) {
          UNROLL
          for (const unsigned word : packed.word) magnitude[output] = max2_magnitudes(magnitude[output], word);
        }
      }
      target += row_stride;
    }
  }
  if constexpr (RECORDS) {
    for (int n = first / tile.width; n <= last; n++) {  // the images of the warp's columns, nearly always one
      unsigned largest = 0;
      UNROLL
      for (int output = 0; output < 2 / WINDOW; output++)
        if (image[output] == n) largest = max2_magnitudes(largest, magnitude[output]);
      record_magnitudes(maxima + (long long)n * maxima_stride, largest);
    }
  }
}
