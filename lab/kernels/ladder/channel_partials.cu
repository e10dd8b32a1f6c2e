// conv_partials_f32: out[oc,c,oh,ow] = sum over kh, kw of inp[c, oh*SH+kh, ow*SW+kw] * weight[oc,c,kh,kw]
// gemm_partials_f32: out[o,t] = sum over k = t, t+T, ... of inp[k] * weight[o,k], T the threads of a block
// Layouts:  inp (C,H,W), padded by the host, so no test; weight (OC,C,KH,KW), (OUT,K); float. The host adds over c, t.
// Mapping:  conv: block: an output channel; thread: an input channel (then c + T, ...), all pixels one after the other.
//           gemm: block: an output; thread: every T-th product.
// Cost:     2*KH*KW FLOP and 2*KH*KW loads for each number stored; OC*C*OH*OW numbers are stored, C times the map.
//           Lanes of a warp read maps that lie H*W floats apart: 32 transactions a load.
// Teaches:  products in parallel are no GPU program yet: 64 to 512 blocks of few threads, every load alone in its
//           transaction, and for a VGG16 6.8 GB of partial sums that go to the host to be added.
#include "common.cuh"

extern "C" __global__ void conv_partials_f32(float* __restrict__ out, const float* __restrict__ inp,
                                             const float* __restrict__ weight, int C, int H, int W, int OH, int OW,
                                             int KH, int KW, int SH, int SW) {
  const int oc = blockIdx.x;
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    const long long plane = (long long)oc * C + c;
    const float* x = inp + (long long)c * H * W;
    const float* w = weight + plane * KH * KW;
    float* y = out + plane * OH * OW;
    for (int oh = 0; oh < OH; oh++)
      for (int ow = 0; ow < OW; ow++) {
        float sum = 0.f;
        for (int kh = 0; kh < KH; kh++)
          for (int kw = 0; kw < KW; kw++) sum = fmaf(x[(oh * SH + kh) * W + ow * SW + kw], w[kh * KW + kw], sum);
        y[oh * OW + ow] = sum;
      }
  }
}

extern "C" __global__ void gemm_partials_f32(float* __restrict__ out, const float* __restrict__ inp,
                                             const float* __restrict__ weight, int K) {
  const float* w = weight + (long long)blockIdx.x * K;
  float sum = 0.f;
  for (int k = threadIdx.x; k < K; k += blockDim.x) sum = fmaf(inp[k], w[k], sum);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
