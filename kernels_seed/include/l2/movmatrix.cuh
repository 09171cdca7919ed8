// The transpose of a matrix in registers (sm_75 and later).
#pragma once
#include "l2/types.cuh"

namespace l2 {

// Of an 8x8 matrix of 16-bit elements, which a whole warp holds: lane l has row l / 4, columns
// 2 * (l % 4) and the one after it, before and after.
__device__ __forceinline__ u32 movmatrix_trans(u32 pair) {
  u32 transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace l2
