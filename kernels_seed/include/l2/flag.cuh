// Flags in global memory: how blocks of one launch tell each other what they wrote.
//
// A flag is a 32-bit word. To publish what a group of threads wrote, they meet at a barrier, then
// one of them adds to the flag. To read it, one thread looks at the flag until it is right, then
// its group meets at a barrier. The reads must go past the L1: __ldcg.
#pragma once
#include "l2/types.cuh"

namespace l2 {

// Adds, after all that this thread wrote or has seen written.
__device__ __forceinline__ void flag_add(u32* flag, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// The same; returns what the flag was, and shows what others published by it before.
__device__ __forceinline__ u32 flag_fetch_add(u32* flag, u32 value) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old) : "l"(flag), "r"(value) : "memory");
  return old;
}

// Sets bits; otherwise as flag_fetch_add.
__device__ __forceinline__ u32 flag_fetch_or(u32* flag, u32 bits) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.or.b32 %0, [%1], %2;"
               : "=r"(old) : "l"(flag), "r"(bits) : "memory");
  return old;
}

// Shows what others published by the value it returns.
__device__ __forceinline__ u32 flag_load(const u32* flag) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

}  // namespace l2
