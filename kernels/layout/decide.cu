// decide: the conditional node `condition` of a CUDA graph runs where guard[0] is not 0
// Layouts:  condition: the node's handle. guard: a word, as `settle` writes it.
// Mapping:  one thread.
// Tiles:    none.
// Shared:   none.
// Cost:     no FLOP.
// Edges:    none.
// Why:      the launches of a second pass that hardly any image needs take 1.2 us each of a graph, though they return at
//           once: 40 of them 47 us on an H200, behind a conditional node 6. CUDA programming guide, "Conditional Graph
//           Nodes".
#include "early_start.cuh"

extern "C" __device__ void cudaGraphSetConditional(unsigned long long condition, unsigned value);  // the driver has it

extern "C" __global__ void decide(unsigned long long condition, const int* guard) {
  wait_for_previous_kernel();
  cudaGraphSetConditional(condition, guard[0] != 0);
}
