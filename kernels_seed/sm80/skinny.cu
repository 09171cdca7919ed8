/*---l2tune
id       = "sm80/skinny"
summary  = "Few rows or few columns: the large operand streams through registers, once."
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = [
  "m <= TILE_M or TILE_M >= 32",
  "n <= TILE_N or TILE_N >= 32",
  "max(m, n, k) <= 2147000000",
  "cdiv(m, TILE_M) * cdiv(n, TILE_N) * SPLIT * batch <= 2147483647",
  "cdiv(m * n * batch, 128) <= 2147483647",
]
workspace = "SPLIT * batch * m * n * 4 if SPLIT > 1 else 0"
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M  = [1, 2, 4, 8, 32, 64, 128, 256]
TILE_N  = [1, 2, 4, 8, 32, 64, 128, 256]
TILE_K  = [32, 64, 128, 256, 512, 1024]
SPLIT   = [1, 2, 4, 8]
where   = [
  "min(TILE_M, TILE_N) <= 8 and max(TILE_M, TILE_N) >= 32",
  "max(TILE_M, TILE_N) * TILE_K >= 8192",
  "max(TILE_M, TILE_N) * TILE_K <= (32768 if min(TILE_M, TILE_N) <= 2 else 16384)",
  "max(TILE_M, TILE_N) * TILE_K // 2048 * TILE_M * TILE_N <= 12288",
]
[[launch]]
kernel   = "gemm"
grid     = ["cdiv(m, TILE_M) * cdiv(n, TILE_N) * SPLIT * batch", 1, 1]
block    = ["max(TILE_M, TILE_N) * TILE_K // 64", 1, 1]
pdl      = "SPLIT > 1"
args     = [
  "a", "b", "c", "workspace", "m", "n", "k", "batch",
  "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c",
]
[[launch]]
kernel   = "reduce"
grid     = ["cdiv(m * n * batch, 128) if SPLIT > 1 else 0", 1, 1]
block    = [128, 1, 1]
pdl      = true
args     = ["workspace", "c", "m", "n", "batch", "ldc", "stride_c"]
---*/
// A vector or a few of them times a matrix. The time is that of reading the matrix, so this reads
// it once, in 16-byte loads, many of them under way, and multiplies on the ordinary lanes: tensor
// cores would want 16 rows and a way through shared memory.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N]; any layout, alignment and stride
//
// - `many` is the operand with the larger tile: B where TILE_N is larger, else A. `few` is the
//   other one, and its 1 to 8 rows (or columns) are one tile.
// - A tile of `many` is TILE_K deep and cut into squares of 8x8, one for each thread: eight 16-byte
//   loads whichever way the operand is stored. The thread loads its square of the next tile, and
//   the same 8 of k of `few`, and then multiplies the present ones. Nothing that a block reads
//   is wanted by two of its warps, so nothing goes through shared memory.
// - A warp's squares cover the tile's whole width and 256 / width of them lie along k; those lanes
//   first share out each other's sums by shuffles. The warps lie along k too; their sums meet in
//   shared memory, [warp][few][many], and are added up in the order of the warps.
// - With SPLIT > 1 blocks share out k in whole tiles, and leave float sums in `workspace`,
//   [SPLIT][batch][M][N]; `reduce` adds them up, always in the same order.
//
// Rows that end within a square, and operands whose rows do not all start on 16 bytes, are read
// one element at a time; what lies outside is zero. A product of vectors is seldom aligned as the
// contract's `align` means it, C's rows included, so each operand is looked at for itself.
#include "l2/pdl.cuh"
#include "l2/types.cuh"

using l2::elem;
using l2::u32;

constexpr bool kManyIsB = TILE_N > TILE_M;
constexpr int kMany = kManyIsB ? TILE_N : TILE_M, kFew = kManyIsB ? TILE_M : TILE_N;
constexpr int kSquare = 8;
constexpr int kThreads = kMany * TILE_K / (kSquare * kSquare), kWarps = kThreads / 32;
constexpr int kLanesK = 32 * kSquare / kMany;  // a warp's squares along k
constexpr int kOwn = kSquare / kLanesK;        // columns of a square that a lane adds up

// kHeight rows in memory of kWidth elements each, packed in registers.
template <int kHeight, int kWidth>
struct Patch {
  static constexpr int kWords = (kWidth + 1) / 2;
  u32 words[kHeight][kWords] = {};

  // Takes `width` elements of each of `rows` rows, negative for none, and zeros beyond them.
  __device__ __forceinline__ void load(const elem* from, int ld, bool aligned, int rows,
                                       int width) {
    if (aligned && rows >= kHeight && width >= kWidth) {
#pragma unroll
      for (int i = 0; i < kHeight; ++i) load_row(words[i], from + static_cast<long long>(i) * ld);
      return;
    }
    if (aligned && width >= kWidth) {
#pragma unroll
      for (int i = 0; i < kHeight; ++i)
        if (i < rows) load_row(words[i], from + static_cast<long long>(i) * ld);
      return;
    }
    if (rows <= 0 || width <= 0) return;
    // Each row is shifted through its registers, two elements at a time: slow, but little code.
    const auto* pair = reinterpret_cast<const unsigned short*>(from);
#pragma unroll 1
    for (int e = 0; e < 2 * kWords; e += 2, pair += 2) {
#pragma unroll
      for (int i = 0; i < kHeight; ++i) {
        const long long row = static_cast<long long>(i) * ld;
        const u32 low = i < rows && e < width ? pair[row] : 0;
        const u32 high = i < rows && e + 1 < min(width, kWidth) ? pair[row + 1] : 0;
#pragma unroll
        for (int w = 0; w + 1 < kWords; ++w) words[i][w] = words[i][w + 1];
        words[i][kWords - 1] = low | high << 16;
      }
    }
  }

  static __device__ __forceinline__ void load_row(u32 (&to)[kWords], const elem* from) {
    if constexpr (kWidth == 8) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    } else if constexpr (kWidth == 4) {
      const uint2 row = *reinterpret_cast<const uint2*>(from);
      to[0] = row.x, to[1] = row.y;
    } else if constexpr (kWidth == 2) {
      to[0] = *reinterpret_cast<const u32*>(from);
    } else {
      to[0] = *reinterpret_cast<const unsigned short*>(from);
    }
  }

  __device__ __forceinline__ float at(int row, int e) const {
    const u32 word = words[row][e / 2];
    const auto bits = static_cast<unsigned short>(e % 2 ? word >> 16 : word);
    return l2::to_float(*reinterpret_cast<const elem*>(&bits));
  }
};

// What one thread reads of an operand: kExtent rows (or columns) from `major` on, and 8 of k in
// each tile. `kAlongK` says that rows in memory run along k.
template <bool kAlongK, int kExtent>
struct Operand {
  using Piece = Patch<kAlongK ? kExtent : kSquare, kAlongK ? kSquare : kExtent>;

  const elem* source;      // the next piece to load
  int ld;
  bool aligned;            // so that each row of a piece is one load
  int major_left, k_left;  // elements from there to the end of what this thread may read

  __device__ __forceinline__ Operand(const elem* base, int leading, int major, int major_end, int k,
                                     int k_end)
      : source(base + (kAlongK ? static_cast<long long>(major) * leading + k
                               : static_cast<long long>(k) * leading + major)),
        ld(leading), major_left(major_end - major), k_left(k_end - k) {
    constexpr int width = kAlongK ? kSquare : kExtent;
    aligned = reinterpret_cast<unsigned long long>(source) % (2 * width) == 0 && ld % width == 0;
  }

  __device__ __forceinline__ Piece next() {
    Piece piece;
    piece.load(source, ld, aligned, kAlongK ? major_left : k_left, kAlongK ? k_left : major_left);
    source += kAlongK ? TILE_K : static_cast<long long>(TILE_K) * ld;
    k_left -= TILE_K;
    return piece;
  }

  static __device__ __forceinline__ float at(const Piece& piece, int major, int k) {
    return kAlongK ? piece.at(major, k) : piece.at(k, major);
  }
};

using Many = Operand<kManyIsB ? bool(L2_B_T) : !L2_A_T, kSquare>;
using Few = Operand<kManyIsB ? !L2_A_T : bool(L2_B_T), kFew>;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemm(const elem* __restrict__ a, const elem* __restrict__ b, elem* __restrict__ c,
     void* __restrict__ workspace, int m, int n, int k, int batch, int lda, int ldb, int ldc,
     long long stride_a, long long stride_b, long long stride_c) {
  __shared__ float sums[kWarps][kFew][kMany];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lane_k = lane % kLanesK, first_many = lane / kLanesK * kSquare;

  const int size_many = kManyIsB ? n : m, size_few = kManyIsB ? m : n;
  const unsigned tiles = (size_many - 1) / kMany + 1, rest = blockIdx.x / tiles;
  const int tile0 = blockIdx.x % tiles * kMany;
  const int split = rest % SPLIT, item = rest / SPLIT;

  // Whole tiles of k for each split, shared out evenly; a split may get none and then writes zeros.
  const long long k_tiles = (k + TILE_K - 1) / TILE_K;
  const int k_begin = k_tiles * split / SPLIT * TILE_K;
  const int k_end = min(static_cast<long long>(k), k_tiles * (split + 1) / SPLIT * TILE_K);
  const int warp_k = k_begin + warp * kLanesK * kSquare;

  l2::grid_dependency_wait();
  if (SPLIT > 1) l2::launch_dependents();

  a += item * stride_a, b += item * stride_b;
  const int k0 = warp_k + lane_k * kSquare;
  Many many(kManyIsB ? b : a, kManyIsB ? ldb : lda, tile0 + first_many, size_many, k0, k_end);
  Few few(kManyIsB ? a : b, kManyIsB ? lda : ldb, 0, size_few, k0, k_end);
  float acc[kFew][kSquare] = {};

  typename Many::Piece square = many.next();
  typename Few::Piece rows = few.next();
  for (int left = k_end - warp_k; left > 0; left -= TILE_K) {
    const typename Many::Piece next_square = many.next();  // past the end these are zeros
    const typename Few::Piece next_rows = few.next();
#pragma unroll
    for (int p = 0; p < kSquare; ++p) {
#pragma unroll
      for (int j = 0; j < kSquare; ++j) {
#pragma unroll
        for (int i = 0; i < kFew; ++i)
          acc[i][j] = fmaf(Few::at(rows, i, p), Many::at(square, j, p), acc[i][j]);
      }
    }
    square = next_square, rows = next_rows;
  }

  // Lanes along k: of each pair one keeps the lower half of the columns, the other the upper half.
#pragma unroll
  for (int bit = kLanesK / 2, half = kSquare / 2; bit > 0; bit /= 2, half /= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < kFew; ++i) {
#pragma unroll
      for (int j = 0; j < half; ++j) {
        const float given = upper ? acc[i][j] : acc[i][j + half];
        const float kept = upper ? acc[i][j + half] : acc[i][j];
        acc[i][j] = kept + __shfl_xor_sync(0xffffffff, given, bit);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kFew; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) sums[warp][i][first_many + lane_k * kOwn + j] = acc[i][j];
  }
  __syncthreads();

  // Neighbouring threads take neighbouring columns of C.
  for (int output = threadIdx.x; output < kFew * kMany; output += kThreads) {
    const int i = kManyIsB ? output / kMany : output % kFew;
    const int j = kManyIsB ? output % kMany : output / kFew;
    if (i >= size_few || tile0 + j >= size_many) continue;
    float sum = sums[0][i][j];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += sums[w][i][j];
    const long long row = kManyIsB ? i : tile0 + j, col = kManyIsB ? tile0 + j : i;
    if (SPLIT == 1) {
      c[item * stride_c + row * ldc + col] = l2::to_elem(sum);
    } else {
      const long long matrix = static_cast<long long>(split) * batch + item;
      static_cast<float*>(workspace)[(matrix * m + row) * n + col] = sum;
    }
  }
}

// c = the sum of the partial results, split 0 first. A thread takes one element.
extern "C" __global__ void __launch_bounds__(128)
reduce(const void* __restrict__ workspace, elem* __restrict__ c, int m, int n, int batch, int ldc,
       long long stride_c) {
  l2::grid_dependency_wait();
  const long long size = static_cast<long long>(batch) * m * n;
  const long long index = blockIdx.x * 128ll + threadIdx.x;
  if (index >= size) return;
  const float* partial = static_cast<const float*>(workspace) + index;
  float sum = __ldcg(partial);
#pragma unroll
  for (int s = 1; s < SPLIT; ++s) sum += __ldcg(partial + s * size);
  const long long row = index / n;
  c[row / m * stride_c + row % m * ldc + index % n] = l2::to_elem(sum);
}
