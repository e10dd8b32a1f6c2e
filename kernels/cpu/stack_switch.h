// void cpu_switch_stack(void** save, void* to): push what a callee must preserve, store the stack pointer in *save,
// continue at the stack `to`, which an earlier call (or cpu::prepare_stack) left in the same form.
#pragma once

extern "C" __attribute__((visibility("hidden"))) void cpu_switch_stack(void** save, void* to);

#if defined(__x86_64__)

asm(R"(
.text
.p2align 4
.type cpu_switch_stack,@function
cpu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cpu_switch_stack,.-cpu_switch_stack
)");

#elif defined(__aarch64__)

asm(R"(
.text
.p2align 4
.type cpu_switch_stack,%function
cpu_switch_stack:
  sub sp,sp,#160
  stp x19,x20,[sp,#0]
  stp x21,x22,[sp,#16]
  stp x23,x24,[sp,#32]
  stp x25,x26,[sp,#48]
  stp x27,x28,[sp,#64]
  stp x29,x30,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x9,sp
  str x9,[x0]
  mov sp,x1
  ldp x19,x20,[sp,#0]
  ldp x21,x22,[sp,#16]
  ldp x23,x24,[sp,#32]
  ldp x25,x26,[sp,#48]
  ldp x27,x28,[sp,#64]
  ldp x29,x30,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  add sp,sp,#160
  ret
.size cpu_switch_stack,.-cpu_switch_stack
)");

#else
#error "the CPU device runs on x86-64 and aarch64"
#endif

namespace cpu {

// The stack pointer of a fresh stack on which cpu_switch_stack will start `entry`, which never returns.
static inline void* prepare_stack(char* top, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
#if defined(__x86_64__)
  enum { WORDS = 8, ENTRY = 6 };  // 6 registers, the address that `ret` takes, and a null return address for `entry`
#else
  enum { WORDS = 20, ENTRY = 11 };  // x30 is the 12th of the saved registers
#endif
  sp -= WORDS;
  for (int i = 0; i < WORDS; i++) sp[i] = nullptr;
  sp[ENTRY] = reinterpret_cast<void*>(entry);
  return sp;
}

}  // namespace cpu
