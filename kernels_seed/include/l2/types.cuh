// The element type that was picked for this compile, and its conversions.
//
// A kernel names its operands' type `l2::elem`; L2_DTYPE_F16 or L2_DTYPE_BF16 decides what that is.
// Every conversion to it rounds to the nearest, ties to even, once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace l2 {

using u32 = unsigned int;  // one 32-bit register, as PTX sees it

#if defined(L2_DTYPE_BF16) && L2_DTYPE_BF16
using elem = __nv_bfloat16;
__device__ __forceinline__ float to_float(elem x) { return __bfloat162float(x); }
__device__ __forceinline__ elem to_elem(float x) { return __float2bfloat16_rn(x); }
// Two neighbours in memory, `low` at the lower address, as an mma or a 4-byte store takes them.
__device__ __forceinline__ u32 pack2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const u32*>(&pair);
}
#elif defined(L2_DTYPE_F16) && L2_DTYPE_F16
using elem = half;
__device__ __forceinline__ float to_float(elem x) { return __half2float(x); }
__device__ __forceinline__ elem to_elem(float x) { return __float2half_rn(x); }
// Two neighbours in memory, `low` at the lower address, as an mma or a 4-byte store takes them.
__device__ __forceinline__ u32 pack2(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const u32*>(&pair);
}
#else
#error "define L2_DTYPE_F16 or L2_DTYPE_BF16 as 1"
#endif

// The 32-bit shared-memory address that ldmatrix, cp.async and the mbarrier instructions take.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

}  // namespace l2
