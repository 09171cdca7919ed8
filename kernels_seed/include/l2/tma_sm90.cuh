// The tensor copy engine (TMA, sm_90 and later): boxes between global and shared memory.
//
// The host describes an operand by a tensor map of rank 3 (inner, outer, batch) and a box; one
// thread names a box by the coordinates of its first element. Elements outside the operand are read
// as zero, and still count as bytes; those of a store are dropped. A box lies in shared memory row
// by row. With swizzle 128 and rows of 128 bytes, 16-byte chunk c of row r lies where chunk
// c ^ (r % 8) would, rows counted from a 1024-byte boundary: see swizzle_128.
#pragma once
#include "l2/types.cuh"

namespace l2 {

// The bytes of a CUtensorMap, which device code cannot name: a `const __grid_constant__` parameter.
struct alignas(64) tensor_map {
  unsigned char opaque[128];
};

// Byte offset, from a 1024-byte boundary, of 16-byte chunk `chunk` (0 to 7) of 128-byte row `row`.
__device__ __forceinline__ u32 swizzle_128(u32 row, u32 chunk) {
  return row * 128 + ((chunk ^ (row % 8)) * 16);
}

// Fetches the map itself, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch_tensor_map(const tensor_map& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Global to this block's shared memory; `barrier` receives the box's bytes.
__device__ __forceinline__ void tma_load_3d(u32 destination, const tensor_map& map, u32 barrier,
                                            int inner, int outer, int batch) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(destination), "l"(&map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch)
               : "memory");
}

// The same into every block of the cluster whose bit is set in `ranks`, at the same offsets of its
// shared memory; each one's own barrier receives the box's bytes.
__device__ __forceinline__ void tma_load_3d_multicast(u32 destination, const tensor_map& map,
                                                      u32 barrier, int inner, int outer, int batch,
                                                      unsigned short ranks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
               ::"r"(destination), "l"(&map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch),
               "h"(ranks)
               : "memory");
}

// Shared memory to global. What ordinary stores wrote there needs fence_proxy_async_shared first.
__device__ __forceinline__ void tma_store_3d(const tensor_map& map, u32 source,
                                             int inner, int outer, int batch) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4}], [%1];"
               ::"l"(&map), "r"(source), "r"(inner), "r"(outer), "r"(batch)
               : "memory");
}

// Closes the group of this thread's stores since its last commit.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's newest groups have still to read shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until at most `kPending` of this thread's newest groups have still to write global memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace l2
