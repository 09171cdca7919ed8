// Programmatic dependent launch (sm_90 and later): a launch may start before its predecessor ends.
//
// Before sm_90 launches on a stream never overlap, so both calls are rightly nothing there.
#pragma once

namespace l2 {

// Waits until the grids this one depends on have ended and their writes are visible. Before it,
// read nothing that an earlier launch may write, and write nothing that an earlier one may read.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch start once every block of this grid has said so or ended. It promises
// nothing about memory: the next launch must still wait.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace l2
