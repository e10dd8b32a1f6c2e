// wgmma: the tensor cores' asynchronous matrix product of Hopper, for every tile width that the kernels use.
//
// sum[64 rows][N columns] (+)= a[64][K] * b[N][K], by the 128 threads of a warpgroup; K is 32 bytes of operands. `a`
// and `b` are matrix descriptors (hopper.cuh) of operands in shared memory; the sums stay in registers, N / 2 of them a
// thread: sum[4j + e] of thread t is row 16 * warp + lane / 4 + (e < 2 ? 0 : 8), column 8j + 2 * (lane % 4) + e % 2.
// PTX ISA 8.0 and later, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async"; sm_90a only.
//
// An asm statement must name each register, so the lists below are spelled out, eight registers a piece.
#pragma once

#include <stdint.h>

#define TEXT8(a, b, c, d, e, f, g, h) "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define SUM8(KIND, i)                                                                                     \
  KIND(sum[i]), KIND(sum[i + 1]), KIND(sum[i + 2]), KIND(sum[i + 3]), KIND(sum[i + 4]), KIND(sum[i + 5]), \
      KIND(sum[i + 6]), KIND(sum[i + 7])

#define TEXT_16 TEXT8(0, 1, 2, 3, 4, 5, 6, 7)
#define TEXT_32 TEXT_16 ", " TEXT8(8, 9, 10, 11, 12, 13, 14, 15)
#define TEXT_48 TEXT_32 ", " TEXT8(16, 17, 18, 19, 20, 21, 22, 23)
#define TEXT_64 TEXT_48 ", " TEXT8(24, 25, 26, 27, 28, 29, 30, 31)
#define TEXT_80 TEXT_64 ", " TEXT8(32, 33, 34, 35, 36, 37, 38, 39)
#define TEXT_96 TEXT_80 ", " TEXT8(40, 41, 42, 43, 44, 45, 46, 47)
#define TEXT_112 TEXT_96 ", " TEXT8(48, 49, 50, 51, 52, 53, 54, 55)
#define TEXT_128 TEXT_112 ", " TEXT8(56, 57, 58, 59, 60, 61, 62, 63)
#define TEXT_144 TEXT_128 ", " TEXT8(64, 65, 66, 67, 68, 69, 70, 71)
#define TEXT_160 TEXT_144 ", " TEXT8(72, 73, 74, 75, 76, 77, 78, 79)
#define TEXT_176 TEXT_160 ", " TEXT8(80, 81, 82, 83, 84, 85, 86, 87)
#define TEXT_192 TEXT_176 ", " TEXT8(88, 89, 90, 91, 92, 93, 94, 95)
#define TEXT_208 TEXT_192 ", " TEXT8(96, 97, 98, 99, 100, 101, 102, 103)
#define TEXT_224 TEXT_208 ", " TEXT8(104, 105, 106, 107, 108, 109, 110, 111)
#define TEXT_240 TEXT_224 ", " TEXT8(112, 113, 114, 115, 116, 117, 118, 119)
#define TEXT_256 TEXT_240 ", " TEXT8(120, 121, 122, 123, 124, 125, 126, 127)

#define SUMS_16(KIND) SUM8(KIND, 0)
#define SUMS_32(KIND) SUMS_16(KIND), SUM8(KIND, 8)
#define SUMS_48(KIND) SUMS_32(KIND), SUM8(KIND, 16)
#define SUMS_64(KIND) SUMS_48(KIND), SUM8(KIND, 24)
#define SUMS_80(KIND) SUMS_64(KIND), SUM8(KIND, 32)
#define SUMS_96(KIND) SUMS_80(KIND), SUM8(KIND, 40)
#define SUMS_112(KIND) SUMS_96(KIND), SUM8(KIND, 48)
#define SUMS_128(KIND) SUMS_112(KIND), SUM8(KIND, 56)
#define SUMS_144(KIND) SUMS_128(KIND), SUM8(KIND, 64)
#define SUMS_160(KIND) SUMS_144(KIND), SUM8(KIND, 72)
#define SUMS_176(KIND) SUMS_160(KIND), SUM8(KIND, 80)
#define SUMS_192(KIND) SUMS_176(KIND), SUM8(KIND, 88)
#define SUMS_208(KIND) SUMS_192(KIND), SUM8(KIND, 96)
#define SUMS_224(KIND) SUMS_208(KIND), SUM8(KIND, 104)
#define SUMS_240(KIND) SUMS_224(KIND), SUM8(KIND, 112)
#define SUMS_256(KIND) SUMS_240(KIND), SUM8(KIND, 120)

// What the operands hold: `a` is always the weights, `b` the activations.
struct Fp16;  // both float16, summed in float32
struct Bf16;  // both bfloat16, summed in float32
struct S8U8;  // weights int8, activations uint8, summed in int32: exact
struct S8S8;  // both int8, summed in int32: exact

template <class Operands, int N>
struct Wgmma;

// One width of one kind. OPERANDS ends the instruction's name; FLAGS are its immediate operands: signs, transpositions.
#define WGMMA(Kind, OPERANDS, Sum_, KIND, FLAGS, N, A, B, C)                                                           \
  template <>                                                                                                          \
  struct Wgmma<Kind, N> {                                                                                              \
    typedef Sum_ Sum;                                                                                                  \
    static __device__ __forceinline__ void multiply(Sum (&sum)[N / 2], uint64_t a, uint64_t b, int accumulate) {       \
      asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, " C                                               \
                   ", 0;\n"                                                                                            \
                   "  wgmma.mma_async.sync.aligned.m64n" #N OPERANDS " {" TEXT_##N "}, " A ", " B ", accumulate" FLAGS \
                                                                                   "; }"                               \
                   : SUMS_##N(KIND)                                                                                    \
                   : "l"(a), "l"(b), "r"(accumulate));                                                                 \
    }                                                                                                                  \
  };

#define WGMMA_OF_EVERY_WIDTH(Kind, OPERANDS, Sum, KIND, FLAGS)         \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 16, "%8", "%9", "%10")       \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 32, "%16", "%17", "%18")     \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 48, "%24", "%25", "%26")     \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 64, "%32", "%33", "%34")     \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 80, "%40", "%41", "%42")     \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 96, "%48", "%49", "%50")     \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 112, "%56", "%57", "%58")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 128, "%64", "%65", "%66")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 144, "%72", "%73", "%74")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 160, "%80", "%81", "%82")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 176, "%88", "%89", "%90")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 192, "%96", "%97", "%98")    \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 208, "%104", "%105", "%106") \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 224, "%112", "%113", "%114") \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 240, "%120", "%121", "%122") \
  WGMMA(Kind, OPERANDS, Sum, KIND, FLAGS, 256, "%128", "%129", "%130")

WGMMA_OF_EVERY_WIDTH(Fp16, "k16.f32.f16.f16", float, "+f", ", 1, 1, 0, 0")
WGMMA_OF_EVERY_WIDTH(Bf16, "k16.f32.bf16.bf16", float, "+f", ", 1, 1, 0, 0")
WGMMA_OF_EVERY_WIDTH(S8U8, "k32.s32.s8.u8", int, "+r", "")
WGMMA_OF_EVERY_WIDTH(S8S8, "k32.s32.s8.s8", int, "+r", "")

// The same for float16 with the 64x16 operand `a` in registers: a[0], a[1] hold columns 2 * (lane % 4) and the next of
// rows 16 * warp + lane / 4 and + 8; a[2], a[3] those 8 columns further on.
template <int N>
struct WgmmaFromRegisters;

#define WGMMA_FROM_REGISTERS(N, A0, A1, A2, A3, B, C)                                                        \
  template <>                                                                                                \
  struct WgmmaFromRegisters<N> {                                                                             \
    static __device__ __forceinline__ void multiply(float (&sum)[N / 2], const uint32_t (&a)[4], uint64_t b, \
                                                    int accumulate) {                                        \
      asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, " C                                     \
                   ", 0;\n"                                                                                  \
                   "  wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" TEXT_##N                     \
                   "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", accumulate, 1, 1, 0; }"                      \
                   : SUMS_##N("+f")                                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                   \
    }                                                                                                        \
  };

WGMMA_FROM_REGISTERS(16, "%8", "%9", "%10", "%11", "%12", "%13")
WGMMA_FROM_REGISTERS(32, "%16", "%17", "%18", "%19", "%20", "%21")
WGMMA_FROM_REGISTERS(64, "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_FROM_REGISTERS(128, "%64", "%65", "%66", "%67", "%68", "%69")
