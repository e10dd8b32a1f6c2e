// KEEP: a convolution stores what its pool makes of its map, and through a second tensor map, `kept`, the map itself.
#pragma once

#include "wgmma_tile.cuh"

#ifndef KEEP
#define KEEP 0
#endif
#if KEEP
#define KEPT_PARAMETER const __grid_constant__ CUtensorMap kept,
#define KEPT &kept
#else
#define KEPT_PARAMETER
#define KEPT nullptr
#endif

// stage_tile, and with KEEP of the sums as they are, too, to `kept`: record() sees that map, whose pixels are all there.
template <int STORED, int COLUMNS, bool POOLED, class Sum, class Record>
DEVICE void stage_maps(const Sum (&sum)[4 * COLUMNS], const Finish<STORED>& finish, uint32_t staging, uint32_t kept,
                       Record&& record) {
  if constexpr (KEEP) {
    stage_tile<STORED, COLUMNS, false>(sum, finish, kept, record);
    stage_tile<STORED, COLUMNS, POOLED>(sum, finish, staging, [](int, uint32_t) {});
  } else {
    stage_tile<STORED, COLUMNS, POOLED>(sum, finish, staging, record);
  }
}
