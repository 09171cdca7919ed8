// wgmma with float16 sums (sm_90a): D (64 x N, half, registers) += A (64 x 16) * B (16 x N).
//
// As l2/wgmma_sm90.cuh, but two neighbouring columns share a register, so D takes half as many:
// warp w of the group (0 to 3) and lane l hold, in d[2 * j + i], row 16 * w + l / 4 + 8 * i, column
// 8 * j + 2 * (l % 4) and the one after it. That is what stmatrix takes, and a 4-byte store.
#pragma once
#include "l2/wgmma_sm90.cuh"

namespace l2 {

// As for a float: it cannot be used ahead of the wait that completes it.
__device__ __forceinline__ void wgmma_pin(u32& value) { asm volatile("" : "+r"(value)::"memory"); }

// wgmma<kMnMajorA, kMnMajorB>(d, a, b, accumulate): as for floats, but d has N / 4 registers; N is
// 64, 128 or 256.
#define L2_WGMMA_HALF(N, A, B, ACCUMULATE, MN_A, MN_B, NAMES, ...)                                 \
  template <int kMnMajorA, int kMnMajorB>                                                          \
  __device__ __forceinline__ void wgmma(u32 (&d)[N / 4], wgmma_operand a, wgmma_operand b,         \
                                        int accumulate) {                                          \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f16.f16.f16 {" NAMES "},"             \
                 " %" #A ", %" #B ", p, 1, 1, %" #MN_A ", %" #MN_B ";\n"                           \
                 "}"                                                                               \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(kMnMajorA), "n"(kMnMajorB));               \
  }
// The variables, 4 or 16 from d[I] on.
#define L2_R4(I) "+r"(d[I]), "+r"(d[I + 1]), "+r"(d[I + 2]), "+r"(d[I + 3])
#define L2_R16(I) L2_R4(I), L2_R4(I + 4), L2_R4(I + 8), L2_R4(I + 12)

L2_WGMMA_HALF(64, 16, 17, 18, 19, 20, L2_TEN() L2_TEN6(1), L2_R16(0))
L2_WGMMA_HALF(128, 32, 33, 34, 35, 36, L2_TENS3(, 1, 2) L2_TEN2(3), L2_R16(0), L2_R16(16))
L2_WGMMA_HALF(256, 64, 65, 66, 67, 68, L2_TENS3(, 1, 2) L2_TENS3(3, 4, 5) L2_TEN4(6),
              L2_R16(0), L2_R16(16), L2_R16(32), L2_R16(48))
#undef L2_WGMMA_HALF

}  // namespace l2
