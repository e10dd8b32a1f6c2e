// Threads of a block as fibers: one hands over to the next; a failure, or that nobody can go on, ends the block.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "cpu/block.h"
#include "cpu/stack_switch.h"

namespace cpu {

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

}  // namespace cpu
