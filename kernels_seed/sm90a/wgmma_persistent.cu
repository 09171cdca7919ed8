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
#include "l2/pdl.cuh"
#include "l2/wgmma_pipeline_sm90.cuh"

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
