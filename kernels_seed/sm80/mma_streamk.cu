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
#include "l2/cp_async.cuh"
#include "l2/mma_sm80.cuh"
#include "l2/pdl.cuh"
#include "l2/types.cuh"

using l2::elem;
using l2::u32;

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kChunk = 8;                       // elements in 16 bytes
constexpr int kWarpM = TILE_M / WARPS_M;        // a warp's share of the tile
constexpr int kWarpN = TILE_N / WARPS_N;
constexpr int kMmaM = kWarpM / 16;              // its mma tiles
constexpr int kMmaN = kWarpN / 8;
constexpr int kSteps = TILE_K / 16;             // k-steps of a tile; even, as fragments alternate
constexpr int kCopyStepB = kSteps > 2 ? 1 : 0;  // A is copied in step 0; the last step waits

// Shared memory: STAGES tiles of A, then STAGES of B. After the last tile the same bytes hold, for
// each warp, 16 rows of its results at a pitch of kWarpN + 8: a multiple of 16 bytes, and eight
// rows of it start in different banks.
constexpr int kBytesA = TILE_M * TILE_K * 2, kBytesB = TILE_N * TILE_K * 2;
constexpr int kPitchC = kWarpN + 8;

// One operand. `kMajor` is the tile's extent along m or n; `kAlongK` says that rows in memory run
// along k. Bit `kMajorBit` of the lane picks the upper half of a 16x16 piece along m or n, in the
// order in which mma wants its registers; the other one of bits 3 and 4 the upper half along k.
template <bool kAlongK, int kMajor, int kMajorBit>
struct Operand {
  static constexpr int kWidth = kAlongK ? TILE_K : kMajor;      // elements in a row of the tile
  static constexpr int kHeight = kAlongK ? kMajor : TILE_K;
  static constexpr int kChunks = kWidth / kChunk;               // chunks in a row
  static constexpr int kTotal = kChunks * kHeight;
  static constexpr int kRowStep = kThreads / kChunks;           // rows between a thread's chunks
  static constexpr int kCopies = (kTotal + kThreads - 1) / kThreads;
  static_assert(kThreads % kChunks == 0, "a thread's chunks all lie in one column");

  const elem* source;     // this thread's first chunk of the next tile to copy
  int ld;
  int major_left, k_left; // elements from that chunk to the operand's end; may be negative
  u32 destination;        // byte offset of that chunk in the tile
  u32 fragment;           // byte offset of this lane's row of the warp's first 16x16 piece

  // Eight rows that follow each other, at one chunk, must fall into different 16-byte banks of the
  // eight: rows of 128 bytes or more differ by their number, shorter ones share a 128-byte line.
  static __device__ __forceinline__ u32 swizzle(u32 row) {
    constexpr u32 rows_per_line = kChunks >= 8 ? 1 : 8 / kChunks;
    return row / rows_per_line % (kChunks >= 8 ? 8 : kChunks);
  }

  __device__ __forceinline__ Operand(const elem* base, int leading, int major0, int major_end,
                                     int k_begin, int k_end, int warp_major) {
    ld = leading;
    const u32 row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    destination = (row * kChunks + (chunk ^ swizzle(row))) * 16;
    const int major = major0 + (kAlongK ? row : chunk * kChunk);
    const int k = k_begin + (kAlongK ? chunk * kChunk : row);
    source = base + (kAlongK ? static_cast<long long>(major) * ld + k
                             : static_cast<long long>(k) * ld + major);
    major_left = major_end - major, k_left = k_end - k;

    const u32 lane = threadIdx.x % 32, j = lane % 8;
    const u32 upper_major = lane >> kMajorBit & 1, upper_k = lane >> (7 - kMajorBit) & 1;
    if constexpr (kAlongK) {
      fragment = ((warp_major + upper_major * 8 + j) * kChunks + (upper_k ^ swizzle(j))) * 16;
    } else {
      const u32 column = warp_major / kChunk + upper_major;
      fragment = ((upper_k * 8 + j) * kChunks + (column ^ swizzle(j))) * 16;
    }
  }

  // Start copying the next tile to `stage`. Past the end of k this writes zeros.
  __device__ __forceinline__ void copy_tile(u32 stage) {
    const int width_left = kAlongK ? k_left : major_left, rows_left = kAlongK ? major_left : k_left;
    const int bytes = 2 * max(0, min(width_left, kChunk));
    const elem* from = source;
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += static_cast<long long>(kRowStep) * ld) {
      if (kTotal % kThreads != 0 && threadIdx.x + i * kThreads >= kTotal) break;
      // The first row is below kRowStep, a power of two: sums of rows are ORs, so swizzles XOR.
      const u32 offset = (destination ^ swizzle(i * kRowStep) * 16) + i * kRowStep * kChunks * 16;
      l2::cp_async_16(stage + offset, from, i * kRowStep < rows_left ? bytes : 0);
    }
    source += kAlongK ? TILE_K : static_cast<long long>(TILE_K) * ld;
    k_left -= TILE_K;
  }

  // Piece `t` along m or n of k-step `step`. The part of the offset that the swizzle touches is
  // added by XOR; the other part moves by whole rows, in multiples of 16, which it does not see.
  __device__ __forceinline__ void load_piece(u32 (&r)[4], u32 stage, int t, int step) const {
    const int across = kAlongK ? step : t, down = kAlongK ? t : step;
    const u32 address = stage + (fragment ^ across * 32) + down * 16 * kChunks * 16;
    if constexpr (kAlongK) l2::ldmatrix_x4(r[0], r[1], r[2], r[3], address);
    else                   l2::ldmatrix_x4_trans(r[0], r[1], r[2], r[3], address);
  }
};

using OperandA = Operand<!L2_A_T, TILE_M, 3>;
using OperandB = Operand<bool(L2_B_T), TILE_N, 4>;

struct Fragments {
  u32 a[kMmaM][4];
  u32 b[kMmaN][2];
};

__device__ __forceinline__ void load_fragments(Fragments& to, const OperandA& a, const OperandB& b,
                                               u32 smem, int stage, int step) {
#pragma unroll
  for (int i = 0; i < kMmaM; ++i) a.load_piece(to.a[i], smem + stage * kBytesA, i, step);
#pragma unroll
  for (int j = 0; j < kMmaN; j += 2) {
    u32 piece[4];  // 16 columns: two mma tiles of 8
    b.load_piece(piece, smem + STAGES * kBytesA + stage * kBytesB, j / 2, step);
    to.b[j][0] = piece[0], to.b[j][1] = piece[1];
    to.b[j + 1][0] = piece[2], to.b[j + 1][1] = piece[3];
  }
}

// Store 16 rows of a warp's results from `staged`; `c` points at the first of them.
__device__ __forceinline__ void store_rows(elem* c, const elem* staged, int ldc, int rows_left,
                                           int cols_left) {
  constexpr int chunks = kWarpN / kChunk;
#pragma unroll
  for (int i = threadIdx.x % 32; i < 16 * chunks; i += 32) {
    const int row = i / chunks, col = i % chunks * kChunk;
    if (row >= rows_left) continue;
    elem* to = c + static_cast<long long>(row) * ldc + col;
    const elem* from = staged + row * kPitchC + col;
    if (col + kChunk <= cols_left) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int e = 0; e < cols_left - col; ++e) to[e] = from[e];
    }
  }
}

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
  if (col + 4 <= n) {
    *reinterpret_cast<uint2*>(c) = make_uint2(l2::pack2(sum.x, sum.y), l2::pack2(sum.z, sum.w));
  } else {
    const float tail[3] = {sum.x, sum.y, sum.z};
#pragma unroll
    for (int e = 0; e < 3; ++e)
      if (col + e < n) c[e] = l2::to_elem(tail[e]);
  }
}
