// Where threads wait for others: the barrier of a block, the functions of a warp, and who returns.
#pragma once

#include "cpu/fibers.h"

namespace cpu {

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

}  // namespace cpu
