/*---l2tune
id       = "sm80/mma_multistage"
summary  = "mma.sync fed by a multistage cp.async pipeline; split-K optional."
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = [
  "align >= 16",
  "cdiv(m, TILE_M) * cdiv(n, TILE_N) * SPLIT * batch <= 2147483647",
  "cdiv(m * cdiv(n, 4) * batch, 128) <= 2147483647",
]
workspace = "SPLIT * batch * m * cdiv(n, 4) * 16 if SPLIT > 1 else 0"
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M  = [16, 32, 64, 128, 256]
TILE_N  = [16, 32, 64, 128, 256]
TILE_K  = [32, 64, 128]
WARPS_M = [1, 2, 4]
WARPS_N = [1, 2, 4]
STAGES  = [3, 4, 5]
SPLIT   = [1, 2, 4, 8, 16, 32]
GROUP   = [1, 4, 8]
where   = [
  "WARPS_M * WARPS_N <= 8 and TILE_M >= 16 * WARPS_M and TILE_N >= 16 * WARPS_N",
  "TILE_M <= 64 * WARPS_M and TILE_N <= 64 * WARPS_N",
  "max(TILE_M, TILE_N) * TILE_K <= 2048 * WARPS_M * WARPS_N",
  "(TILE_M + TILE_N) * TILE_K * 2 * STAGES <= smem_limit",
]
[[launch]]
kernel   = "gemm"
grid     = ["cdiv(m, TILE_M) * cdiv(n, TILE_N) * SPLIT * batch", 1, 1]
block    = ["32 * WARPS_M * WARPS_N", 1, 1]
pdl      = "SPLIT > 1"
smem     = "max((TILE_M + TILE_N) * TILE_K * 2 * STAGES, 32 * WARPS_M * (TILE_N + 8 * WARPS_N))"
args     = [
  "a", "b", "c", "workspace", "m", "n", "k", "batch",
  "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c",
]
[[launch]]
kernel   = "reduce"
grid     = ["cdiv(m * cdiv(n, 4) * batch, 128) if SPLIT > 1 else 0", 1, 1]
block    = [128, 1, 1]
pdl      = true
args     = ["workspace", "c", "m", "n", "batch", "ldc", "stride_c"]
---*/
// The Ampere way to a fast product, in the order in which data moves:
//   1. cp.async brings 16-byte chunks of A and B tiles into a ring of STAGES buffers, STAGES - 1
//      tiles ahead. Chunks are XOR-swizzled, so that neither the copies nor ldmatrix, which reads
//      a column of eight chunks at once, meet a bank conflict.
//   2. ldmatrix moves 16x16 pieces to registers one k-step ahead of
//   3. mma.sync m16n8k16, which sums in float;
//   4. results go through shared memory once more, to be stored as 16-byte chunks.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N]; either operand may be stored transposed.
// Ragged edges cost no branch: cp.async fills what lies outside with zeros, in part of a chunk too,
// and a zero beyond k meets a zero.
// With SPLIT > 1 blocks share out k in whole tiles and leave float partial sums in `workspace`,
// [SPLIT][batch][M][pitch]; `reduce` adds them up, always in the same order.
#include "l2/mma_pipeline_sm80.cuh"
#include "l2/pdl.cuh"

using namespace l2;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemm(const elem* __restrict__ a, const elem* __restrict__ b, elem* __restrict__ c,
     void* __restrict__ workspace, int m, int n, int k, int batch, int lda, int ldb, int ldc,
     long long stride_a, long long stride_b, long long stride_c) {
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 smem_base = shared_address(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * kWarpM, warp_n = warp % WARPS_N * kWarpN;

  // Blocks that run at one time should share rows of A and columns of B in L2, so they walk a band
  // of GROUP tile rows column by column; then come the splits of k, then the batch.
  const unsigned tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
  const unsigned tile = blockIdx.x % (tiles_m * tiles_n), rest = blockIdx.x / (tiles_m * tiles_n);
  const int split = rest % SPLIT, item = rest / SPLIT;
  const unsigned band = tile / (GROUP * tiles_n) * GROUP, in_band = tile % (GROUP * tiles_n);
  const unsigned band_rows = min(tiles_m - band, static_cast<unsigned>(GROUP));
  const int row0 = (band + in_band % band_rows) * TILE_M, col0 = in_band / band_rows * TILE_N;

  // Whole tiles of k for each split, shared out evenly; a split may get none and then writes zeros.
  const long long k_tiles = (k + TILE_K - 1) / TILE_K;
  const int first = k_tiles * split / SPLIT, last = k_tiles * (split + 1) / SPLIT;
  const int k_begin = first * TILE_K, k_end = last == k_tiles ? k : last * TILE_K;

  grid_dependency_wait();
  if (SPLIT > 1) launch_dependents();

  OperandA tile_a(a + item * stride_a, lda, row0, m, k_begin, k_end, warp_m);
  OperandB tile_b(b + item * stride_b, ldb, col0, n, k_begin, k_end, warp_n);
  Sums acc = {};
  multiply_tiles(acc, tile_a, tile_b, smem_base, last - first);

  const int row = row0 + warp_m, col = col0 + warp_n;
  if (SPLIT > 1) {
    // Two neighbouring columns are one 8-byte store. The pitch covers an odd n.
    const int pitch = (n + 3) / 4 * 4;
    float* partial = static_cast<float*>(workspace) +
                     (static_cast<long long>(split) * batch + item) * m * pitch;
    for_pairs(acc, lane, [=](int down, int right, float2 sums) {
      const int r = row + down, s = col + right;
      if (r < m && s < pitch)
        *reinterpret_cast<float2*>(partial + static_cast<long long>(r) * pitch + s) = sums;
    });
    return;
  }

  cp_async_wait<0>();
  __syncthreads();  // the results reuse the tiles' memory
  store_tile(acc, c + item * stride_c + static_cast<long long>(row) * ldc + col,
             reinterpret_cast<elem*>(smem) + warp * 16 * kPitchC, ldc, m - row, n - col, lane);
}

// c = the sum of the partial results, split 0 first. A thread takes four columns.
extern "C" __global__ void __launch_bounds__(128)
reduce(const void* __restrict__ workspace, elem* __restrict__ c, int m, int n, int batch, int ldc,
       long long stride_c) {
  grid_dependency_wait();
  const int quads = (n + 3) / 4;
  const long long size = static_cast<long long>(batch) * m * quads;
  const long long index = blockIdx.x * 128ll + threadIdx.x;
  if (index >= size) return;
  const long long row = index / quads;
  const int col = static_cast<int>(index % quads) * 4;

  const float4* partial = static_cast<const float4*>(workspace) + index;
  float4 sum = __ldcg(partial);
#pragma unroll
  for (int s = 1; s < SPLIT; ++s) {
    const float4 next = __ldcg(partial + s * size);
    sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
  }

  c += row / m * stride_c + row % m * ldc + col;
  store_quad(c, sum, col, n);
}
