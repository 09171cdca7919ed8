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
  const u32 smem_base = l2::shared_address(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * kWarpM, warp_n = warp % WARPS_N * kWarpN;
  const Work work(m, n, k, batch);

  l2::grid_dependency_wait();
  l2::launch_dependents();

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
    float acc[kMmaM][kMmaN][4] = {};
    Fragments fragments[2];

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      tile_a.copy_tile(smem_base + s * kBytesA);
      tile_b.copy_tile(smem_base + STAGES * kBytesA + s * kBytesB);
      l2::cp_async_commit();
    }
    l2::cp_async_wait<STAGES - 2>();
    __syncthreads();
    int read = 0, write = STAGES - 1;
    load_fragments(fragments[0], tile_a, tile_b, smem_base, read, 0);

    for (int t = first; t < last; ++t) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          // All fragments of this tile are in registers: after the barrier its buffer may be
          // overwritten, and the next tile is there for every thread.
          l2::cp_async_wait<STAGES - 2>();
          __syncthreads();
          read = read == STAGES - 1 ? 0 : read + 1;
        }
        load_fragments(fragments[(step + 1) % 2], tile_a, tile_b, smem_base, read,
                       (step + 1) % kSteps);
        if (step == 0) tile_a.copy_tile(smem_base + write * kBytesA);
        if (step == kCopyStepB) {
          tile_b.copy_tile(smem_base + STAGES * kBytesA + write * kBytesB);
          l2::cp_async_commit();
          write = write == STAGES - 1 ? 0 : write + 1;
        }
        const Fragments& now = fragments[step % 2];
#pragma unroll
        for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
          for (int j = 0; j < kMmaN; ++j) l2::mma_m16n8k16(acc[i][j], now.a[i], now.b[j]);
        }
      }
    }

    if (last - first < work.steps) {
      float* partial = workspace + (2 * static_cast<long long>(blockIdx.x) + (begin < tile_begin)) *
                                       (TILE_M * TILE_N);
#pragma unroll
      for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
        for (int j = 0; j < kMmaN; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int r = warp_m + i * 16 + half * 8 + lane / 4, s = warp_n + j * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(partial + r * TILE_N + s) =
                make_float2(acc[i][j][2 * half], acc[i][j][2 * half + 1]);
          }
        }
      }
    }

    l2::cp_async_wait<0>();
    __syncthreads();  // the results, or the next tile, reuse the tiles' memory
    if (last - first < work.steps) continue;

    const int row = tile.row + warp_m, col = tile.col + warp_n;
    elem* staged = reinterpret_cast<elem*>(smem) + warp * 16 * kPitchC;
    elem* out = c + tile.batch * stride_c + static_cast<long long>(row) * ldc + col;
#pragma unroll
    for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
      for (int j = 0; j < kMmaN; ++j) {
        elem* to = staged + lane / 4 * kPitchC + j * 8 + lane % 4 * 2;
        *reinterpret_cast<u32*>(to) = l2::pack2(acc[i][j][0], acc[i][j][1]);
        *reinterpret_cast<u32*>(to + 8 * kPitchC) = l2::pack2(acc[i][j][2], acc[i][j][3]);
      }
      __syncwarp();
      store_rows(out + static_cast<long long>(i) * 16 * ldc, staged, ldc, m - row - i * 16,
                 n - col);
      __syncwarp();  // the next 16 rows overwrite these
    }
    __syncthreads();  // and so do the next tile's copies
  }
}

// The tile within which share blockIdx.x begins, if no earlier share does: all its parts, added up.
// A thread takes four columns.
extern "C" __global__ void __launch_bounds__(128)
join(const float* __restrict__ workspace, elem* __restrict__ c, int m, int n, int k, int batch,
     int ldc, long long stride_c) {
  l2::grid_dependency_wait();  // blocks without a tile too: this launch must not end first
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
