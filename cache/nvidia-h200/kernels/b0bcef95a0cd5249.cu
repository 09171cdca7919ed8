/*---l2tune
id       = "sm90a/wgmma_persistent"
summary  = "TMA producer, two or three wgmma warpgroups, persistent over tiles in L2-sized groups."
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "cdiv(m, 64) * cdiv(n, 8) * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M    = [64, 128, 192, 256]
TILE_N    = [8, 16, 32, 64, 128, 192, 256]
TILE_K    = [64]
STAGES    = [2, 3, 4, 5, 6, 7, 8]
CLUSTER   = [1, 2]
CONSUMERS = [2, 3]
PINGPONG  = [0, 1]
GROUP     = [1, 2, 4, 8, 16]
where     = [
  "PINGPONG == 1 or TILE_M >= 128",
  "PINGPONG == 0 or CONSUMERS == 2",
  "(TILE_M == 192) == (CONSUMERS == 3)",
  "TILE_M * TILE_N <= (24576 if PINGPONG == 1 else 49152)",
  "CLUSTER == 1 or TILE_N >= 16",
  "STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + 16384 * CONSUMERS + 2048 <= smem_limit",
]
[tma.a]
box          = ["64", "TILE_K if a_t else TILE_M"]
swizzle      = 128
l2_promotion = 256
[tma.b]
box          = ["64", "(TILE_N if b_t else TILE_K) // CLUSTER"]
swizzle      = 128
l2_promotion = 256
[tma.c]
box          = ["64", "16"]
swizzle      = 128
[[launch]]
kernel  = "gemm"
grid    = ["CLUSTER * min(sms // CLUSTER, cdiv(m, TILE_M * CLUSTER) * cdiv(n, TILE_N) * batch)",
           1, 1]
block   = ["128 * (1 + CONSUMERS)", 1, 1]
cluster = ["CLUSTER", 1, 1]
smem    = """STAGES * 128 * (TILE_M + (TILE_N if b_t else cdiv(TILE_N, 64) * 64)) \
             + 16384 * CONSUMERS + 2048"""
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "batch", "ldc", "stride_c",
           "a_batched", "b_batched"]
---*/
// One thread copies, two or three warpgroups multiply, and the blocks stay while tiles last.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// - Warpgroup 0 gives its registers away; one thread of it keeps a ring of STAGES slots filled with
//   64-deep pieces of A and B. A slot has two mbarriers: `full` (the bytes are there) and `empty`
//   (every warp that reads it is done).
// - The other CONSUMERS warpgroups multiply. With PINGPONG 0 they share out each tile's rows, so
//   that it may be 128x256, or 192x256 for three. With PINGPONG 1 each of two has every other tile
//   for itself, and they take turns at the tensor cores: one writes its tile out while the other
//   multiplies.
// - A cluster of 2 takes two tiles, one above the other. Both need the same B: each block fetches
//   half of it into both. So a slot is empty only when the readers in both blocks say so.
// - Tiles are numbered so that the blocks at work at one time share rows of A and columns of B.
//
// Past an edge the copy engine reads zeros, and drops what is stored. A cluster's second block
// whose tile lies wholly past the last row does as always: the first needs its half of B.
namespace l2 {
constexpr int kCluster = CLUSTER, kGroups = CONSUMERS, kSharers = PINGPONG ? 1 : CONSUMERS;
}
// ---- l2/pdl.cuh
// Programmatic dependent launch (sm_90 and later): a launch may start before its predecessor ends.
//
// Before sm_90 launches on a stream never overlap, so both calls are rightly nothing there.

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
// ---- end of l2/pdl.cuh
// ---- l2/wgmma_pipeline_sm90.cuh
// Tiles of a product by wgmma, from TMA to the stored rows (sm_90a): one thread copies 64 of k at a
// time into a ring, warpgroups multiply, and each stores its own rows. Two blocks may take two
// tiles, one above the other: both need the same B, of which each fetches half into both. It is
// written for the tunables of the file that includes it, TILE_M, TILE_N, TILE_K, STAGES and GROUP,
// and for what that file defines before: kCluster, blocks that share B; kGroups, warpgroups that
// multiply; and kSharers, how many of them share out the rows of a tile.
// ---- l2/barrier.cuh
// Synchronisation of sm_90 and later: mbarriers, cluster and named barriers, proxy fences.
//
// An mbarrier is 8 bytes of shared memory that counts, for one phase after another, arrivals and
// the bytes that the copy engine still owes. A phase completes when both reach zero; the next one
// starts at once with the initial count. Waiters name a phase by its parity: phase 0 has parity 0,
// phase 1 parity 1, and so on in turn. Waiting for parity 1 on a fresh barrier returns at once, so
// a producer that starts with the other parity finds every slot of a ring empty.
// ---- l2/types.cuh
// The element type that was picked for this compile, and its conversions.
//
// A kernel names its operands' type `l2::elem`; L2_DTYPE_F16 or L2_DTYPE_BF16 decides what that is.
// Every conversion to it rounds to the nearest, ties to even, once.
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
// ---- end of l2/types.cuh

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
// ---- end of l2/barrier.cuh
// ---- l2/wgmma_tile_sm90.cuh
// A slot's product by wgmma, and how a warp stores its rows of a tile (sm_90a). Sums are floats, or
// halves, two to a register, where l2/wgmma_half_sm90.cuh was included before. It is written for
// the tunables of the file that includes it: TILE_M, TILE_N and TILE_K; and FLIP, if it has that.
// ---- l2/tma_sm90.cuh
// The tensor copy engine (TMA, sm_90 and later): boxes between global and shared memory.
//
// The host describes an operand by a tensor map of rank 3 (inner, outer, batch) and a box; one
// thread names a box by the coordinates of its first element. Elements outside the operand are read
// as zero, and still count as bytes; those of a store are dropped. A box lies in shared memory row
// by row. With swizzle 128 and rows of 128 bytes, 16-byte chunk c of row r lies where chunk
// c ^ (r % 8) would, rows counted from a 1024-byte boundary: see swizzle_128.


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
// ---- end of l2/tma_sm90.cuh

// ---- l2/wgmma_sm90.cuh
// Warpgroup matrix instructions (sm_90a): D (64 x N, float, registers) += A (64 x 16) * B (16 x N),
// A and B in shared memory, plus what the warps that use them need.
//
// All four warps of a warpgroup issue each call. Warp w of the group (0 to 3) and lane l hold, in
// d[4 * j + i], row 16 * w + l / 4 + 8 * (i / 2) and column 8 * j + 2 * (l % 4) + i % 2.
//
// The order of calls: wgmma_fence, any number of wgmma, wgmma_commit, wgmma_wait. Between the first
// wgmma and its wait the accumulators must not be touched.


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
// ---- end of l2/wgmma_sm90.cuh

namespace l2 {

// The factors of a tile: A gives its rows, B its columns. With FLIP these are b and a, transposed,
// and the tile is one of the transposed product. Whether they are stored along m, or n, not k:
#if defined(FLIP) && FLIP
constexpr bool kAlongM = !L2_B_T, kAlongN = L2_A_T;
#else
constexpr bool kAlongM = L2_A_T, kAlongN = !L2_B_T;
#endif

constexpr int kSlab = 64;                       // elements in a 128-byte swizzled row
constexpr int kColsB = kAlongN ? (TILE_N + kSlab - 1) / kSlab * kSlab : TILE_N;  // fetched of B
constexpr u32 kBytesA = TILE_M * TILE_K * 2, kBytesB = kColsB * TILE_K * 2;     // of a slot
constexpr u32 kSlabBytes = TILE_K * kSlab * 2;  // 64 columns (or rows), all of a slot's k
constexpr u32 kBufferBytes = 16 * kSlab * 2;    // what a warp stores at once: 16 rows of a slab
static_assert(TILE_K == kSlab && TILE_M % 64 == 0 && TILE_N % 8 == 0, "wgmma and swizzle");

// Registers of two neighbouring sums, and those two as they are stored.
template <class Sum> constexpr int kPair = 2;
template <> constexpr int kPair<u32> = 1;
__device__ __forceinline__ u32 pair_of(const float* d) { return pack2(d[0], d[1]); }
__device__ __forceinline__ u32 pair_of(const u32* d) { return d[0]; }

// Adds a slot's product, 64 of k in steps of 16; `a` is where the warpgroup's rows start. The sums
// are in pieces of 64 rows, kAcross of them side by side, row by row.
template <int kAcross, class Sum, int kPieces, int kRegisters>
__device__ __forceinline__ void multiply(Sum (&acc)[kPieces][kRegisters], u32 a, u32 b,
                                         bool first) {
  constexpr int kCols = kRegisters / kPair<Sum> * 4;  // of a piece
  constexpr u32 kStepA = (kAlongM ? 16 * 128 : 32) / 16, kStepB = (kAlongN ? 16 * 128 : 32) / 16;
  const auto operand_a = kAlongM ? wgmma_mn_major(a, kSlabBytes) : wgmma_k_major(a);
  const auto operand_b = kAlongN ? wgmma_mn_major(b, kSlabBytes) : wgmma_k_major(b);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < TILE_K / 16; ++step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      // 64 rows of A are 8 KB in either order, and so are 64 columns of B.
      const auto piece_a = operand_a + step * kStepA + i / kAcross * (64 * 128 / 16);
      const auto piece_b = operand_b + step * kStepB + i % kAcross * (kCols * 128 / 16);
      wgmma<kAlongM, kAlongN>(acc[i], piece_a, piece_b, step > 0 || !first);
    }
  }
  wgmma_commit();
}

// Waits for all products, which are then in the sums.
template <class Sum, int kPieces, int kRegisters>
__device__ __forceinline__ void complete(Sum (&acc)[kPieces][kRegisters]) {
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    for (int j = 0; j < kRegisters; ++j) wgmma_pin(acc[i][j]);
}

// Leaves a warp's 16 rows and 16 columns, the i-th of a slab, where a bulk store of the slab takes
// them.
template <class Sum>
__device__ __forceinline__ void stage(u32 buffer, int i, const Sum* d, int lane) {
  constexpr int p = kPair<Sum>;
  // 16x16 as four 8x8: rows 0-7, rows 8-15, and the same of the next 8 columns.
  stmatrix_x4(buffer + swizzle_128(lane % 16, i * 2 + lane / 16), pair_of(d), pair_of(d + p),
              pair_of(d + 2 * p), pair_of(d + 3 * p));
}

// The place in C that a warp writes to: rows and columns from `row` and `col` on, of m and n.
struct Output {
  elem* c;
  int row, col, m, n, ldc;

  // Writes the two pairs that a lane has of 16 rows and 8 columns, `down` and `right` of here.
  __device__ __forceinline__ void store(int down, int right, u32 upper, u32 lower,
                                        int lane) const {
    const int x = col + right + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + down + lane / 4 + half * 8;
      const u32 pair = half ? lower : upper;
      elem* to = c + static_cast<long long>(r) * ldc + x;  // 4-byte aligned: ldc and x are even
      if (r < m && x + 1 < n) *reinterpret_cast<u32*>(to) = pair;
      else if (r < m && x < n) *reinterpret_cast<unsigned short*>(to) = pair;
    }
  }
};

}  // namespace l2
// ---- end of l2/wgmma_tile_sm90.cuh

namespace l2 {

constexpr int kReaders = kGroups * 128;          // threads that multiply
constexpr int kRows = TILE_M / kSharers;         // of a tile, a warpgroup's own
constexpr int kBlocks = kRows / 64;              // wgmma takes 64 rows
// ptxas lets no wgmma have more registers than a thread starts with: for three warpgroups 64x256
// are two of them.
constexpr int kAcross = kGroups > 2 && TILE_N > 192 ? 2 : 1;
constexpr int kPieces = kBlocks * kAcross, kCols = TILE_N / kAcross;
constexpr int kStoreBuffers = 2;                 // per warp: one is filled, one drains
constexpr u32 kStoreBytes = kStoreBuffers * kBufferBytes;
static_assert(kRows % 64 == 0, "a warpgroup has whole blocks of 64 rows");

// Shared memory, from a 1024-byte boundary on, since the swizzle counts rows from one:
//   a[STAGES][kBytesA]  b[STAGES][kBytesB]  c[warps][kStoreBytes]  full[STAGES]  empty[STAGES]
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetC = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetFull = kOffsetC + kReaders / 32 * kStoreBytes;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;

// A thread's sums, floats or halves.
template <class Sum>
using Sums = Sum[kPieces][kCols / 4 * kPair<Sum>];

struct Tile {
  int row, col, batch;
};

// Tile `index` of block `rank` of a cluster, which has a tile in each of kCluster rows of tiles.
// GROUP such rows are walked column by column, then the next GROUP: the blocks at work at one time
// share rows of A and columns of B in the L2.
__device__ __forceinline__ Tile tile_at(int index, int tiles_m, int tiles_n, int rank) {
  const int batch = index / (tiles_m * tiles_n);
  index -= batch * tiles_m * tiles_n;
  const int group_rows = min(GROUP, tiles_m), group = index / (group_rows * tiles_n);
  const int rows = min(group_rows, tiles_m - group * group_rows);  // the last group may have fewer
  index -= group * group_rows * tiles_n;
  const int row = group * group_rows + index % rows;
  return {(row * kCluster + rank) * TILE_M, index / rows * TILE_N, batch};
}

// The ring, as one thread goes round it. A slot has two mbarriers: `full`, the bytes are there, and
// `empty`, every warp that reads it, in all blocks of the cluster, is done.
struct Ring {
  u32 base, slot = 0, parity = 0;  // of the rounds, which are odd and even in turn

  __device__ __forceinline__ u32 a() const { return base + slot * kBytesA; }
  __device__ __forceinline__ u32 b() const { return base + kOffsetB + slot * kBytesB; }
  __device__ __forceinline__ u32 full() const { return base + kOffsetFull + slot * 8; }
  __device__ __forceinline__ u32 empty() const { return base + kOffsetEmpty + slot * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(u32 steps) {
    slot += steps;
    parity ^= slot / STAGES & 1;
    slot %= STAGES;
  }
  // One thread does it, before a barrier of the cluster.
  __device__ __forceinline__ void init() const {
    for (u32 i = 0; i < STAGES; ++i) {
      mbarrier_init(base + kOffsetFull + i * 8, 1);  // the copying thread, and bytes it announces
      mbarrier_init(base + kOffsetEmpty + i * 8, kSharers * 4 * kCluster);
    }
    mbarrier_init_fence();
  }
};

// Fetches 64 of k, from k0 on, into the next slot: the block's A, and its share of the cluster's B.
__device__ __forceinline__ void load(Ring& ring, const tensor_map& map_a, const tensor_map& map_b,
                                     Tile tile, int k0, int rank, int batch_a, int batch_b) {
  mbarrier_wait(ring.empty(), ring.parity ^ 1);
  // All shares of B: another block's may come even before this announcement.
  mbarrier_arrive_expect_tx(ring.full(), kBytesA + kBytesB);
#pragma unroll
  for (int i = 0; i < (kAlongM ? TILE_M / kSlab : 1); ++i) {
    const int row = tile.row + i * kSlab;
    tma_load_3d(ring.a() + i * kSlabBytes, map_a, ring.full(), kAlongM ? row : k0,
                kAlongM ? k0 : row, batch_a);
  }
  // The share is a part of the columns where k is contiguous, else of each slab's k.
  constexpr int kShare = (kAlongN ? TILE_K : TILE_N) / kCluster;
#pragma unroll
  for (int i = 0; i < (kAlongN ? kColsB / kSlab : 1); ++i) {
    const u32 to = ring.b() + i * kSlabBytes + rank * kShare * 128;
    const int inner = kAlongN ? tile.col + i * kSlab : k0;
    const int outer = (kAlongN ? k0 : tile.col) + rank * kShare;
    if (kCluster == 1) tma_load_3d(to, map_b, ring.full(), inner, outer, batch_b);
    else tma_load_3d_multicast(to, map_b, ring.full(), inner, outer, batch_b, (1 << kCluster) - 1);
  }
  ring.next();
}

// Called by each reading warp: the slot may be overwritten, in all blocks of the cluster.
__device__ __forceinline__ void release(u32 empty, int lane) {
  if (kCluster == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < kCluster) {
    mbarrier_arrive_cluster(map_to_rank(empty, lane));
  }
}

// The product of the next `steps` slots, at least one; the warpgroup's rows start `rows` down.
// Calls `issued` once the last product is under way.
template <class Sum, int kRegisters, class Issued>
__device__ __forceinline__ void multiply_steps(Sum (&acc)[kPieces][kRegisters], Ring& ring,
                                               int steps, int rows, int lane, Issued issued) {
  u32 previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(ring.full(), ring.parity);
    multiply<kAcross>(acc, ring.a() + rows * 128, ring.b(), step == 0);
    wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
    if (step > 0) release(previous, lane);
    previous = ring.empty();
    ring.next();
  }
  issued();
  complete(acc);
  release(previous, lane);
}

// Writes one warp's 16 rows through its two buffers, 64 columns at a time, without other warps.
// Returns before the last copies have read them: they go on under the next tile's main loop.
template <class Sum>
__device__ __forceinline__ void store_by_copy(const Sum* acc, u32 buffers, u32& turn,
                                              const tensor_map& map_c, int row, int col, int batch,
                                              int n, int lane) {
#pragma unroll
  for (int slab = 0; slab < kCols / kSlab; ++slab) {
    if (col + slab * kSlab >= n) break;
    const u32 buffer = buffers + turn * kBufferBytes;
    if (lane == 0) tma_store_wait_read<kStoreBuffers - 1>();  // its last copy has read it
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlab / 16; ++i)
      stage(buffer, i, acc + (slab * (kSlab / 4) + i * 4) * kPair<Sum>, lane);
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      tma_store_3d(map_c, buffer, col + slab * kSlab, row, batch);
      tma_store_commit();
    }
    turn = (turn + 1) % kStoreBuffers;
  }
}

// Writes a warp's rows of a tile. A bulk store writes up to the next 16 bytes, as seen on an H200,
// so where n ends elsewhere, and where the tile is no multiple of 128 bytes wide, none is used.
template <class Sum, int kRegisters>
__device__ __forceinline__ void store_rows(const Sum (&acc)[kPieces][kRegisters],
                                           const Output& out, u32 buffers, u32& turn,
                                           const tensor_map& map_c, int batch, int lane) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int down = i / kAcross * 64, right = i % kAcross * kCols;
    if (out.row + down >= out.m) break;
    if (TILE_N % kSlab == 0 && out.n % 8 == 0) {
      store_by_copy(acc[i], buffers, turn, map_c, out.row + down, out.col + right, batch, out.n,
                    lane);
    } else {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const Sum* d = acc[i] + j * 2 * kPair<Sum>;
        out.store(down, right + j * 8, pair_of(d), pair_of(d + kPair<Sum>), lane);
      }
    }
  }
}

}  // namespace l2
// ---- end of l2/wgmma_pipeline_sm90.cuh

using namespace l2;

static_assert(!PINGPONG || CONSUMERS == 2, "two take turns");

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
gemm(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
     const __grid_constant__ tensor_map map_c, elem* __restrict__ c, int m, int n, int k, int batch,
     int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  // Shared addresses are 32 bits wide; both blocks of a cluster compute the same ones.
  Ring ring = {(shared_address(dynamic) + 1023) / 1024 * 1024};
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in a whole warp
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) % 4, lane = threadIdx.x % 32;
  const int rank = CLUSTER == 1 ? 0 : cluster_rank();

  // A cluster works on CLUSTER tiles, one above the other, as if on one.
  const int tiles_m = (m - 1) / (TILE_M * CLUSTER) + 1, tiles_n = (n - 1) / TILE_N + 1;
  const int tiles = tiles_m * tiles_n * batch, steps_k = (k - 1) / TILE_K + 1;
  const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;

  if (threadIdx.x == 0) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    prefetch_tensor_map(map_c);
    ring.init();
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_arrive(), cluster_wait();  // so are the other block's barriers
  grid_dependency_wait();

  // Of 65,536 registers each thread starts with an equal share: 168, or 128 where three multiply.
  if (group == 0) {
    setmaxnreg_decrease<CONSUMERS == 2 ? 40 : 32>();
    if (warp == 0 && lane == 0) {
      for (int index = first; index < tiles; index += stride) {
        const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
        for (int step = 0; step < steps_k; ++step)
          load(ring, map_a, map_b, tile, step * TILE_K, rank, tile.batch * a_batched,
               tile.batch * b_batched);
      }
      launch_dependents();
    }
  } else {
    setmaxnreg_increase<CONSUMERS == 2 ? 232 : 160>();
    const int consumer = group - 1, rows = PINGPONG ? 0 : consumer * kRows;  // above its own
    const u32 buffers = ring.base + kOffsetC + (consumer * 4 + warp) * kStoreBytes;
    u32 turn = 0;
    Sums<float> acc;

    if (PINGPONG && consumer == 1) ring.skip(steps_k);  // the first tile is the other's
    for (int index = first + (PINGPONG ? consumer * stride : 0); index < tiles;
         index += PINGPONG ? 2 * stride : stride) {
      const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
      // Named barriers 1 and 2 pass the tensor cores on, tile by tile.
      if (PINGPONG && index != first) named_barrier_sync(1 + consumer, 256);
      multiply_steps(acc, ring, steps_k, rows, lane, [=] {
        if (PINGPONG && index + stride < tiles) named_barrier_arrive(2 - consumer, 256);
      });
      if (PINGPONG) ring.skip(steps_k);  // the other's tile

      const Output out = {c + tile.batch * stride_c, tile.row + rows + warp * 16, tile.col, m, n,
                          ldc};
      store_rows(acc, out, buffers, turn, map_c, tile.batch, lane);
    }
    // Shared memory must outlive the copies that read it.
    if (lane == 0) tma_store_wait_read<0>();
  }
  // A block stays until the other has sent its last bytes and arrivals here.
  if (CLUSTER > 1) cluster_arrive(), cluster_wait();
}
