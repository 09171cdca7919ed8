/*---l2tune
id       = "sm80/mma_streamk"
summary  = "The multistage pipeline, every block an equal share of all tiles' steps over k."
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = [
  "align >= 16",
  "k >= 1",
  "max(m, n, k) <= 2147000000",
  "cdiv(m, TILE_M) * cdiv(n, TILE_N) * batch <= 2147483647",
]
workspace = "BLOCKS * sms * 2 * TILE_M * TILE_N * 4"
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M  = [32, 64, 128]
TILE_N  = [32, 64, 128]
TILE_K  = [32, 64]
WARPS_M = [1, 2, 4]
WARPS_N = [1, 2, 4]
STAGES  = [3, 4, 5]
BLOCKS  = [1, 2]
GROUP   = [1, 4, 8]
where   = [
  "WARPS_M * WARPS_N <= 8 and TILE_M >= 16 * WARPS_M and TILE_N >= 16 * WARPS_N",
  "TILE_M <= 64 * WARPS_M and TILE_N <= 64 * WARPS_N",
  "TILE_M * TILE_N <= 2048 * WARPS_M * WARPS_N",
  "max(TILE_M, TILE_N) * TILE_K <= 2048 * WARPS_M * WARPS_N",
  "BLOCKS == 1 or WARPS_M * WARPS_N <= 4",
  "(TILE_M + TILE_N) * TILE_K * 2 * STAGES * BLOCKS <= smem_limit",
]
[[launch]]
kernel   = "gemm"
grid     = [
  "min(BLOCKS * sms, cdiv(m, TILE_M) * cdiv(n, TILE_N) * batch * cdiv(k, TILE_K))", 1, 1,
]
block    = ["32 * WARPS_M * WARPS_N", 1, 1]
pdl      = true
smem     = "max((TILE_M + TILE_N) * TILE_K * 2 * STAGES, 32 * WARPS_M * (TILE_N + 8 * WARPS_N))"
args     = [
  "a", "b", "c", "workspace", "m", "n", "k", "batch",
  "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c",
]
[[launch]]
kernel   = "join"
grid     = [
  "min(BLOCKS * sms, cdiv(m, TILE_M) * cdiv(n, TILE_N) * batch * cdiv(k, TILE_K))",
  "TILE_M * TILE_N // 512", 1,
]
block    = [128, 1, 1]
pdl      = true
args     = ["workspace", "c", "m", "n", "k", "batch", "ldc", "stride_c"]
---*/
// mma_multistage, whose pipeline this is, without its last wave: one block a multiprocessor (or
// BLOCKS), and each an equal share of all the steps over k that all tiles need, in a row.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N]; either operand may be stored transposed.
//
// Where a share begins or ends within a tile, the block leaves that tile's float sums in
// `workspace`, [block][first or last tile][TILE_M][TILE_N]. Tiles that a block has to itself are
// stored at once. `join` adds up the parts of each divided tile, in the order of the blocks, which
// is the order of k: the result does not hang on which block came first.
#include "l2/mma_pipeline_sm80.cuh"
#include "l2/pdl.cuh"

using namespace l2;

// The work: steps over k of all tiles, tile after tile.
struct Work {
  unsigned tiles_m, tiles_n;
  long long steps, total;  // of a tile, of all

  __device__ __forceinline__ Work(int m, int n, int k, int batch)
      : tiles_m((m - 1) / TILE_M + 1), tiles_n((n - 1) / TILE_N + 1), steps((k - 1) / TILE_K + 1),
        total(steps * tiles_m * tiles_n * batch) {}

  // Where block `block` begins; the one before it ends there.
  __device__ __forceinline__ long long start(long long block) const {
    return total * block / gridDim.x;
  }
};

struct Tile {
  int row, col, batch;

  // Blocks that run at one time should share rows of A and columns of B in L2, so tiles walk a
  // band of GROUP tile rows column by column.
  __device__ __forceinline__ Tile(const Work& work, unsigned index) {
    const unsigned area = work.tiles_m * work.tiles_n, tile = index % area;
    const unsigned band = tile / (GROUP * work.tiles_n) * GROUP;
    const unsigned in_band = tile % (GROUP * work.tiles_n);
    const unsigned band_rows = min(work.tiles_m - band, static_cast<unsigned>(GROUP));
    row = (band + in_band % band_rows) * TILE_M, col = in_band / band_rows * TILE_N;
    batch = index / area;
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)
gemm(const elem* __restrict__ a, const elem* __restrict__ b, elem* __restrict__ c,
     float* __restrict__ workspace, int m, int n, int k, int batch, int lda, int ldb, int ldc,
     long long stride_a, long long stride_b, long long stride_c) {
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 smem_base = shared_address(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * kWarpM, warp_n = warp % WARPS_N * kWarpN;
  const Work work(m, n, k, batch);

  grid_dependency_wait();
  launch_dependents();

  const long long begin = work.start(blockIdx.x), end = work.start(blockIdx.x + 1);
  for (long long at = begin; at < end;) {
    const long long index = at / work.steps, tile_begin = index * work.steps;
    const Tile tile(work, static_cast<unsigned>(index));
    const int first = static_cast<int>(at - tile_begin);
    const int last = static_cast<int>(min(end - tile_begin, work.steps));
    at = tile_begin + last;
    const int k_begin = first * TILE_K, k_end = last == work.steps ? k : last * TILE_K;

    OperandA tile_a(a + tile.batch * stride_a, lda, tile.row, m, k_begin, k_end, warp_m);
    OperandB tile_b(b + tile.batch * stride_b, ldb, tile.col, n, k_begin, k_end, warp_n);
    Sums acc = {};
    multiply_tiles(acc, tile_a, tile_b, smem_base, last - first);

    if (last - first < work.steps) {
      float* partial = workspace + (2 * static_cast<long long>(blockIdx.x) + (begin < tile_begin)) *
                                       (TILE_M * TILE_N);
      for_pairs(acc, lane, [=](int down, int right, float2 sums) {
        *reinterpret_cast<float2*>(partial + (warp_m + down) * TILE_N + warp_n + right) = sums;
      });
    }

    cp_async_wait<0>();
    __syncthreads();  // the results, or the next tile, reuse the tiles' memory
    if (last - first < work.steps) continue;

    const int row = tile.row + warp_m, col = tile.col + warp_n;
    store_tile(acc, c + tile.batch * stride_c + static_cast<long long>(row) * ldc + col,
               reinterpret_cast<elem*>(smem) + warp * 16 * kPitchC, ldc, m - row, n - col, lane);
    __syncthreads();  // and so do the next tile's copies
  }
}

// The tile within which share blockIdx.x begins, if no earlier share does: all its parts, added up.
// A thread takes four columns.
extern "C" __global__ void __launch_bounds__(128)
join(const float* __restrict__ workspace, elem* __restrict__ c, int m, int n, int k, int batch,
     int ldc, long long stride_c) {
  grid_dependency_wait();  // blocks without a tile too: this launch must not end first
  const Work work(m, n, k, batch);
  const long long index = work.start(blockIdx.x) / work.steps, tile_begin = index * work.steps;
  if (work.start(blockIdx.x) == tile_begin || work.start(blockIdx.x - 1ll) > tile_begin) return;
  const Tile tile(work, static_cast<unsigned>(index));
  const int offset = (blockIdx.y * 128 + threadIdx.x) * 4;
  const int row = tile.row + offset / TILE_N, col = tile.col + offset % TILE_N;
  if (row >= m || col >= n) return;

  float4 sum = {};
  for (long long block = blockIdx.x - 1ll; block < gridDim.x; ++block) {
    const long long start = work.start(block);
    if (start >= tile_begin + work.steps) break;
    const float4 part = __ldcg(reinterpret_cast<const float4*>(
        workspace + (2 * block + (start < tile_begin)) * (TILE_M * TILE_N) + offset));
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }

  c += tile.batch * stride_c + static_cast<long long>(row) * ldc + col;
  store_quad(c, sum, col, n);
}
