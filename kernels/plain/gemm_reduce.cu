// gemm_reduce: out[o] = bias[o] + sum over k of weight[o,k] * inp[k], then max(0, ...) if relu is not 0
// Layouts:  inp (K), weight (O,K), bias (O), out (O), float32: a fully connected layer for one picture.
// Mapping:  one block computes one output. Each of its 256 threads adds the products of k = t, t+256, t+512, ...; then the
//           256 sums are added in shared memory, in pairs: 128 threads, 64, 32, ... 1. Grid: O.
// Shared:   THREADS * 4 bytes, static.
// Cost:     2*K FLOP and 4*K bytes of weights per output. Every weight is read once and used once: memory decides.
// Sums:     chains of K/256 products, then a tree of 8 levels: more exact than one sum of K products.
// Edges:    any K, O. The block must have THREADS threads.
// Why:      the reduction that every CUDA course begins with. gemm/gemv.cu reads 16 bytes per load and keeps sums in
//           registers; gemm/gemm_splitk.cu shares each weight among several pictures.
#define THREADS 256

extern "C" __global__ void gemm_reduce(float* out, const float* inp, const float* weight, const float* bias, int K,
                                       int relu) {
  __shared__ float sums[THREADS];
  const int t = threadIdx.x, o = blockIdx.x;

  float sum = 0.0f;
  for (int k = t; k < K; k += THREADS) sum += weight[(size_t)o * K + k] * inp[k];
  sums[t] = sum;

  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();  // the sums that are read below are there
    if (t < half) sums[t] += sums[t + half];
  }

  if (t == 0) {
    const float value = sums[0] + bias[o];
    out[o] = relu && value < 0.0f ? 0.0f : value;  // fmaxf would turn NaN into 0
  }
}
