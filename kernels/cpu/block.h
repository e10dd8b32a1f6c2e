// What a launch, a block, a warp and a thread are to those who run them on a CPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef CPU_SHIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CPU_SHIM_TSAN
#include <sanitizer/tsan_interface.h>
#define CPU_RELEASE(object) __tsan_release(object)
#define CPU_ACQUIRE(object) __tsan_acquire(object)
// The thread sanitizer watches kernels, not the scheduler; it only learns who waits for whom.
#define CPU_SCHEDULER static __attribute__((no_sanitize("thread"), noinline, unused))
#define CPU_SCHEDULER_INLINE CPU_SCHEDULER
#else
#define CPU_RELEASE(object) (void)(object)
#define CPU_ACQUIRE(object) (void)(object)
#define CPU_SCHEDULER static __attribute__((noinline, unused))
#define CPU_SCHEDULER_INLINE static inline __attribute__((always_inline, unused))
#endif

namespace cpu {

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned WARP = 32;
constexpr size_t MAX_DYNAMIC_SHARED = 232448;  // 227 KiB, as on the largest GPUs
#if defined(CPU_SHIM_ASAN) || defined(CPU_SHIM_TSAN)
constexpr size_t STACK = 131072;  // bytes; instrumented code takes more
#else
constexpr size_t STACK = 32768;
#endif
constexpr size_t STACK_STRIDE = STACK + 1088;  // 17 cache lines more, or all stacks fall into the same cache sets
constexpr uint64_t CANARY = 0x5afe57ac5afe57acull;
constexpr int CANARY_WORDS = 8;

enum Order : uint32_t { FORWARD, REVERSE, SHUFFLED };  // in which the threads of a block run between two barriers

// What Python passes; vgg16gpu/devices/cpu/library.py has the same fields.
struct Launch {
  void** arguments;
  void* memory;  // os_threads * cpu_worker_nbytes() bytes
  char* message;  // receives the reason of a failure
  size_t message_nbytes;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t dynamic_shared;  // bytes
  uint32_t os_threads;
  uint32_t order;
  uint32_t seed;
};

typedef void (*Call)(void** arguments);
typedef void (*Collective)(void** values, uint32_t lanes);

struct Warp {
  uint32_t live, arrived;  // one bit per lane
  uint32_t mask[WARP];
  Collective work[WARP];
  void* value[WARP];
  uint32_t phase;
  char happened[2];  // see Block
};

struct Thread {
  void* sp;
  uint3 index;
  uint32_t lane;
  Warp* warp;
  char* stack;
  int line;  // of the barrier at which it waits, or 0
  void* sanitizer;
};

// What all OS threads of one launch share.
struct Run {
  const Launch* launch;
  Call call;
  uint64_t blocks;
  uint64_t next_block;  // atomic
  int failed;           // atomic
};

// An OS thread's work place: the block that it runs now.
struct Block {
  uint3 index;
  dim3 dim, grid;
  Run* run;
  char* dynamic_shared;
  unsigned count;    // threads of the block
  unsigned live;     // not returned yet
  unsigned waiting;  // at __syncthreads
  int line;          // of the first that waits there
  bool divergent, abandoned;
  uint32_t random;
  unsigned head, tail;         // of `ready`
  Thread* ready[MAX_THREADS];  // a thread is pushed in front only after it was popped, so head never passes 0
  Thread* order[MAX_THREADS];
  uint32_t phase;
  char happened[2];  // the sanitizer's objects of this barrier and the next: the next must not leak into this one
  char started, finished;  // and of the block: not one object, or threads that end would order those that begin
  Thread main;       // the OS thread itself
  const void* main_stack;
  size_t main_stack_nbytes;
  Warp warps[MAX_THREADS / WARP];
  Thread threads[MAX_THREADS];
};

// The default TLS model: a faster one would put the kernels' shared arrays into the small static TLS block as well.
static thread_local Block* current_block = nullptr;
static thread_local Thread* current_thread = nullptr;

CPU_SCHEDULER_INLINE void* dynamic_shared() { return current_block->dynamic_shared; }

}  // namespace cpu
