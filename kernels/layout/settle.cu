// settle: out[n,i] = NaN for an image n that the control words of a run that nobody waits for give no valid result; what
//       was wrong is noted for whoever asks later
// Layouts:  error: a word; status: one for each of `batch` images; maxima (watched, batch) floats. found: the operator
//           that gave up, then 2^32 - 1 - i for the first image i with NaN or Inf, then the same for a lost value; zero is
//           nothing, images count from `first`. Of output k: walk row k has rows, columns and pitch of an image, and the
//           bytes of an element: 4 for float32, 2 for float16 and bfloat16; no columns where there is no such output.
// Mapping:  grid (blocks, images); every thread reads the words of its image, which are few, and returns if all is well.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     no FLOP; watched + 2 words for each block where all is well, else the rows once.
// Edges:    a lost value is one above 65504, below `lowest`, or NaN. In an image that holds NaN or Inf these are no fault of
//           their own, but where values lie in pairs (`lowest` above 0): NaN spreads otherwise there than in float32, so
//           with allows_nonfinite such an image counts as lost.
// Why:      a run that returns at once cannot look; a wrong number must not look like a right one.
#include "walk.cuh"

constexpr int THREADS = 256;
constexpr float LARGEST_FLOAT16 = 65504.0f;

enum : int { GAVE_UP, NONFINITE, LOST };          // words of `found`
enum : int { ROWS, COLUMNS, PITCH, ELEMENT_BYTES };  // of a row of the walk

// The control words of a run.
struct Words {
  const int* error;
  const int* status;
  const float* maxima;
  int batch, watched;
  float lowest;

  __device__ __forceinline__ bool lost(int n) const {
    bool good = true;
    for (int i = 0; i < watched; i++) {
      const float largest = maxima[static_cast<long long>(i) * batch + n];
      good &= largest >= lowest && largest <= LARGEST_FLOAT16;  // false for NaN
    }
    return !good;
  }
};

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
settle(unsigned* __restrict__ found, const int* __restrict__ error, const int* __restrict__ status,
       const float* __restrict__ maxima, void* out0, void* out1, void* out2, void* out3, const Walk walk, int batch,
       int watched, int first, int allows_nonfinite, float lowest) {
  const int n = blockIdx.y;
  const Words words = {error, status, maxima, batch, watched, lowest};
  const int gave_up = *words.error;
  const bool nonfinite = words.status[n] != 0;
  const bool refused = nonfinite && !allows_nonfinite;
  const bool lost = !refused && (!nonfinite || lowest > 0) && words.lost(n);
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
