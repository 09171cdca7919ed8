// Warp-level matrix instructions of sm_80: ldmatrix and mma.sync, one function per instruction.
//
// ldmatrix reads 8x8 matrices of 16-bit elements. Lane l gives the address of one row (16 bytes,
// 16-byte aligned): lanes 0-7 the rows of matrix 0, lanes 8-15 of matrix 1, and so on. Lane l
// receives elements (l / 4, 2 * (l % 4)) and the one after it of each matrix, of the transposed
// matrix with _trans. mma_m16n8k16 takes A in four registers, rows 0-7 then 8-15 of k 0-7, then the
// same of k 8-15; B (k x n) in two, k 0-7 then 8-15; both just as ldmatrix leaves them. In C and D
// lane l holds (l / 4, 2 * (l % 4)), the one after it, and the two 8 rows below.
#pragma once
#include "l2/types.cuh"

namespace l2 {

__device__ __forceinline__ void ldmatrix_x1(u32& r0, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r0) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x1_trans(u32& r0, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r0) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(u32& r0, u32& r1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(u32& r0, u32& r1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32& r0, u32& r1, u32& r2, u32& r3, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32& r0, u32& r1, u32& r2, u32& r3, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

// d += a * b in float, for the picked element type.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(L2_DTYPE_BF16) && L2_DTYPE_BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a * b in half: two elements a register, rounded to half at each step. Only f16 has it.
__device__ __forceinline__ void mma_m16n8k16_half(u32 (&d)[2], const u32 (&a)[4],
                                                  const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
               "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace l2
