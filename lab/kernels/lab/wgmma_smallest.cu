// wgmma_smallest: y[n,o,i,j] = sum over c, p, q of x[n,c,i+p-padding,j+q-padding] * weight[o,c,p,q], tensor cores
// Layouts:  x (N,C,H,W), weight (OC,C,KSIZE,KSIZE), y (N,OC,OH,OW), all float. wgmma_smallest_pack makes what the copy
//           engine takes, float16: pixels (N,H,W,CP) and filters (KSIZE*KSIZE,OCP,CP); CP and OCP are multiples of 64,
//           zeros where there is nothing.
// Mapping:  a block of 128 threads, a warpgroup: 64 output channels x 8x8 outputs. Grid (columns, rows, N*OCP/64).
// Tiles:    KSIZE (3). For each tap of the filter and each 64 channels two boxes come into shared memory, 64 filters
//           and 64 pixels of 64 channels (128 bytes), and four instructions multiply them, 64x64x16 products apiece.
// Shared:   16 KiB + 8 bytes; 128 threads.
// Cost:     2*C*KSIZE^2 FLOP per output. 16 KiB are copied for 262,144 products. One stage: the tensor cores wait for
//           every copy, the copy engine for every product. What is missing here is in kernels/conv/conv_wgmma.cu:
//           several stages, warps that only copy, larger tiles, a halo that is loaded once for all taps.
// Edges:    the copy engine reads what lies beside the image as zero, and that is the padding; stores are guarded.
// Teaches:  The smallest convolution with TMA and wgmma that runs: a tensor map for each operand, one barrier that
//           counts bytes, one thread that asks for copies, 128 that multiply. Compute capability 9.0 alone.
#include "hopper.cuh"

#ifndef KSIZE
#define KSIZE 3
#endif

constexpr int THREADS = 128;
constexpr int SIDE = 8;                    // outputs of a block in each direction
constexpr int CHANNELS = 64;               // of input in a box, of output in a block
constexpr int ROW = 2 * CHANNELS;          // bytes of a pixel, or of a filter's tap, in a box: a row of the swizzle
constexpr int BOX = 64 * ROW;              // bytes
constexpr int STEPS = CHANNELS / 16;       // an instruction takes 16 channels
constexpr int SUMS = SIDE * SIDE / 2;      // of a thread

// A thread for each number of pixels, then of filters.
extern "C" __global__ void wgmma_smallest_pack(uint16_t* pixels, uint16_t* filters, const float* x, const float* weight,
                                               int N, int C, int H, int W, int OC, int CP, int OCP) {
  const long long count = (long long)N * H * W * CP, taps = KSIZE * KSIZE;
  const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const int c = at % CP;
  if (at < count) {
    const long long pixel = at / CP, n = pixel / (H * W), place = pixel % (H * W);
    pixels[at] = half_bits(c < C ? x[(n * C + c) * H * W + place] : 0.f);
  } else if (at < count + taps * OCP * CP) {
    const long long row = (at - count) / CP, tap = row / OCP, o = row % OCP;  // count is a multiple of CP
    filters[at - count] = half_bits(c < C && o < OC ? weight[(o * C + c) * taps + tap] : 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    wgmma_smallest(const __grid_constant__ CUtensorMap pixels, const __grid_constant__ CUtensorMap filters, float* y,
                   int OC, int OH, int OW, int CP, int OCP, int padding) {
  __shared__ __align__(1024) char weights[BOX];  // 1024: the pattern of the swizzle begins there
  __shared__ __align__(1024) char values[BOX];
  __shared__ __align__(8) unsigned long long barrier;
  const uint32_t full = shared_address(&barrier);
  const int blocks = OCP / CHANNELS, n = blockIdx.z / blocks, oc = blockIdx.z % blocks * CHANNELS;
  const int top = blockIdx.y * SIDE, left = blockIdx.x * SIDE;
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init_fence();
  }
  __syncthreads();

  float sum[SUMS] = {};
  uint32_t parity = 0;
  for (int tap = 0; tap < KSIZE * KSIZE; tap++)
    for (int c = 0; c < CP; c += CHANNELS) {
      if (threadIdx.x == 0) {  // asks for both boxes; the barrier's phase ends when all their bytes are there
        barrier_arrive_expect(full, 2 * BOX);
        load_box(shared_address(weights), &filters, full, c, tap * OCP + oc);
        const int h = top + tap / KSIZE - padding, w = left + tap % KSIZE - padding;
        load_box(shared_address(values), &pixels, full, c, w, h, n);
      }
      for (int tries = 0; !barrier_try_wait(full, parity); tries++)
        if (tries == WAIT_TRIES) __trap();  // copies that do not come: an error, not a hang
      parity ^= 1;
      // Eight rows of 128 bytes follow each other, so the next eight are 1024 bytes further.
      const uint64_t a = matrix_descriptor(shared_address(weights), 8 * ROW, SWIZZLE_128B);
      const uint64_t b = matrix_descriptor(shared_address(values), 8 * ROW, SWIZZLE_128B);
      products_begin();
      UNROLL
      for (int k = 0; k < STEPS; k++)
        Wgmma<Fp16, SIDE * SIDE>::multiply(sum, a + descriptor_step(32 * k), b + descriptor_step(32 * k), 1);
      products_commit();
      products_wait<0>();
      pin(sum);
      __syncthreads();  // all four warps are done with the boxes: the next ones may come
    }

  // sum[4j + e]: output channel 16 * warp + lane / 4 (+ 8 from e = 2 on), pixel 8j + 2 * (lane % 4) + e % 2.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  UNROLL
  for (int i = 0; i < SUMS; i++) {
    const int o = oc + 16 * warp + lane / 4 + i % 4 / 2 * 8;
    const int oh = top + i / 4, ow = left + 2 * (lane % 4) + i % 2;
    if (o < OC && oh < OH && ow < OW) y[(((long long)n * OC + o) * OH + oh) * OW + ow] = sum[i];
  }
}
