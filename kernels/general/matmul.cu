// matmul_f32: out[batch,m,n] = alpha * (sum over k of a[batch,m,k] * b[batch,k,n]) + beta * c[batch,m,n]
// Layouts:  float; every dimension of a, b, c and out has a stride of its own, which is 0 where an operand is repeated
//           (transposed, broadcast and padded matrices are strides). Rows of `batch`: 0 extents and 1 limits of out, 2
//           strides of out, 3 of a, 4 of b, 5 of c.
// Mapping:  block: 32 rows x 32 columns of one product. Thread: 4 rows of a column; a warp writes 32 columns. The tile
//           of an operand is fetched along the dimension that is contiguous.
// Tiles:    none.
// Shared:   8832 bytes; 256 threads.
// Cost:     2*M*N*K FLOP for each product; global reads: 2/32 floats per product of two numbers. Shared reads of a
//           thread: 20 bytes per 4 FFMA.
// Sums:     groups of 288 products. A group is one FFMA chain from zero; group sums are added in order. The bits depend
//           on K alone, never on layouts or the batch.
// Edges:    any M, N, K, also 0 for K, any batch; what lies beyond is loaded as zero. `rows` >= M, `columns` >= N and
//           extents >= limits are what is stored: the excess becomes zero. Without c (has_c 0) nothing is added.
// Why:      products that no weights take part in, or weights that are known at run time alone; one simple kernel for
//           all ranks, transposes and layouts.
#include "walk.cuh"

constexpr int TILE = 32;        // rows, columns, and length of the piece of the reduction in shared memory
constexpr int THREAD_ROWS = 4;  // one 16-byte read of shared memory
constexpr int WARPS = TILE / THREAD_ROWS;
constexpr int THREADS = TILE * WARPS;
constexpr int GROUP_TILES = 9;
constexpr int PITCH_A = TILE + 4;  // 16-byte reads of neighbouring rows stay aligned
constexpr int PITCH_B = TILE + 1;  // stores along k go to different banks

enum Row { EXTENT, LIMIT, OUT, A, B, C };  // of `batch`

// Fetches a piece of a matrix; what lies beyond K and `count` is zero.
template <int PITCH>
__device__ __forceinline__ void load_tile(float (&tile)[TILE][PITCH], const float* source, int k0, int K, int first,
                                          int count, int stride_k, int stride) {
  const bool along_k = stride_k == 1;
  UNROLL
  for (int i = 0; i < TILE / WARPS; i++) {
    const int fast = threadIdx.x % TILE, slow = threadIdx.x / TILE + i * WARPS;
    const int k = along_k ? fast : slow, other = along_k ? slow : fast;
    const bool valid = k0 + k < K && first + other < count;
    tile[k][other] = valid ? source[(k0 + k) * stride_k + (first + other) * stride] : 0.f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) matmul_f32(float* __restrict__ out, const float* __restrict__ a,
                                                                 const float* __restrict__ b,
                                                                 const float* __restrict__ c, const Walk batch, int M,
                                                                 int N, int K, int rows, int columns, int out_m,
                                                                 int out_n, int a_m, int a_k, int b_k, int b_n, int c_m,
                                                                 int c_n, float alpha, float beta,
                                                                 int has_c GUARD_PARAMETERS) {
  RETURN_UNLESS_NEEDED();
  __shared__ __align__(16) float a_tile[TILE][PITCH_A];
  __shared__ float b_tile[TILE][PITCH_B];
  const int tiles_m = (rows + TILE - 1) / TILE, tiles_n = (columns + TILE - 1) / TILE;
  const int n0 = blockIdx.x % tiles_n * TILE, m0 = blockIdx.x / tiles_n % tiles_m * TILE;
  int index[RANK];
  indices_of(blockIdx.x / tiles_n / tiles_m, batch.row[EXTENT], index);
  bool real = true;  // false: padding, which is neither read nor computed
  UNROLL
  for (int d = 0; d < RANK; d++) real = real && index[d] < batch.row[LIMIT][d];
  const int depth = real ? K : 0;
  a += real ? offset_of(index, batch.row[A]) : 0;
  b += real ? offset_of(index, batch.row[B]) : 0;
  c += real ? offset_of(index, batch.row[C]) : 0;
  out += offset_of(index, batch.row[OUT]);

  const int column = threadIdx.x % TILE, row = threadIdx.x / TILE * THREAD_ROWS;
  float sum[THREAD_ROWS] = {}, total[THREAD_ROWS] = {};
  int left_in_group = GROUP_TILES;
  for (int k0 = 0; k0 < depth; k0 += TILE) {
    __syncthreads();  // the tiles before have been read
    load_tile(a_tile, a, k0, K, m0, M, a_k, a_m);
    load_tile(b_tile, b, k0, K, n0, N, b_k, b_n);
    __syncthreads();  // all threads have written
    UNROLL
    for (int k = 0; k < TILE; k++) {
      float left[THREAD_ROWS];
      unpack4(left, load4(&a_tile[k][row]));
      const float right = b_tile[k][column];
      LANES
      for (int i = 0; i < THREAD_ROWS; i++) sum[i] = fmaf(left[i], right, sum[i]);
    }
    if (--left_in_group > 0 && k0 + TILE < depth) continue;
    UNROLL
    for (int i = 0; i < THREAD_ROWS; i++) {
      total[i] += sum[i];
      sum[i] = 0.f;
    }
    left_in_group = GROUP_TILES;
  }

  const int n = n0 + column;
  UNROLL
  for (int i = 0; i < THREAD_ROWS; i++) {
    const int m = m0 + row + i;
    if (m >= rows || n >= columns) continue;
    float v = alpha * total[i];
    const bool stored = real && m < M && n < N;
    if (has_c && stored) v = fmaf(beta, c[m * c_m + n * c_n], v);
    out[(long long)m * out_m + (long long)n * out_n] = stored ? v : 0.f;
  }
}
