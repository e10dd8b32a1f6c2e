// For NVRTC, which brings no header of the driver: what kernels take of it.
#pragma once

typedef struct __align__(64) CUtensorMap_st {
  unsigned long long opaque[16];
} CUtensorMap;
