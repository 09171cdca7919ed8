// Warpgroup matrix instructions (sm_90a): D (64 x N, float, registers) += A (64 x 16) * B (16 x N),
// A and B in shared memory, plus what the warps that use them need.
//
// All four warps of a warpgroup issue each call. Warp w of the group (0 to 3) and lane l hold, in
// d[4 * j + i], row 16 * w + l / 4 + 8 * (i / 2) and column 8 * j + 2 * (l % 4) + i % 2.
//
// The order of calls: wgmma_fence, any number of wgmma, wgmma_commit, wgmma_wait. Between the first
// wgmma and its wait the accumulators must not be touched.
#pragma once
#include "l2/types.cuh"

namespace l2 {

// Orders this warp's register and shared-memory accesses before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of wgmma issued since the last commit.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` of the newest groups are incomplete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler, and emits nothing, that a value changes here: it cannot move a use of an
// accumulator across, ahead of the wait that completes it.
__device__ __forceinline__ void wgmma_pin(float& value) {
  asm volatile("" : "+f"(value)::"memory");
}

// Moves registers between the warpgroups of a block, which needs __launch_bounds__(threads, 1). All
// warps of a group call it; kCount is a multiple of 8 from 24 to 256.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void setmaxnreg_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Stores four 8x8 matrices of 16-bit elements to shared memory. Lane l gives the address of one row
// (16 bytes): lanes 0-7 the rows of matrix 0, and so on. It holds (l / 4, 2 * (l % 4)) and the one
// after it.
__device__ __forceinline__ void stmatrix_x4(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

// Descriptors of an operand as the copy engine leaves it with swizzle 128, in 128-byte rows that
// start on a 1024-byte boundary. Adding bytes / 16 to a descriptor moves its start.
using wgmma_operand = unsigned long long;

__device__ __forceinline__ wgmma_operand wgmma_operand_128(u32 shared, u32 leading, u32 stride) {
  constexpr wgmma_operand kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<wgmma_operand>(stride / 16) << 32 |
         static_cast<wgmma_operand>(leading / 16) << 16 | (shared & 0x3ffff) / 16;
}

// K-major: a 128-byte row is 64 elements of k, one row for each m (or n). 8 rows, 1024 bytes, make
// one swizzle pattern, and the next 8 follow; the leading offset has no meaning and is written 1.
// Moving by 16 along k is 32 bytes.
__device__ __forceinline__ wgmma_operand wgmma_k_major(u32 shared) {
  return wgmma_operand_128(shared, 16, 1024);
}

// MN-major: a 128-byte row is 64 elements of m (or n), one row for each k. 8 rows of k make one
// pattern, and the next 8 follow; the next 64 of m (or n) start `slab_bytes` further on. Moving by
// 16 along k is 2048 bytes.
__device__ __forceinline__ wgmma_operand wgmma_mn_major(u32 shared, u32 slab_bytes) {
  return wgmma_operand_128(shared, slab_bytes, 1024);
}

// wgmma<kMnMajorA, kMnMajorB>(d, a, b, accumulate): d = a * b, plus d unless accumulate is 0. The
// size of d picks the instruction: N / 2 floats for m64nNk16, N = 8, 16, 24, 32, 64, 96, 128, 192
// or 256. The macro below writes these nine functions; PTX numbers the accumulators %0, %1, ... and
// after them the descriptors A and B, ACCUMULATE, and the two orders MN_A and MN_B.
#if defined(L2_DTYPE_BF16) && L2_DTYPE_BF16
#define L2_WGMMA_TYPES ".f32.bf16.bf16"
#else
#define L2_WGMMA_TYPES ".f32.f16.f16"
#endif
#define L2_WGMMA(N, A, B, ACCUMULATE, MN_A, MN_B, NAMES, ...)                                      \
  template <int kMnMajorA, int kMnMajorB>                                                          \
  __device__ __forceinline__ void wgmma(float (&d)[N / 2], wgmma_operand a, wgmma_operand b,       \
                                        int accumulate) {                                          \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16" L2_WGMMA_TYPES " {" NAMES "},"       \
                 " %" #A ", %" #B ", p, 1, 1, %" #MN_A ", %" #MN_B ";\n"                           \
                 "}"                                                                               \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(kMnMajorA), "n"(kMnMajorB));               \
  }
// NAMES: %T0 to %T9 for a ten T, or the first 2 to 8 of them.
#define L2_TEN2(T) "%" #T "0,%" #T "1"
#define L2_TEN4(T) L2_TEN2(T) ",%" #T "2,%" #T "3"
#define L2_TEN6(T) L2_TEN4(T) ",%" #T "4,%" #T "5"
#define L2_TEN8(T) L2_TEN6(T) ",%" #T "6,%" #T "7"
#define L2_TEN(T) L2_TEN8(T) ",%" #T "8,%" #T "9,"
#define L2_TENS3(T, U, V) L2_TEN(T) L2_TEN(U) L2_TEN(V)
#define L2_TENS9 L2_TENS3(, 1, 2) L2_TENS3(3, 4, 5) L2_TENS3(6, 7, 8)
// The variables, 4, 16 or 32 from d[I] on.
#define L2_D4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define L2_D16(I) L2_D4(I), L2_D4(I + 4), L2_D4(I + 8), L2_D4(I + 12)
#define L2_D32(I) L2_D16(I), L2_D16(I + 16)

L2_WGMMA(8, 4, 5, 6, 7, 8, L2_TEN4(), L2_D4(0))
L2_WGMMA(16, 8, 9, 10, 11, 12, L2_TEN8(), L2_D4(0), L2_D4(4))
L2_WGMMA(24, 12, 13, 14, 15, 16, L2_TEN() L2_TEN2(1), L2_D4(0), L2_D4(4), L2_D4(8))
L2_WGMMA(32, 16, 17, 18, 19, 20, L2_TEN() L2_TEN6(1), L2_D16(0))
L2_WGMMA(64, 32, 33, 34, 35, 36, L2_TENS3(, 1, 2) L2_TEN2(3), L2_D32(0))
L2_WGMMA(96, 48, 49, 50, 51, 52, L2_TENS3(, 1, 2) L2_TEN(3) L2_TEN8(4), L2_D32(0), L2_D16(32))
L2_WGMMA(128, 64, 65, 66, 67, 68, L2_TENS3(, 1, 2) L2_TENS3(3, 4, 5) L2_TEN4(6),
         L2_D32(0), L2_D32(32))
L2_WGMMA(192, 96, 97, 98, 99, 100, L2_TENS9 L2_TEN6(9), L2_D32(0), L2_D32(32), L2_D32(64))
L2_WGMMA(256, 128, 129, 130, 131, 132, L2_TENS9 L2_TENS3(9, 10, 11) L2_TEN8(12),
         L2_D32(0), L2_D32(32), L2_D32(64), L2_D32(96))
#undef L2_WGMMA

}  // namespace l2
