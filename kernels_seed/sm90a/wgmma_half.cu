/*---l2tune
id       = "sm90a/wgmma_half"
summary  = "wgmma with float16 sums: half the registers, so that a tile may be 256x256."
arch     = ["sm_90a"]
dtype    = ["f16"]
acc      = "f16"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "cdiv(m, 64) * cdiv(n, 8) * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M  = [128, 256]
TILE_N  = [64, 128, 256]
TILE_K  = [64]
STAGES  = [2, 3, 4, 5, 6, 7, 8]
CLUSTER = [1, 2]
GROUP   = [1, 2, 4, 8, 16]
where   = ["STAGES * 128 * (TILE_M + TILE_N) + 34816 <= smem_limit"]
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
block   = [384, 1, 1]
cluster = ["CLUSTER", 1, 1]
smem    = "STAGES * 128 * (TILE_M + TILE_N) + 34816"
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "batch", "ldc", "stride_c",
           "a_batched", "b_batched"]
---*/
// Sums in float16, for those who asked for them: every 16 products are rounded to half precision.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// The structure of wgmma_persistent without its ping-pong: one thread keeps a ring of STAGES slots
// filled, two warpgroups halve each tile's rows between them, a cluster of 2 takes two tiles, one
// above the other, and each block fetches half of B into both. Two sums share a register, so a
// thread of a 256x256 tile has 128 of them, and each byte fetched serves more products than in any
// tile of float sums. What it stores it has in registers already: nothing is converted.
namespace l2 {
constexpr int kCluster = CLUSTER, kGroups = 2, kSharers = 2;
}
#include "l2/wgmma_half_sm90.cuh"
#include "l2/wgmma_pipeline_sm90.cuh"

using namespace l2;

extern "C" __global__ void __launch_bounds__(384, 1)
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

  if (group == 0) {
    setmaxnreg_decrease<40>();
    if (warp == 0 && lane == 0) {
      for (int index = first; index < tiles; index += stride) {
        const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
        for (int step = 0; step < steps_k; ++step)
          load(ring, map_a, map_b, tile, step * TILE_K, rank, tile.batch * a_batched,
               tile.batch * b_batched);
      }
    }
  } else {
    setmaxnreg_increase<232>();
    const int rows = (group - 1) * kRows;  // of the tile, above this warpgroup's
    const u32 buffers = ring.base + kOffsetC + ((group - 1) * 4 + warp) * kStoreBytes;
    u32 turn = 0;
    Sums<u32> acc;

    for (int index = first; index < tiles; index += stride) {
      const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
      multiply_steps(acc, ring, steps_k, rows, lane, [] {});
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
