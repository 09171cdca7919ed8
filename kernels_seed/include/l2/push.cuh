// Registers sent into the shared memory of another block of the cluster, sm_90 and later.
//
// They arrive some time later and count as bytes at an mbarrier of that block, which need not ask
// for them. The sender need not wait and may exit; the receiver must be there until all has come.
#pragma once
#include "l2/barrier.cuh"
#include "l2/types.cuh"

namespace l2 {

// Stores 16 bytes at `remote`, 16-byte aligned, and tells `remote_barrier` of the same block.
__device__ __forceinline__ void push(u32 remote, const float* d, u32 remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
               " [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(remote), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "r"(remote_barrier)
               : "memory");
}

// Waits like mbarrier_wait, for what other blocks sent too.
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

// The first half of the cluster's barrier where only mbarrier_init_fence need be seen after it.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

}  // namespace l2
