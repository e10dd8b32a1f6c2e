// settle: out[n,i] = NaN for an image n that the control words of a run that nobody waits for give no valid result; what
//       was wrong is noted for whoever asks later, and who needs a second pass for the kernels of that
// Layouts:  error: a word; status: one for each of `batch` images; maxima (watched, batch) floats. found: the operator
//           that gave up, then 2^32 - 1 - i for the first image i with NaN or Inf, then the same for a lost value; zero is
//           nothing, images count from `first`; then how many images needed a second pass. guard: whether any image needs
//           it, then the same of each of `batch` images. Of output k: walk row k has rows, columns and pitch of an image,
//           and the bytes of an element: 4 for float32, 2 for float16 and bfloat16; no columns where there is no such
//           output.
// Mapping:  grid (blocks, images); every thread reads the words of its image, which are few, and returns if all is well.
//           The first block writes `guard`, a thread for each image.
// Tiles:    none.
// Shared:   4 bytes; 256 threads.
// Cost:     no FLOP; watched + 2 words for each block where all is well, else the rows once.
// Edges:    a lost value is one above 65504, below `lowest`, or NaN. In an image that holds NaN or Inf these are no fault of
//           their own, but where values lie in pairs (`lowest` above 0): NaN spreads otherwise there than in float32, so
//           with allows_nonfinite such an image counts as lost. Where a second pass follows, what is lost is its affair.
// Why:      a run that returns at once cannot look; a wrong number must not look like a right one.
#include "early_start.cuh"
#include "walk.cuh"

constexpr int THREADS = 256;
constexpr float LARGEST_FLOAT16 = 65504.0f;

enum : int { GAVE_UP, NONFINITE, LOST, AGAIN };      // words of `found`
enum : int { ROWS, COLUMNS, PITCH, ELEMENT_BYTES };  // of a row of the walk
enum : int { NO_SECOND_PASS, SECOND_PASS, SECOND_PASS_HERE };  // what follows; the last where this launch says for whom

// The control words of a run.
struct Words {
  const int* error;
  const int* status;
  const float* maxima;
  int batch, watched, allows_nonfinite;
  float lowest;

  __device__ __forceinline__ bool refused(int n) const { return status[n] != 0 && !allows_nonfinite; }

  __device__ __forceinline__ bool lost(int n) const {
    if (status[n] != 0 && !(allows_nonfinite && lowest > 0)) return false;
    bool good = true;
    for (int i = 0; i < watched; i++) {
      const float largest = maxima[static_cast<long long>(i) * batch + n];
      good &= largest >= lowest && largest <= LARGEST_FLOAT16;  // false for NaN
    }
    return !good;
  }
};

__device__ __forceinline__ void note_needed(int* guard, unsigned* found, const Words& words, int images) {
  __shared__ int any;
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < words.batch; n += THREADS) {
    const bool needed = n < images && *words.error == 0 && words.lost(n);
    guard[1 + n] = needed;
    if (!needed) continue;
    atomicOr(&any, 1);
    atomicAdd(found + AGAIN, 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) guard[0] = any;
}

__device__ __forceinline__ void fill(void* out, int n, const int (&form)[RANK]) {
  const long long image = static_cast<long long>(n) * form[ROWS] * form[PITCH];
  const long long values = static_cast<long long>(form[ROWS]) * form[COLUMNS];
  for (long long i = blockIdx.x * THREADS + threadIdx.x; i < values; i += gridDim.x * THREADS) {
    const long long at = image + i / form[COLUMNS] * form[PITCH] + i % form[COLUMNS];
    if (form[ELEMENT_BYTES] == 4)
      static_cast<unsigned*>(out)[at] = 0x7fffffffu;
    else
      static_cast<unsigned short*>(out)[at] = 0x7fff;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
settle(unsigned* __restrict__ found, int* __restrict__ guard, const int* error, const int* status, const float* maxima,
       void* out0, void* out1, void* out2, void* out3, const Walk walk, int batch, int watched, int first,
       int allows_nonfinite, int follows, float lowest) {
  wait_for_previous_kernel();
  const int n = blockIdx.y;
  const Words words = {error, status, maxima, batch, watched, allows_nonfinite, lowest};
  if (follows == SECOND_PASS_HERE && n == 0 && blockIdx.x == 0) note_needed(guard, found, words, gridDim.y);
  const int gave_up = *words.error;
  const bool refused = words.refused(n);
  const bool lost = follows == NO_SECOND_PASS && words.lost(n);
  if (!gave_up && !refused && !lost) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const unsigned place = 0xffffffffu - static_cast<unsigned>(first + n);
    if (gave_up) atomicMax(found + GAVE_UP, static_cast<unsigned>(gave_up));
    if (refused) atomicMax(found + NONFINITE, place);
    if (lost) atomicMax(found + LOST, place);
  }
  void* const outputs[4] = {out0, out1, out2, out3};
  UNROLL
  for (int k = 0; k < 4; k++)
    if (walk.row[k][COLUMNS]) fill(outputs[k], n, walk.row[k]);
}
