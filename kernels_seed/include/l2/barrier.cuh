// Synchronisation of sm_90 and later: mbarriers, cluster and named barriers, proxy fences.
//
// An mbarrier is 8 bytes of shared memory that counts, for one phase after another, arrivals and
// the bytes that the copy engine still owes. A phase completes when both reach zero; the next one
// starts at once with the initial count. Waiters name a phase by its parity: phase 0 has parity 0,
// phase 1 parity 1, and so on in turn. Waiting for parity 1 on a fresh barrier returns at once, so
// a producer that starts with the other parity finds every slot of a ring empty.
#pragma once
#include "l2/types.cuh"

namespace l2 {

// Sets the arrivals a phase needs. One thread does it, before mbarrier_init_fence and a barrier.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes this thread's mbarrier_init visible to the copy engine and to the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival. What this thread did before is visible to whoever sees the phase complete.
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival that also announces `bytes` which copies will bring within this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(barrier), "r"(bytes) : "memory");
}

// The address of `shared` (of this block) in block `rank` of the cluster.
__device__ __forceinline__ u32 map_to_rank(u32 shared, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
  return remote;
}

// One arrival at a barrier of any block of the cluster, at an address from map_to_rank. Enough to
// say that wgmma or the copy engine has read something. It does not publish ordinary writes to the
// other block: that takes .release.cluster, which compiles to a fence for the whole GPU.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
               ::"r"(remote_barrier) : "memory");
}

// Whether the phase of this parity is complete; the hardware may suspend the thread a while first.
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;\n"
               "}"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}

__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// Orders this thread's ordinary shared-memory accesses before later ones of the async proxy (the
// copy engine, wgmma). Every writing thread needs it, before the barrier that publishes its writes.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// This block's rank in its cluster (0 where the launch has none).
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier for all threads of all blocks of the cluster, in two halves. Without .aligned, lanes
// of a warp may come one by one.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Named barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, whole warps. Those that
// arrive go on; those that sync wait until `threads` have done either.
__device__ __forceinline__ void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// True in one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, p;\n"
               "}"
               : "=r"(elected));
  return elected;
}

}  // namespace l2
