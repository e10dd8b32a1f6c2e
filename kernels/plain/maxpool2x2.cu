// maxpool2x2: out[c,y,x] = the largest of inp[c, 2y..2y+1, 2x..2x+1]
// Layouts:  inp (C,H,W), out (C,H/2,W/2), float32.
// Mapping:  one thread computes one output. A block computes 32x8 pixels of one channel.
//           Grid: (ceil(W/2/32), ceil(H/2/8), C).
// Shared:   none: no two outputs read the same value.
// Cost:     per output four loads and one store, three comparisons. Memory decides.
// Edges:    any C, H, W; of an odd H or W the last row or column is in no window.
// Why:      a pool as its formula says it. The engine's convolutions write pooled maps; the full ones reach no memory.

// Return the larger value, or NaN if one is NaN; fmaxf would drop it.
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }

extern "C" __global__ void maxpool2x2(float* out, const float* inp, int H, int W) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int c = blockIdx.z;
  if (x >= W / 2 || y >= H / 2) return;

  const float* upper = inp + ((size_t)c * H + 2 * y) * W + 2 * x;
  const float* lower = upper + W;
  out[((size_t)c * (H / 2) + y) * (W / 2) + x] = larger(larger(upper[0], upper[1]), larger(lower[0], lower[1]));
}
