/*---l2tune
id       = "sm90a/wgmma_split"
summary  = "One wave of clusters, whose blocks share out k and share what they fetch."
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "SPLIT * cdiv(m, 8) * cdiv(n, 8) * ROWS * COLS * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M = [64, 128]
TILE_N = [8, 16, 32, 64, 96, 128, 192, 256]
TILE_K = [64]
STAGES = [2, 3, 4, 5, 6, 7, 8, 10, 12]
SPLIT  = [1, 2, 3, 4, 5, 6, 7, 8]
ROWS   = [1, 2]
COLS   = [1, 2]
PUSH   = [0, 1]
FLIP   = [0, 1]
where  = ["SPLIT * ROWS * COLS <= 8", "TILE_N >= 8 * SPLIT", "TILE_N % (8 * ROWS) == 0",
          """STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + 2048 \
             + PUSH * (SPLIT - 1) * cdiv(TILE_N, 8 * SPLIT) * 32 * TILE_M <= smem_limit""",
          "SPLIT == 1 or PUSH == 1 or TILE_M * TILE_N * 4 <= STAGES * 128 * (TILE_M + TILE_N)",
          "SPLIT > 1 or PUSH == 0"]
[tma.a]
box          = ["64", """(TILE_K if a_t else TILE_M) // COLS if FLIP == 0 \
                         else (TILE_K if a_t else TILE_N) // ROWS"""]
swizzle      = 128
l2_promotion = 256
[tma.b]
box          = ["64", """(TILE_N if b_t else TILE_K) // ROWS if FLIP == 0 \
                         else (TILE_M if b_t else TILE_K) // COLS"""]
swizzle      = 128
l2_promotion = 256
[tma.c]
box          = ["64", "16"]
swizzle      = 128
[[launch]]
kernel  = "gemm"
grid    = ["""SPLIT * ROWS * COLS * cdiv(n if FLIP else m, TILE_M * ROWS) \
              * cdiv(m if FLIP else n, TILE_N * COLS) * batch""", 1, 1]
block   = ["2 * TILE_M + 32", 1, 1]
cluster = ["SPLIT * ROWS * COLS", 1, 1]
smem    = """STAGES * 128 * (TILE_M + (TILE_N if (a_t == 0 if FLIP else b_t == 1) \
                                       else cdiv(TILE_N, 64) * 64)) + 2048 \
             + PUSH * (SPLIT - 1) * cdiv(TILE_N, 8 * SPLIT) * 32 * TILE_M"""
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "ldc", "stride_c", "a_batched",
           "b_batched"]
---*/
// For products that one wave of blocks computes: nothing stays, nothing is launched twice.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// - A cluster has ROWS x COLS tiles of C, and SPLIT blocks for each. Block `part` of a tile takes
//   that part of k, so that many multiprocessors read the operands of a small, deep product.
// - Tiles side by side need the same of A, tiles one above the other the same of B: each block
//   fetches its share of both, into all blocks that need it.
// - The last warp of a block copies, through a ring of STAGES slots 64 deep; the others, one or two
//   warpgroups of 64 rows, multiply. A slot is free when its readers in all blocks that write to
//   it have said so.
// - Then each block leaves its sums in its own shared memory, where the ring was, meets the others,
//   and adds up its share of the columns from all parts, always in the same order.
// - With FLIP the tiles are those of the transposed product: n goes along the 64 rows that an
//   instruction has at least, and m along the columns, of which 8 will do.
// - With PUSH it sends the others their shares as soon as it has them, from registers into memory
//   kept for that beside the ring; each block waits only for what it is sent.
//
// Past an edge the copy engine reads zeros, and drops what is stored; a block with no part of k
// adds zeros. A bulk store writes up to the next 16 bytes; where n ends elsewhere, none is used.
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
// ---- l2/push.cuh
// Registers sent into the shared memory of another block of the cluster, sm_90 and later.
//
// They arrive some time later and count as bytes at an mbarrier of that block, which need not ask
// for them. The sender need not wait and may exit; the receiver must be there until all has come.



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
// ---- end of l2/push.cuh
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

using namespace l2;

constexpr int kBlocks = SPLIT * ROWS * COLS;  // of a cluster
constexpr int kReaders = TILE_M / 64 * 128;   // threads that multiply
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetFull = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;
constexpr int kEights = TILE_N / 8;           // groups of 8 columns, of which a thread holds 4 sums

constexpr int kPeers = ROWS + COLS - 1;       // blocks that read what this one fetches, it included

// Where the barrier for what is pushed is, after those of the ring.
__device__ __forceinline__ u32 pushed(u32 base) { return base + kOffsetEmpty + STAGES * 8; }

// Where a block stands in its cluster.
struct Place {
  int part, row, col;

  __device__ __forceinline__ int rank_of(int other_part, int other_row, int other_col) const {
    return (other_part * ROWS + other_row) * COLS + other_col;
  }
  // The i-th block that shares an operand with this one, counted from 0: its row, then its column.
  __device__ __forceinline__ int peer(int i) const {
    if (i < COLS) return rank_of(part, row, i);
    return rank_of(part, i - COLS + (i - COLS >= row), col);
  }
};

// Rows and columns of the product, or of the transposed one.
struct Tile {
  int row, col, batch_a, batch_b;
};

// Fetches 64 of k: this block's share of A for the blocks of its row, of B for those of its column.
__device__ __forceinline__ void load(u32 base, int slot, const tensor_map& map_a,
                                     const tensor_map& map_b, Tile tile, Place place, int k0) {
  const u32 full = base + kOffsetFull + slot * 8;
  mbarrier_arrive_expect_tx(full, kBytesA + kBytesB);  // of all shares
  constexpr int kShareA = (kAlongM ? kSlab : TILE_M) / COLS;
  constexpr int kShareB = (kAlongN ? kSlab : TILE_N) / ROWS;
  const u32 a = base + slot * kBytesA + place.col * kShareA * 128;
  const u32 b = base + kOffsetB + slot * kBytesB + place.row * kShareB * 128;
  const int k_a = k0 + (kAlongM ? place.col * kShareA : 0);
  const int row = tile.row + (kAlongM ? 0 : place.col * kShareA);
  const int k_b = k0 + (kAlongN ? place.row * kShareB : 0);
  const int col = tile.col + (kAlongN ? 0 : place.row * kShareB);
#pragma unroll
  for (int i = 0; i < (kAlongM ? TILE_M / kSlab : 1); ++i) {
    const int inner = kAlongM ? row + i * kSlab : k_a, outer = kAlongM ? k_a : row;
    if (COLS == 1) tma_load_3d(a + i * kSlabBytes, map_a, full, inner, outer, tile.batch_a);
    else tma_load_3d_multicast(a + i * kSlabBytes, map_a, full, inner, outer, tile.batch_a,
                               3 << place.rank_of(place.part, place.row, 0));
  }
#pragma unroll
  for (int i = 0; i < (kAlongN ? kColsB / kSlab : 1); ++i) {
    const int inner = kAlongN ? col + i * kSlab : k_b, outer = kAlongN ? k_b : col;
    if (ROWS == 1) tma_load_3d(b + i * kSlabBytes, map_b, full, inner, outer, tile.batch_b);
    else tma_load_3d_multicast(b + i * kSlabBytes, map_b, full, inner, outer, tile.batch_b,
                               (1 | 1 << COLS) << place.rank_of(place.part, 0, place.col));
  }
}

// Called by each reading warp: the slot may be overwritten, by every block that fetches for it.
__device__ __forceinline__ void release(u32 empty, Place place, int lane) {
  if (kPeers == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < kPeers) {
    mbarrier_arrive_cluster(map_to_rank(empty, place.peer(lane)));
  }
}

__device__ __forceinline__ void store_shared(u32 address, const float* d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]) : "memory");
}

__device__ __forceinline__ float4 load_cluster(u32 remote) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(remote) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_shared(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
}

// Writes a warp's 16 rows through `buffer`, 2 KB of shared memory for each 64 columns.
__device__ __forceinline__ void store_by_copy(const float* acc, u32 buffer, const Output& out,
                                              const tensor_map& map_c, int batch, int lane) {
#pragma unroll
  for (int i = 0; i < TILE_N / 16; ++i)
    stage(buffer + i / 4 * kBufferBytes, i % 4, acc + i * 8, lane);
  fence_proxy_async_shared();
  __syncwarp();
  if (lane == 0) {
    for (int slab = 0; slab < TILE_N / kSlab && out.col + slab * kSlab < out.n; ++slab)
      tma_store_3d(map_c, buffer + slab * kBufferBytes, out.col + slab * kSlab, out.row, batch);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory must outlive the copies that read it
  }
}

// Writes the four sums that a lane holds of the `eight`-th 8 columns.
__device__ __forceinline__ void store(const Output& out, int eight, const float* d, int lane) {
  if (!FLIP) return out.store(0, eight * 8, pair_of(d), pair_of(d + 2), lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = out.row + lane / 4 + i / 2 * 8;
    const int col = out.col + eight * 8 + lane % 4 * 2 + i % 2;
    if (row < out.m && col < out.n)
      out.c[static_cast<long long>(col) * out.ldc + row] = to_elem(d[i]);
  }
}

// Sends each other part its share of the columns, and adds up this block's own, part 0 first.
__device__ __forceinline__ void add_pushed(const float* acc, u32 base, Place place,
                                           const Output& out, int lane) {
  constexpr int kShare = (kEights + SPLIT - 1) / SPLIT;  // groups of 8 columns, at most
  const u32 parts = base + (pushed(0) + 8 + 127) / 128 * 128 + threadIdx.x * 16;
  // What part `from` sends to part `to`: a block has no place for its own.
  const auto place_of = [=](int from, int to) {
    return parts + (from - (from > to)) * kShare * kReaders * 16;
  };
  u32 there[SPLIT], barrier[SPLIT];
#pragma unroll
  for (int p = 0; p < SPLIT; ++p) {
    const int rank = place.rank_of(p, place.row, place.col);
    there[p] = map_to_rank(place_of(place.part, p), rank);
    barrier[p] = map_to_rank(pushed(base), rank);
  }
  float own[kShare * 4] = {};
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const int p = ((eight + 1) * SPLIT - 1) / kEights;  // whose share it is in
    const int i = eight - kEights * p / SPLIT;
    const float* d = acc + eight * 4;
    if (p != place.part) push(there[p] + i * kReaders * 16, d, barrier[p]);
    else own[i * 4] = d[0], own[i * 4 + 1] = d[1], own[i * 4 + 2] = d[2], own[i * 4 + 3] = d[3];
  }
  mbarrier_wait_cluster(pushed(base), 0);
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int eight = kEights * place.part / SPLIT + i;
    if (kEights % SPLIT && eight == kEights * (place.part + 1) / SPLIT) break;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int p = 0; p < SPLIT; ++p) {
      float4 part = {own[i * 4], own[i * 4 + 1], own[i * 4 + 2], own[i * 4 + 3]};
      if (p != place.part) part = load_shared(place_of(p, place.part) + i * kReaders * 16);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
    store(out, eight, sum, lane);
  }
}

extern "C" __global__ void __launch_bounds__(kReaders + 32)
gemm(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
     const __grid_constant__ tensor_map map_c, elem* __restrict__ c, int m, int n, int k,
     int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  // The swizzle counts rows from a 1024-byte boundary; all blocks of a cluster find the same one.
  const u32 base = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const u32 full = base + kOffsetFull, empty = base + kOffsetEmpty;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = kBlocks == 1 ? 0 : cluster_rank();
  const Place place = {rank / (ROWS * COLS), rank / COLS % ROWS, rank % COLS};

  // Rows and columns of the product whose tiles these are, and what its factors are.
  const int rows = FLIP ? n : m, cols = FLIP ? m : n;
  const tensor_map& rows_map = FLIP ? map_b : map_a;
  const tensor_map& cols_map = FLIP ? map_a : map_b;
  const int rows_batched = FLIP ? b_batched : a_batched;
  const int cols_batched = FLIP ? a_batched : b_batched;

  const int tiles_m = (rows - 1) / (TILE_M * ROWS) + 1, tiles_n = (cols - 1) / (TILE_N * COLS) + 1;
  const int index = blockIdx.x / kBlocks, batch = index / (tiles_m * tiles_n);
  const int in_batch = index - batch * tiles_m * tiles_n;
  const Tile tile = {(in_batch % tiles_m * ROWS + place.row) * TILE_M,
                     (in_batch / tiles_m * COLS + place.col) * TILE_N, batch * rows_batched,
                     batch * cols_batched};
  const long long steps_k = (k - 1) / kSlab + 1;
  const int begin = static_cast<int>(steps_k * place.part / SPLIT);
  const int steps = static_cast<int>(steps_k * (place.part + 1) / SPLIT) - begin;

  const bool copies = warp == kReaders / 32 && lane == 0;
  if (copies) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    if (SPLIT == 1 && !FLIP) prefetch_tensor_map(map_c);
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + i * 8, 1);  // the copying thread, and the bytes it announces
      mbarrier_init(empty + i * 8, kReaders / 32 * kPeers);
    }
    if (PUSH) mbarrier_init(pushed(base), 1);
    mbarrier_init_fence();
    if (PUSH) {
      const int groups = kEights * (place.part + 1) / SPLIT - kEights * place.part / SPLIT;
      mbarrier_arrive_expect_tx(pushed(base), (SPLIT - 1) * groups * kReaders * 16);
    }
  }
  if (kPeers > 1) cluster_arrive(), cluster_wait();  // so are the other blocks' barriers
  else if (PUSH) cluster_arrive_relaxed();  // they will be when something is sent
  if (copies) {
    grid_dependency_wait();
    for (int step = 0; step < min(STAGES, steps); ++step)
      load(base, step, rows_map, cols_map, tile, place, (begin + step) * kSlab);
  }
  __syncthreads();

  if (copies) {
    u32 parity = 0;
    for (int step = STAGES, slot = 0; step < steps; ++step) {
      mbarrier_wait(empty + slot * 8, parity);
      load(base, slot, rows_map, cols_map, tile, place, (begin + step) * kSlab);
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    launch_dependents();
  }
  const Output out = {c + batch * stride_c, tile.row + warp * 16, tile.col, rows, cols, ldc};
  float acc[1][TILE_N / 2];
  if (warp < kReaders / 32) {
    int slot = 0, previous = 0;
    u32 parity = 0;
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) acc[0][i] = 0;
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(full + slot * 8, parity);
      multiply<1>(acc, base + slot * kBytesA + warp / 4 * (64 * 128),
                  base + kOffsetB + slot * kBytesB, step == 0);
      wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
      if (step > 0) release(empty + previous * 8, place, lane);
      previous = slot;
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    complete(acc);
    grid_dependency_wait();  // C may be read by the launch before
    if (SPLIT == 1 && (FLIP || TILE_N % kSlab || n % 8)) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) store(out, i, acc[0] + i * 4, lane);
    } else if (!PUSH) {
      named_barrier_sync(1, kReaders);  // no warpgroup reads the ring any more
    }
    if (SPLIT == 1 && !FLIP && TILE_N % kSlab == 0 && n % 8 == 0 && out.row < m)
      store_by_copy(acc[0], base + warp * (TILE_N * 32), out, map_c, batch, lane);
    if (SPLIT > 1 && !PUSH) {
#pragma unroll
      for (int i = 0; i < kEights; ++i)
        store_shared(base + (i * kReaders + threadIdx.x) * 16, acc[0] + i * 4);
    }
  }
  if (PUSH) {
    if (kPeers == 1) cluster_wait();  // the other blocks' barriers are initialised
    if (warp < kReaders / 32) add_pushed(acc[0], base, place, out, lane);
  } else if (SPLIT > 1) {
    cluster_arrive(), cluster_wait();  // every block's sums are there
    if (warp < kReaders / 32) {
      constexpr int kShare = (kEights + SPLIT - 1) / SPLIT;
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        const int eight = kEights * place.part / SPLIT + i;
        if (kEights % SPLIT && eight == kEights * (place.part + 1) / SPLIT) break;
        const u32 mine = base + (eight * kReaders + threadIdx.x) * 16;
        float4 part[SPLIT];
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
          part[p] = load_cluster(map_to_rank(mine, place.rank_of(p, place.row, place.col)));
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
          sum[0] += part[p].x, sum[1] += part[p].y, sum[2] += part[p].z, sum[3] += part[p].w;
        store(out, eight, sum, lane);
      }
    }
  }
  // A block stays until the others have read its sums, and sent their last arrivals. What they push
  // it has waited for.
  if (kBlocks > 1 && (!PUSH || kPeers > 1)) cluster_arrive(), cluster_wait();
}
