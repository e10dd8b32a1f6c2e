// gemm_wgmma: out[n,o] = [activation](dequant[o] * sum_k inp[n,k] * weight[o,k] + bias[o]), products on tensor cores
// Layouts:  weight (OUT,K) row-major, inp (N,K), out (N,pitch); K, and pitch but for F32, multiples of 64; elements as
//           in wgmma_tile.cuh. Maps, innermost first: weight {K,OUT} box {128 bytes,128}; inp {K,N,planes} box {128
//           bytes,TILE_N,planes}; out {pitch,1,N,planes} box {64,1,TILE_N,1}; swizzle 128B, 64B for an 8-bit out.
//           OUTPUT 0 goes to y (N,pitch) instead. bias, dequant, out_scale, row_scale (pitch) float, padding zero.
//           workspace: 128*TILE_N sums a block; counters: 2 for each x and y of the grid, zero before the first run.
// Mapping:  blockIdx.x: TILE_N images, .y: 128 outputs, .z: a part of K. wgmma's rows are outputs, its columns images.
//           One producer thread fills a ring by TMA, two warpgroups multiply, 64 outputs each. Every part puts its sums
//           into the workspace; the last of a tile to arrive adds all in order of blockIdx.z and finishes.
// Tiles:    WEIGHT (1), INPUT (1), OUTPUT (1): elements, INPUT 3 with WEIGHT 0, 1 with 1, 2 with 2, 4 or 5 with 5,
//           OUTPUT 0 or of INPUT's width; TILE_N (16): 16, 32, 64, 128; TILE_K (64): boxes, WEIGHT 0 to 128; STAGES (6)
// Shared:   1024 + STAGES*TILE_K*(128*weight + TILE_N*planes*input bytes), dynamic; 384 threads.
// Cost:     2*N*OUT*K FLOP, four or five times that for WEIGHT 0; weights are read ceil(N/TILE_N), inputs OUT/128 times.
// Sums:     WEIGHT 0: weight * row_scale (a power of two) is split into hi and lo, and the rest up to 32 images; hi*hi
//           is one sum, all else another; parts of at most 8192 products keep the error under 3e-7. 8 bit: int32, exact
//           for K <= 65536. The bits depend on K, TILE_N, TILE_K and gridDim.z alone.
// Edges:    any N and OUT: TMA reads zeros outside of the tensors and writes nothing there.
// Why:      few images use each weight once: the ring keeps memory busy, the parts of K keep every multiprocessor busy.
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
#ifndef TILE_N
#define TILE_N 16
#endif
#ifndef TILE_K
#define TILE_K 64
#endif
#ifndef STAGES
#define STAGES 6
#endif

template <int ELEMENT> constexpr int BYTES = ELEMENT == F32 ? 4 : (ELEMENT >= U8 ? 1 : 2);

constexpr bool SPLIT = WEIGHT == F32;  // float32 weights become float16 parts
constexpr int PLANES = Stored<INPUT>::PLANES, COLUMNS = TILE_N / 8;
constexpr int ROWS = 64, BOX_ROW = 128;  // outputs of a warpgroup; bytes of a box along K
constexpr int WEIGHT_BOX = 2 * ROWS * BOX_ROW, INPUT_BOX = PLANES * TILE_N * BOX_ROW;
constexpr int WEIGHT_BOXES = TILE_K * BYTES<WEIGHT> / BOX_ROW, INPUT_BOXES = TILE_K * BYTES<INPUT> / BOX_ROW;
constexpr int INPUTS_AT = WEIGHT_BOXES * WEIGHT_BOX, STAGE_BYTES = INPUTS_AT + INPUT_BOXES * INPUT_BOX;
constexpr int CONSUMERS = 256, PARTS_AT_ONCE = 128 / TILE_N;  // 32 loads of a thread are under way when parts are added
typedef Stored<INPUT>::Operands Operands;
typedef Stored<INPUT>::Sum Sum;

// As far as registers go: weights in three parts, which is all of a float32, and hi*hi leaves the tensor cores after
// each 16 products instead of after each stage.
constexpr bool FINE = TILE_N <= 32;
constexpr int WEIGHT_PARTS = FINE ? 3 : 2, GROUP_STAGES = 8;
static_assert(WEIGHT == (INPUT == F16_PAIR ? F32 : INPUT == U8 ? S8 : INPUT), "products that the tensor cores know");
static_assert(TILE_K * BYTES<INPUT> % BOX_ROW == 0, "a stage holds whole boxes");
static_assert(STAGES >= 2, "a stage is given back when the next one is under way");
static_assert(!SPLIT || TILE_K <= 128, "longer sums in the tensor cores lose float32's accuracy");
static_assert(OUTPUT == F32 || BYTES<OUTPUT> == BYTES<INPUT>, "8-bit sums are finished as 8 bits, others as 16");

// The ring: a stage is full when its bytes have come, empty when the eight consumer warps have read it.
struct Ring {
  unsigned char* data;  // aligned to 1024 bytes, as swizzled tiles have to be
  uint32_t address, full, empty;

  DEVICE uint32_t stage(int i) const { return address + i * STAGE_BYTES; }
};
// The part of the sum that this block takes: stages of TILE_K, `first` to `first + count`.
struct Part { int first, count; };

DEVICE void produce(const Ring& ring, const CUtensorMap* weight, const CUtensorMap* inp, const Part& part,
                    const Watch& watch) {
  const auto load_weights = [&](int i, int step) {
    barrier_arrive_expect(ring.full + 8 * i, STAGE_BYTES);
    UNROLL
    for (int b = 0; b < WEIGHT_BOXES; b++)
      load_box_leaving_first(ring.stage(i) + b * WEIGHT_BOX, weight, ring.full + 8 * i,
                             (part.first + step) * TILE_K + b * (BOX_ROW / BYTES<WEIGHT>), blockIdx.y * 2 * ROWS);
  };
  const int ahead = min(part.count, STAGES);
  for (int i = 0; i < ahead; i++) load_weights(i, i);
  wait_for_previous_kernel();  // the weights were there before it
  RingPlace<STAGES> place;
  for (int step = 0; step < part.count; step++, place.advance()) {
    if (step >= ahead) {
      barrier_wait(ring.empty + 8 * place.stage, place.parity ^ 1, watch);
      if (watch.lost) return;
      load_weights(place.stage, step);
    }
    UNROLL
    for (int b = 0; b < INPUT_BOXES; b++)
      load_box(ring.stage(place.stage) + INPUTS_AT + b * INPUT_BOX, inp, ring.full + 8 * place.stage,
               (part.first + step) * TILE_K + b * (BOX_ROW / BYTES<INPUT>), blockIdx.x * TILE_N, 0);
  }
}

// Which of its warpgroup's rows a thread's first one is (the second: 8 further on). Float32 weights are taken in an
// order in which the lanes that read together meet different banks.
DEVICE int row_of_sum() {
  const int row = threadIdx.x % 32 / 4;
  return threadIdx.x % 128 / 32 * 16 + (SPLIT ? row % 4 * 2 + row / 4 : row);
}

// Both operands from shared memory.
DEVICE void multiply(Sum (&sum)[TILE_N / 2], const Ring& ring, int steps, const Watch& watch) {
  const int first_row = threadIdx.x / 128 * ROWS;
  RingPlace<STAGES> place;
  for (int step = 0; step < steps; step++) {
    barrier_wait(ring.full + 8 * place.stage, place.parity, watch);
    const uint32_t stage = ring.stage(place.stage);
    const uint64_t a = matrix_descriptor(stage + first_row * BOX_ROW, 8 * BOX_ROW, SWIZZLE_128B);
    const uint64_t b = matrix_descriptor(stage + INPUTS_AT, 8 * BOX_ROW, SWIZZLE_128B);
    products_begin();
    UNROLL
    for (int q = 0; q < INPUT_BOXES * 4; q++)  // 32 bytes along K
      Wgmma<Operands, TILE_N>::multiply(sum, a + descriptor_step(q / 4 * WEIGHT_BOX + q % 4 * 32),
                                        b + descriptor_step(q / 4 * INPUT_BOX + q % 4 * 32), 1);
    products_commit();
    products_wait<1>();  // the stage before has been read
    if (step > 0 && threadIdx.x % 32 == 0 && !watch.lost)
      barrier_arrive(ring.empty + 8 * ((place.stage + STAGES - 1) % STAGES));
    place.advance();
  }
  products_wait<0>();
  pin(sum);
}

// wgmma's operand from 16 columns of float32 weights: weight * scale as float16 parts, each what the others leave.
struct Fragment {
  uint32_t part[WEIGHT_PARTS][4];

  // Columns from 16 * q on of a stage, from the thread's rows; `turn` is what the swizzle does to a piece of 16 bytes.
  DEVICE void load(const unsigned char* row, int q, int turn, const float (&scale)[2]) {
    UNROLL
    for (int i = 0; i < 4; i++) {
      const int piece = q % 2 * 4 + i / 2 * 2;
      const float2 v =
          *reinterpret_cast<const float2*>(row + q / 2 * WEIGHT_BOX + i % 2 * 8 * BOX_ROW + ((piece ^ turn) * 16));
      float a = v.x * scale[i % 2], b = v.y * scale[i % 2];
      UNROLL
      for (int p = 0; p < WEIGHT_PARTS; p++) {
        const Half2 taken = nearest_half2(a, b);
        part[p][i] = taken.bits;
        a -= low_of(taken), b -= high_of(taken);
      }
    }
  }

  // Products read registers while the thread goes on: the compiler may use these for something else only from here on.
  DEVICE void keep() {
    UNROLL
    for (int p = 0; p < WEIGHT_PARTS; p++) pin(part[p]);
  }
};

// Adds the sums of finished products; the compiler may not read them before.
template <class T>
DEVICE void promote(T (&sum)[TILE_N / 2], float (&products)[TILE_N / 2]) {
  pin(products);
  UNROLL
  for (int i = 0; i < TILE_N / 2; i++) sum[i] += products[i];
}

// Adds one level of sums to the next and clears it.
template <class T>
DEVICE void carry(T (&sum)[TILE_N / 2], float (&part)[TILE_N / 2]) {
  UNROLL
  for (int i = 0; i < TILE_N / 2; i++) sum[i] += part[i], part[i] = 0.0f;
}

// Float32 weights through registers. While one fragment is multiplied the next is made in other registers. The tensor
// cores cut what they add at the largest term, always towards zero: hi*hi leaves them after 16 products, or a stage,
// and is added here, stage by stage, group of stages by group: no chain of additions is long.
DEVICE void multiply_split(Sum (&sum)[TILE_N / 2], const Ring& ring, int steps, const float (&scale)[2],
                           const Watch& watch) {
  const int row = threadIdx.x / 128 * ROWS + row_of_sum(), column = threadIdx.x % 4;
  const int row_at = row * BOX_ROW + column % 2 * 8, turn = column / 2 ^ row % 8;
  constexpr int COUNT = TILE_K / 16, BUFFERS = FINE ? 2 : 1;
  float low[TILE_N / 2] = {}, stage[TILE_N / 2] = {}, group[TILE_N / 2] = {}, high[BUFFERS][TILE_N / 2];
  RingPlace<STAGES> place;
  for (int step = 0; step < steps; step++) {
    barrier_wait(ring.full + 8 * place.stage, place.parity, watch);
    const unsigned char* weights = ring.data + place.stage * STAGE_BYTES + row_at;
    const uint64_t inputs = matrix_descriptor(ring.stage(place.stage) + INPUTS_AT, 8 * BOX_ROW, SWIZZLE_128B);
    Fragment fragment[2];
    UNROLL
    for (int q = 0; q < COUNT; q++) {
      Fragment& now = fragment[q % 2];
      now.load(weights, q, turn, scale);
      const uint64_t x_hi = inputs + descriptor_step(q / 4 * INPUT_BOX + q % 4 * 32);
      const uint64_t x_lo = x_hi + descriptor_step(TILE_N * BOX_ROW);
      products_begin();
      WgmmaFromRegisters<TILE_N>::multiply(low, now.part[1], x_lo, 1);
      if constexpr (FINE) WgmmaFromRegisters<TILE_N>::multiply(low, now.part[2], x_hi, 1);
      WgmmaFromRegisters<TILE_N>::multiply(low, now.part[1], x_hi, 1);
      WgmmaFromRegisters<TILE_N>::multiply(low, now.part[0], x_lo, 1);
      WgmmaFromRegisters<TILE_N>::multiply(high[q % BUFFERS], now.part[0], x_hi, FINE ? 0 : q > 0);
      products_commit();
      if (q + 1 < COUNT)
        products_wait<1>();
      else
        products_wait<0>();
      if (q > 0) {
        fragment[(q - 1) % 2].keep();
        if constexpr (FINE) promote(stage, high[(q - 1) % BUFFERS]);
      }
    }
    fragment[(COUNT - 1) % 2].keep();
    if constexpr (FINE)
      promote(stage, high[(COUNT - 1) % BUFFERS]);
    else
      promote(sum, high[0]);
    if (threadIdx.x % 32 == 0 && !watch.lost) barrier_arrive(ring.empty + 8 * place.stage);
    if constexpr (FINE) {
      carry(group, stage);
      if (step % GROUP_STAGES == GROUP_STAGES - 1 || step == steps - 1) carry(sum, group);
    }
    place.advance();
  }
  promote(sum, low);
}

DEVICE void store_pair(float* target, float a, float b) {
  __stcg(reinterpret_cast<float2*>(target), make_float2(a, b));
}
DEVICE void store_pair(int* target, int a, int b) { __stcg(reinterpret_cast<int2*>(target), make_int2(a, b)); }

DEVICE float2 load_pair(const float* source) { return __ldcg(reinterpret_cast<const float2*>(source)); }
DEVICE int2 load_pair(const int* source) { return __ldcg(reinterpret_cast<const int2*>(source)); }

// Which output of the warpgroup's 64 a thread finishes as its number h: neighbours for bytes, see Finish.
DEVICE int row_to_finish(int h) {
  const int row = threadIdx.x % 32 / 4;
  return threadIdx.x % 128 / 32 * 16 + (BYTES<OUTPUT> == 1 ? 2 * row + h : row + 8 * h);
}

// Adds the parts of K of this warpgroup's outputs, through the workspace (part, column of 8 images, output, image).
// True in the last block to arrive, which then has the whole sums, in the order that finishing wants.
DEVICE bool add_parts(Sum (&sum)[TILE_N / 2], Sum* workspace, unsigned* counters) {
  __shared__ unsigned arrived[2];
  const int group = threadIdx.x / 128, pixel = threadIdx.x % 4 * 2, parts = gridDim.z;
  const int tile = (blockIdx.y * gridDim.x + blockIdx.x) * 2 + group;
  Sum* const first = workspace + static_cast<long long>(tile) * parts * ROWS * TILE_N + pixel;
  Sum* const own = first + blockIdx.z * ROWS * TILE_N;
  UNROLL
  for (int i = 0; i < COLUMNS * 2; i++)
    store_pair(own + (i / 2 * ROWS + row_of_sum() + i % 2 * 8) * 8, sum[2 * i], sum[2 * i + 1]);
  __threadfence();
  named_barrier(1 + group, 128);  // the whole warpgroup's sums are in the workspace
  if (threadIdx.x % 128 == 0) arrived[group] = atomicInc(counters + tile, parts - 1);  // the last one makes it 0 again
  named_barrier(1 + group, 128);                                                       // everybody may know
  if (arrived[group] != parts - 1) return false;
  __threadfence();
  UNROLL
  for (int i = 0; i < TILE_N / 2; i++) sum[i] = 0;
#pragma unroll PARTS_AT_ONCE
  for (int part = 0; part < parts; part++) {
    const Sum* const source = first + part * ROWS * TILE_N;
    UNROLL
    for (int i = 0; i < COLUMNS * 2; i++) {
      const auto pair = load_pair(source + (i / 2 * ROWS + row_to_finish(i % 2)) * 8);
      sum[2 * i] += pair.x, sum[2 * i + 1] += pair.y;
    }
  }
  return true;
}

// Where the sums of a warpgroup go and how they are finished; `row` is the first of its outputs.
struct Output {
  const CUtensorMap* map;
  float* y;
  const float *bias, *dequant, *scale;
  unsigned* maxima;
  int row, N, pitch, maxima_stride;
  Activation activation;
};

// Float32 outputs, a value at a time: they are the network's scores, few.
DEVICE void store_f32(const Sum (&sum)[TILE_N / 2], const Output& out) {
  UNROLL
  for (int h = 0; h < 2; h++) {
    const int o = out.row + row_to_finish(h);
    if (o >= out.pitch) continue;
    const float scale = out.dequant ? __ldg(out.dequant + o) : 1.0f, shift = __ldg(out.bias + o);
    UNROLL
    for (int i = 0; i < COLUMNS * 2; i++) {
      const int n = blockIdx.x * TILE_N + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const float v = fmaf(static_cast<float>(sum[i / 2 * 4 + h * 2 + i % 2]), scale, shift);
      if (n < out.N) out.y[static_cast<long long>(n) * out.pitch + o] = out.activation(v);
    }
  }
}

// One magnitude an image and warp: lanes 4 apart have the same images.
DEVICE void record_images(uint32_t (&largest)[COLUMNS], const Output& out) {
  const int lane = threadIdx.x % 32;
  UNROLL
  for (int c = 0; c < COLUMNS; c++) {
    UNROLL
    for (int distance = 4; distance < 32; distance *= 2)
      largest[c] = larger_magnitudes(largest[c], __shfl_xor_sync(0xffffffffu, largest[c], distance));
    const int n = blockIdx.x * TILE_N + 8 * c + lane % 4 * 2 + lane / 4;
    const float magnitude = lane < 4 ? low_of(Half2{largest[c]}) : high_of(Half2{largest[c]});
    if (lane < 8 && n < out.N)
      atomicMax(out.maxima + static_cast<long long>(n) * out.maxima_stride, __float_as_uint(magnitude));
  }
}

// Through shared memory to the tensor, whose map drops what lies beyond its images and outputs.
template <int STORED>
DEVICE void store_tile(const Sum (&sum)[TILE_N / 2], const Output& out, uint32_t staging) {
  typedef StagedTile<STORED, COLUMNS, false> Tile;
  static_assert(2 * Tile::BYTES <= STAGES * STAGE_BYTES, "the tiles are staged in the ring");
  const int group = threadIdx.x / 128;
  const uint32_t staged = staging + group * Tile::BYTES;
  const Finish<STORED> finish(out.bias + out.row, out.dequant + out.row, out.scale + out.row, out.activation);
  uint32_t largest[COLUMNS] = {};
  stage_tile<STORED, COLUMNS, false>(sum, finish, staged, [&](int column, uint32_t items) {
    largest[column] = larger_magnitudes(largest[column], items);
  });
  shared_writes_to_async();
  named_barrier(1 + group, 128);  // the tile is staged
  if (threadIdx.x % 128 == 0) {
    UNROLL
    for (int plane = 0; plane < Stored<STORED>::PLANES; plane++)
      store_box(out.map, staged + plane * Tile::PLANE_BYTES, out.row, 0, blockIdx.x * TILE_N, plane);
    store_commit();
  }
  if constexpr (Stored<STORED>::RECORDED) record_images(largest, out);
  if (threadIdx.x % 128 == 0) store_wait();
}

template <int STORED>
DEVICE void finish_tile(const Sum (&sum)[TILE_N / 2], const Output& out, uint32_t staging) {
  if constexpr (STORED == F32)
    store_f32(sum, out);
  else
    store_tile<STORED>(sum, out, staging);
}

extern "C" __global__ void __launch_bounds__(384, 1) gemm_wgmma(
    const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap inp,
    const __grid_constant__ CUtensorMap out, float* y, const float* bias, const float* dequant, const float* out_scale,
    const float* row_scale, float4* workspace, unsigned* counters, unsigned* maxima, int* error, int step, int N, int K,
    int pitch, int maxima_stride, ACTIVATION_PARAMETER(activation) TIMELINE_PARAMETER) {
  TIMED(if (threadIdx.x == 0) STAMP(BEGUN);)
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * STAGES];
  const Watch watch{error, step};
  const uint32_t unaligned = shared_address(shared), address = (unaligned + 1023) & ~1023u;
  const Ring ring{shared + (address - unaligned), address, shared_address(barriers), shared_address(barriers + STAGES)};
  const int steps = (K + TILE_K - 1) / TILE_K, first = static_cast<long long>(steps) * blockIdx.z / gridDim.z;
  const Part part{first, static_cast<int>(static_cast<long long>(steps) * (blockIdx.z + 1) / gridDim.z) - first};
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, CONSUMERS / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();  // the barriers are ready
  if (threadIdx.x >= CONSUMERS) {
    give_registers<24>();
    if (threadIdx.x == CONSUMERS) produce(ring, &weight, &inp, part, watch);
    return;
  }
  take_registers<240>();
  Sum sum[TILE_N / 2] = {};
  TIMED(if (threadIdx.x == 0) barrier_wait(ring.full, 0, watch), STAMP(OPERANDS);)
  const int row = blockIdx.y * 2 * ROWS + threadIdx.x / 128 * ROWS;
  if constexpr (SPLIT) {
    const int mine = row + row_of_sum();
    const float scale[2] = {mine < pitch ? row_scale[mine] : 0.0f, mine + 8 < pitch ? row_scale[mine + 8] : 0.0f};
    multiply_split(sum, ring, part.count, scale, watch);
  } else {
    multiply(sum, ring, part.count, watch);
  }
  TIMED(if (threadIdx.x == 0) STAMP(SUMS_READY);)
  wait_for_previous_kernel();   // it may use the same workspace
  named_barrier(3, CONSUMERS);  // both warpgroups have read the ring
  const bool finishes = row < pitch && add_parts(sum, reinterpret_cast<Sum*>(workspace), counters);
  TIMED(if (threadIdx.x == 0) STAMP(finishes ? EXCHANGED : DONE);)
  if (!finishes) return;
  const Output output{&out, y, bias, dequant, out_scale, maxima, row, N, pitch, maxima_stride, ACTIVATION(activation)};
  finish_tile<OUTPUT>(sum, output, ring.address);
  TIMED(if (threadIdx.x == 0) STAMP(DONE);)
}
