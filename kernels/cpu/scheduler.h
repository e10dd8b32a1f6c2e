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
#include <stdlib.h>

#include "cpu/barriers.h"
#include "cpu/stack_switch.h"

namespace cpu {

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
