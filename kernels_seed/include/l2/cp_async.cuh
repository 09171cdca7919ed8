// Asynchronous copies from global to shared memory (sm_80 and later), one function per instruction.
//
// Each copies `bytes` bytes (0 to its size) and fills the rest of its destination with zeros, so a
// tile's ragged edge needs no branch and nothing past `source + bytes` is read. `source` and
// `destination` must be aligned to the size, also where `bytes` is 0.
#pragma once
#include "l2/types.cuh"

namespace l2 {

// Through L1: the only path for sizes below 16 bytes.
__device__ __forceinline__ void cp_async_4(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_8(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// Past L1; asks L2 to fetch the whole 128-byte line, which the tile's next chunks will want.
__device__ __forceinline__ void cp_async_16(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// The same without a tail: all 16 bytes.
__device__ __forceinline__ void cp_async_16(u32 destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               ::"r"(destination), "l"(source) : "memory");
}

// Closes the group of copies issued since the last commit; an empty group is complete at once.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's newest groups are incomplete. Other threads'
// copies need a __syncthreads() after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace l2
