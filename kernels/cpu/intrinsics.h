// CUDA's functions: barriers, warp functions, atomics, loads with hints, bit casts, min and max.
#pragma once

static inline void __syncthreads(int line = __builtin_LINE()) { cpu::block_barrier(line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { cpu::warp_collective(mask, nullptr, nullptr); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() {}  // a block runs on one OS thread

// ---- Warp functions

namespace cpu {

enum class Source { INDEX, UP, DOWN, XOR };

template <class T>
struct Shuffle {
  T given, taken;
  int argument, width;
};

template <class T, Source SOURCE>
CPU_SCHEDULER void shuffle_lanes(void** values, uint32_t lanes) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    auto* s = static_cast<Shuffle<T>*>(values[lane]);
    const int first = lane & ~(s->width - 1), last = first + s->width - 1;
    int from = SOURCE == Source::INDEX  ? first + (s->argument & (s->width - 1))
               : SOURCE == Source::UP   ? lane - s->argument
               : SOURCE == Source::DOWN ? lane + s->argument
                                        : lane ^ s->argument;
    if (SOURCE == Source::UP ? from < first : from > last) from = lane;
    if (lanes >> from & 1)
      s->taken = static_cast<Shuffle<T>*>(values[from])->given;
    else
      memset(static_cast<void*>(&s->taken), 0xff, sizeof(T));  // undefined on a GPU; here it shows: NaN
  }
}

template <Source SOURCE, class T>
CPU_SCHEDULER_INLINE T shuffle(unsigned mask, T value, int argument, int width) {
  Shuffle<T> s = {value, value, argument, width};
  warp_collective(mask, &s, &shuffle_lanes<T, SOURCE>);
  return s.taken;
}

// Sums over the lanes, to the bits of a butterfly of __shfl_xor_sync: all lanes of it add the same numbers in the same
// order, but for which of two comes first.
template <int COUNT>
CPU_SCHEDULER void add_lanes(void** values, uint32_t lanes) {
  float missing[COUNT];  // undefined on a GPU; here it shows
  for (float& value : missing) value = __builtin_nanf("");
  float* of[32];
  for (int lane = 0; lane < 32; lane++) of[lane] = lanes >> lane & 1 ? static_cast<float*>(values[lane]) : missing;
  float sums[16][COUNT];
  for (int lane = 0; lane < 16; lane++)
    for (int i = 0; i < COUNT; i++) sums[lane][i] = of[lane][i] + of[lane + 16][i];
  for (int distance = 8; distance > 0; distance /= 2)
    for (int lane = 0; lane < distance; lane++)
      for (int i = 0; i < COUNT; i++) sums[lane][i] += sums[lane + distance][i];
  for (uint32_t rest = lanes; rest; rest &= rest - 1) memcpy(values[__builtin_ctz(rest)], sums[0], sizeof sums[0]);
}

CPU_SCHEDULER void vote(void** values, uint32_t lanes) {
  uint32_t result = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    result |= uint32_t(*static_cast<uint32_t*>(values[lane]) != 0) << lane;
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) *static_cast<uint32_t*>(values[__builtin_ctz(rest)]) = result;
}

CPU_SCHEDULER_INLINE uint32_t ballot(uint32_t mask, bool predicate) {
  uint32_t value = predicate;
  warp_collective(mask, &value, vote);
  return value;
}

}  // namespace cpu

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return cpu::shuffle<cpu::Source::INDEX>(mask, value, lane, width);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cpu::shuffle<cpu::Source::UP>(mask, value, static_cast<int>(delta), width);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cpu::shuffle<cpu::Source::DOWN>(mask, value, static_cast<int>(delta), width);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return cpu::shuffle<cpu::Source::XOR>(mask, value, lanes, width);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) { return cpu::ballot(mask, predicate != 0); }
static inline int __any_sync(unsigned mask, int predicate) { return cpu::ballot(mask, predicate != 0) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return cpu::ballot(mask, predicate == 0) == 0; }
static inline unsigned __activemask() { return 1u << cpu::current_thread->lane; }  // no lane runs beside this one

// ---- Atomics

static inline int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static inline unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
static inline int atomicOr(int* p, int v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
static inline unsigned atomicOr(unsigned* p, unsigned v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
static inline int atomicExch(int* p, int v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline unsigned atomicExch(unsigned* p, unsigned v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }

namespace cpu {

// Replace *p by update(*p); the old value.
template <class T, class F>
static inline T atomic_update(T* p, F update) {
  static_assert(sizeof(T) == sizeof(uint32_t), "a 32-bit value");
  T old, fresh;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do fresh = update(old);
  while (!__atomic_compare_exchange(p, &old, &fresh, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return old;
}

}  // namespace cpu

static inline float atomicAdd(float* p, float v) {
  return cpu::atomic_update(p, [v](float old) { return old + v; });
}
static inline int atomicMax(int* p, int v) {
  return cpu::atomic_update(p, [v](int old) { return old > v ? old : v; });
}
static inline unsigned atomicMax(unsigned* p, unsigned v) {
  return cpu::atomic_update(p, [v](unsigned old) { return old > v ? old : v; });
}
static inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return cpu::atomic_update(p, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// ---- Memory and arithmetic

template <class T>
static inline T __ldg(const T* p) {
  return *p;
}

namespace cpu {

// One vector load. A struct of four floats is read in four pieces, and compilers do not always join them again.
static inline float4 load_vector(const float* source) {
  typedef float Vector __attribute__((vector_size(16), may_alias));
  const Vector v = *reinterpret_cast<const Vector*>(source);
  return {v[0], v[1], v[2], v[3]};
}

}  // namespace cpu

template <class To, class From>
static inline To cpu_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float v) { return cpu_bit_cast<int>(v); }
static inline unsigned __float_as_uint(float v) { return cpu_bit_cast<unsigned>(v); }
static inline float __int_as_float(int v) { return cpu_bit_cast<float>(v); }
static inline float __uint_as_float(unsigned v) { return cpu_bit_cast<float>(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }

static inline int min(int a, int b) { return b < a ? b : a; }
static inline int max(int a, int b) { return a < b ? b : a; }
static inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
static inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
static inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
static inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
static inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
static inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
static inline long long min(long long a, long long b) { return b < a ? b : a; }
static inline long long max(long long a, long long b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
