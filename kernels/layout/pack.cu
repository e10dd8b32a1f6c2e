// pack_conv_f32: out[kh*KW+kw,c,oc] = inp[oc,c,kh,kw].   pack_gemm_f32: out[o,h,w,c] = inp[o,c,h,w], both zero in the
//                 padding
// Layouts:  conv: inp (OC,C,TAPS) float as ONNX stores it, out (rows,OCP) float, rows >= TAPS*CP. gemm: inp
//           (rows,C,HW), out (rows,HW,CP). CP and OCP are C and OC rounded up to 4; TAPS = KH*KW.
// Mapping:  one thread per element of out.
// Tiles:    none.
// Shared:   none; 256 threads.
// Cost:     no FLOP; runs once per engine. Strided reads come from the cache.
// Edges:    any size. gemm packs a slab of rows at a time, so that the staging buffer stays small.
// Why:      weights go to the device as they lie in the file and are brought into the kernels' order there.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
pack_conv_f32(float* __restrict__ out, const float* __restrict__ inp, int rows, int OC, int OCP, int C, int CP,
              int TAPS) {
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= (long long)rows * OCP) return;
  const int oc = index % OCP, c = index / OCP % CP, tap = index / OCP / CP;
  out[index] = oc < OC && c < C && tap < TAPS ? inp[((long long)oc * C + c) * TAPS + tap] : 0.f;
}

extern "C" __global__ void __launch_bounds__(256)
pack_gemm_f32(float* __restrict__ out, const float* __restrict__ inp, int rows, int C, int CP, int HW) {
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= (long long)rows * HW * CP) return;
  const int c = index % CP;
  const long long pixel = index / CP;  // row * HW + hw
  out[index] = c < C ? inp[(pixel / HW * C + c) * HW + pixel % HW] : 0.f;
}
