// conv3x3_relu: out[o,y,x] = max(0, bias[o] + sum over c, i, j of inp[c, y+i-1, x+j-1] * weight[o,c,i,j])
// Layouts:  inp (C,H,W), weight (O,C,3,3), bias (O), out (O,H,W), float32. Around the map lies one row of zeros (padding 1).
// Mapping:  one thread computes one output. A block computes 32x8 pixels of one channel: threadIdx.x counts columns, so the
//           32 threads of a warp read 32 neighbours of a row at once. Grid: (ceil(W/32), ceil(H/8), O).
// Shared:   none.
// Cost:     per output 9*C multiply-adds and 18*C loads. The caches serve most loads, but each product still waits for two.
// Sums:     the nine products of a channel first, then the channels: the rounding error grows with C, not with 9*C.
// Edges:    any C, H, W, O; threads outside of the map return.
// Why:      a convolution as its formula says it. conv/ has the fast ones; `vgg16gpu ladder` shows the steps between.
extern "C" __global__ void conv3x3_relu(float* out, const float* inp, const float* weight, const float* bias, int C,
                                        int H, int W) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  const int o = blockIdx.z;
  if (x >= W || y >= H) return;

  float sum = 0.0f;
  for (int c = 0; c < C; c++) {
    const float* map = inp + (size_t)c * H * W;
    const float* filter = weight + ((size_t)o * C + c) * 9;
    float of_channel = 0.0f;
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) {
        const int row = y + i - 1, column = x + j - 1;
        if (row >= 0 && row < H && column >= 0 && column < W)  // the padding adds nothing
          of_channel += map[(size_t)row * W + column] * filter[3 * i + j];
      }
    sum += of_channel;
  }

  const float value = sum + bias[o];
  out[((size_t)o * H + y) * W + x] = value < 0.0f ? 0.0f : value;  // fmaxf would turn NaN into 0
}
