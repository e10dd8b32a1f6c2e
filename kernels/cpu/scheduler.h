// Runs a grid on a CPU. The blocks are dealt to OS threads; inside an OS thread each CUDA thread of the current block is a
// fiber with a stack of its own. A fiber runs until it has to wait, at a barrier or a warp collective, and then hands over
// to the next one that is ready: about 5 ns. Nothing is preempted, so a block needs no lock.
//
// Nothing outlives a launch: all memory comes with it, OS threads are made for it, so forked children and several devices
// in one process need no thought.
#pragma once

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/stack_switch.h"

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

// ---- Switching

CPU_SCHEDULER_INLINE void arrived_on_stack() {
#ifdef CPU_SHIM_ASAN
  const void* bottom;
  size_t nbytes;
  __sanitizer_finish_switch_fiber(current_thread->sanitizer, &bottom, &nbytes);
  Block* b = current_block;
  if (!b->main_stack) b->main_stack = bottom, b->main_stack_nbytes = nbytes;
#endif
}

CPU_SCHEDULER_INLINE void switch_thread(Thread* from, Thread* to) {
  current_thread = to;
#ifdef CPU_SHIM_ASAN
  const Block* b = current_block;
  const bool home = to == &b->main;
  __sanitizer_start_switch_fiber(&from->sanitizer, home ? b->main_stack : to->stack, home ? b->main_stack_nbytes : STACK);
#endif
#ifdef CPU_SHIM_TSAN
  __tsan_switch_to_fiber(to->sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  cpu_switch_stack(&from->sp, to->sp);
  arrived_on_stack();
}

// Keep the first failure of the launch. With `abandon_block`, return to the OS thread for good.
__attribute__((format(printf, 2, 3))) CPU_SCHEDULER void fail(Block* b, const char* format, ...) {
  if (!__atomic_exchange_n(&b->run->failed, 1, __ATOMIC_SEQ_CST)) {
    const Launch* launch = b->run->launch;
    const int start = snprintf(launch->message, launch->message_nbytes, "block (%u, %u, %u): ", b->index.x, b->index.y,
                               b->index.z);
    va_list values;
    va_start(values, format);
    vsnprintf(launch->message + start, launch->message_nbytes - start, format, values);
    va_end(values);
  }
}

CPU_SCHEDULER void abandon_block(Block* b) {
  b->abandoned = true;
  if (current_thread != &b->main) switch_thread(current_thread, &b->main);
}

// "40 at line 12, 24 at line 15": where the threads that wait at a barrier stand.
CPU_SCHEDULER const char* waiting_lines(Block* b, char* text, size_t nbytes) {
  size_t used = 0;
  text[0] = 0;
  for (int last = 0;;) {
    int line = 0, found = 0;
    for (unsigned i = 0; i < b->count; i++) {  // the smallest line after the last one
      const int at = b->threads[i].line;
      if (at > last && (!line || at < line)) line = at, found = 0;
      found += at && at == line;
    }
    if (!line || used >= nbytes) return text;
    used += snprintf(text + used, nbytes - used, "%s%d at line %d", used ? ", " : "", found, line);
    last = line;
  }
}

CPU_SCHEDULER void report_deadlock(Block* b) {
  unsigned in_warp = 0;
  char lines[160];
  for (unsigned w = 0; w * WARP < b->count; w++) in_warp += __builtin_popcount(b->warps[w].arrived);
  fail(b, "deadlock: of %u threads %u returned, %u wait at __syncthreads (%s), %u at a warp function", b->count,
       b->count - b->live, b->waiting, waiting_lines(b, lines, sizeof lines), in_warp);
}

// Give up the processor until somebody puts this thread on the ready list again.
CPU_SCHEDULER_INLINE void wait_turn() {
  Block* b = current_block;
  Thread* self = current_thread;
  Thread* next = &b->main;
  if (__builtin_expect(b->head != b->tail, 1)) {
    next = b->ready[b->head++];
  } else if (b->live) {
    report_deadlock(b);
    b->abandoned = true;
  }
  if (next != self) switch_thread(self, next);
}

// ---- Barriers

CPU_SCHEDULER_INLINE void make_all_ready(Block* b) {
  if (b->run->launch->order == SHUFFLED) {
    for (unsigned i = b->count - 1; i > 0; i--) {
      b->random = b->random * 1664525u + 1013904223u;
      const unsigned j = (b->random >> 8) % (i + 1);
      Thread* t = b->order[i];
      b->order[i] = b->order[j];
      b->order[j] = t;
    }
  }
  memcpy(b->ready, b->order, b->count * sizeof b->ready[0]);
  b->head = 0;
  b->tail = b->count;
}

CPU_SCHEDULER void block_barrier(int line) {
  Block* b = current_block;
  Thread* self = current_thread;
  void* happened = &b->happened[b->phase & 1];
  CPU_RELEASE(happened);
  self->line = line;
  if (b->waiting++ == 0) b->line = line;
  b->divergent |= line != b->line;
  if (b->waiting == b->count) {
    if (b->divergent) {
      char lines[160];
      fail(b, "its threads wait at different __syncthreads: %s", waiting_lines(b, lines, sizeof lines));
      abandon_block(b);
    }
    b->waiting = 0;
    b->phase++;
    make_all_ready(b);
  }
  wait_turn();
  self->line = 0;
  CPU_ACQUIRE(happened);
}

// ---- Warp collectives: all lanes of the mask meet, the last to come does the work for everybody.

CPU_SCHEDULER_INLINE void finish_collective(Block* b, Warp* w, uint32_t lanes, Thread* self) {
  Thread* first = &b->threads[(w - b->warps) * WARP];
  const int leader = __builtin_ctz(lanes);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (w->work[lane] == w->work[leader] && (w->mask[lane] & w->live) == lanes) continue;
    const Thread& t = first[lane];
    fail(b, "thread (%u, %u, %u) meets other lanes of its warp in a different warp function or with a different mask",
         t.index.x, t.index.y, t.index.z);
    abandon_block(b);
  }
  if (w->work[leader]) w->work[leader](w->value, lanes);
  w->arrived &= ~lanes;
  w->phase++;
  const bool descending = b->run->launch->order != REVERSE;  // the last that is pushed in front runs first
  for (uint32_t rest = lanes; rest;) {
    const int lane = descending ? 31 - __builtin_clz(rest) : __builtin_ctz(rest);
    rest &= ~(1u << lane);
    if (&first[lane] != self) b->ready[--b->head] = &first[lane];
  }
}

CPU_SCHEDULER void warp_collective(uint32_t mask, void* value, Collective work) {
  Block* b = current_block;
  Thread* self = current_thread;
  Warp* w = self->warp;
  if (!(mask >> self->lane & 1)) {
    fail(b, "thread (%u, %u, %u) calls a warp function with the mask %08x, which leaves out its lane %u", self->index.x,
         self->index.y, self->index.z, mask, self->lane);
    abandon_block(b);
  }
  void* happened = &w->happened[w->phase & 1];
  CPU_RELEASE(happened);
  w->value[self->lane] = value;
  w->work[self->lane] = work;
  w->mask[self->lane] = mask;
  w->arrived |= 1u << self->lane;
  const uint32_t lanes = mask & w->live;
  if ((w->arrived & lanes) == lanes) {
    CPU_ACQUIRE(happened);
    finish_collective(b, w, lanes, self);
  } else {
    wait_turn();
  }
  CPU_ACQUIRE(happened);
}

// A thread that returns may be the one for which lanes of its warp wait. (Threads at a block barrier wait in vain: every
// thread has to come there. Newer cards let it pass, older ones and the programming guide do not.)
CPU_SCHEDULER void thread_returned() {
  Block* b = current_block;
  Thread* self = current_thread;
  Warp* w = self->warp;
  b->live--;
  w->live &= ~(1u << self->lane);
  for (uint32_t rest = w->arrived; rest; rest &= rest - 1) {
    const uint32_t lanes = w->mask[__builtin_ctz(rest)] & w->live;
    if ((w->arrived & lanes) != lanes) continue;
    finish_collective(b, w, lanes, nullptr);
    rest &= w->arrived | (rest & -rest);
  }
}

__attribute__((noreturn)) CPU_SCHEDULER void thread_main() {
  arrived_on_stack();
  for (;;) {
    Block* b = current_block;
    CPU_ACQUIRE(&b->started);
    b->run->call(b->run->launch->arguments);
    CPU_RELEASE(&b->finished);
    thread_returned();
    wait_turn();  // until the next block
  }
}

// ---- Blocks

#ifdef CPU_SHIM_CHECKED
extern "C" char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
#endif

// Shared memory starts undefined; in the checked builds all floats in it are NaN.
__attribute__((no_sanitize("address", "undefined"))) CPU_SCHEDULER void poison_shared([[maybe_unused]] Block* b) {
#ifdef CPU_SHIM_CHECKED
  for (volatile char* p = __start_cuda_shared; p < __stop_cuda_shared; p++) *p = static_cast<char>(0xff);
  for (uint32_t i = 0; i < b->run->launch->dynamic_shared; i++) b->dynamic_shared[i] = static_cast<char>(0xff);
#endif
}

CPU_SCHEDULER bool run_block(Block* b, uint64_t number) {
  const uint64_t gx = b->grid.x, gy = b->grid.y;
  b->index = {unsigned(number % gx), unsigned(number / gx % gy), unsigned(number / gx / gy)};
  b->random = b->run->launch->seed ^ static_cast<uint32_t>(number * 2654435761u);
  b->live = b->count;
  for (unsigned w = 0; w * WARP < b->count; w++) {
    const unsigned lanes = b->count - w * WARP;
    b->warps[w].live = lanes >= WARP ? ~0u : (1u << lanes) - 1;
  }
  poison_shared(b);
  make_all_ready(b);
  CPU_RELEASE(&b->started);
  wait_turn();
  CPU_ACQUIRE(&b->finished);
  return !b->abandoned;
}

CPU_SCHEDULER void prepare_threads(Block* b, char* stacks) {
  unsigned i = 0;
  for (unsigned z = 0; z < b->dim.z; z++)
    for (unsigned y = 0; y < b->dim.y; y++)
      for (unsigned x = 0; x < b->dim.x; x++, i++) {
        Thread* t = &b->threads[i];
        t->index = {x, y, z};
        t->lane = i % WARP;
        t->warp = &b->warps[i / WARP];
        t->stack = stacks + i * STACK_STRIDE;
        t->line = 0;
        t->sanitizer = nullptr;
#ifdef CPU_SHIM_TSAN
        t->sanitizer = __tsan_create_fiber(0);
#endif
        for (int word = 0; word < CANARY_WORDS; word++) reinterpret_cast<uint64_t*>(t->stack)[word] = CANARY;
        t->sp = prepare_stack(t->stack + STACK, thread_main);
        b->order[b->run->launch->order == REVERSE ? b->count - 1 - i : i] = t;
      }
}

CPU_SCHEDULER void finish_threads(Block* b) {
  for (unsigned i = 0; i < b->count; i++) {
    const Thread* t = &b->threads[i];
#ifdef CPU_SHIM_ASAN
    __asan_unpoison_memory_region(t->stack, STACK);  // its frames will never be left; the memory will be used again
#endif
#ifdef CPU_SHIM_TSAN
    __tsan_destroy_fiber(t->sanitizer);
#endif
    bool intact = true;
    for (int word = 0; word < CANARY_WORDS; word++) intact &= reinterpret_cast<uint64_t*>(t->stack)[word] == CANARY;
    if (!intact) fail(b, "stack overflow: thread %u needs more than %zu bytes; make its local arrays smaller", i, STACK);
  }
}

// ---- Launches

constexpr size_t align_up(size_t nbytes) { return (nbytes + 4095) / 4096 * 4096; }
constexpr size_t WORKER_NBYTES =
    align_up(sizeof(Block)) + align_up(STACK_STRIDE * MAX_THREADS) + align_up(MAX_DYNAMIC_SHARED);

struct Worker {
  Run* run;
  char* memory;
  pthread_t handle;
};

// Run blocks until none is left.
CPU_SCHEDULER void* work(void* argument) {
  const Worker* worker = static_cast<Worker*>(argument);
  Run* run = worker->run;
  const Launch* launch = run->launch;
  Block* b = reinterpret_cast<Block*>(worker->memory);
  memset(static_cast<void*>(b), 0, offsetof(Block, ready));
  memset(static_cast<void*>(b->warps), 0, sizeof b->warps);
  b->run = run;
  b->dim = dim3(launch->block[0], launch->block[1], launch->block[2]);
  b->grid = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  b->count = b->dim.x * b->dim.y * b->dim.z;
  b->phase = 0;
  b->main_stack = nullptr;
  char* stacks = worker->memory + align_up(sizeof(Block));
#ifdef CPU_SHIM_CHECKED
  b->dynamic_shared = static_cast<char*>(malloc(launch->dynamic_shared));  // exact: the sanitizer guards its end
#else
  b->dynamic_shared = stacks + align_up(STACK_STRIDE * MAX_THREADS);
#endif
  current_block = b;
  current_thread = &b->main;
#ifdef CPU_SHIM_TSAN
  b->main.sanitizer = __tsan_get_current_fiber();
#endif
  fenv_t environment;  // somebody else's library may have set flush-to-zero
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  prepare_threads(b, stacks);
  while (!__atomic_load_n(&run->failed, __ATOMIC_RELAXED)) {
    const uint64_t number = __atomic_fetch_add(&run->next_block, 1, __ATOMIC_RELAXED);
    if (number >= run->blocks || !run_block(b, number)) break;
  }
  finish_threads(b);
  fesetenv(&environment);
#ifdef CPU_SHIM_CHECKED
  free(b->dynamic_shared);
#endif
  current_block = nullptr;
  current_thread = nullptr;
  return nullptr;
}

// Run the grid; 0, or 1 with the reason in launch.message. Python has checked the sizes.
CPU_SCHEDULER int run(const Launch& launch, Call call) {
  Run run = {&launch, call, uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2], 0, 0};
  const size_t most = run.blocks < launch.os_threads ? run.blocks : launch.os_threads;
  Worker self = {&run, static_cast<char*>(launch.memory), {}};
  Worker* others = most > 1 ? static_cast<Worker*>(malloc((most - 1) * sizeof(Worker))) : nullptr;
  size_t started = 0;
  if (others) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    for (; started < most - 1; started++) {
      others[started] = {&run, self.memory + (started + 1) * WORKER_NBYTES, {}};
      if (pthread_create(&others[started].handle, nullptr, work, &others[started])) break;  // fewer will do it, too
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  work(&self);
  for (size_t i = 0; i < started; i++) pthread_join(others[i].handle, nullptr);
  free(others);
  return run.failed;
}

extern "C" __attribute__((visibility("default"))) size_t cpu_worker_nbytes() { return WORKER_NBYTES; }

}  // namespace cpu
