/*---l2tune
id       = "sm80/tiled"
summary  = "32x32 tiles through shared memory, four outputs a thread; right for every problem."
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["cdiv(m, 32) * cdiv(n, 32) * batch <= 2147483647"]
origin   = { kind = "seed", source = "written for l2tune" }
[[launch]]
kernel   = "gemm"
grid     = ["cdiv(m, 32) * cdiv(n, 32) * batch", 1, 1]
block    = [32, 8, 1]
args     = ["a", "b", "c", "m", "n", "k", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c"]
---*/
// Adds to naive.cu the one idea of a tile: a block reads a 32x32 piece of A and of B once into
// shared memory, and each element serves 32 outputs from there.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, alignment and stride
// Tiles past an edge are filled with zeros, so the inner loop needs no bounds.
#include "l2/types.cuh"

constexpr int kTile = 32;
constexpr int kRows = 8;                          // rows of threads: 256 threads
constexpr int kOutputs = kTile / kRows;           // outputs a thread, kRows apart

struct SMem {
  float a[kTile][kTile + 1];                      // [row][k]; the odd pitch keeps columns of it
  float b[kTile][kTile + 1];                      // [k][col]  in 32 different banks
};

// Element (row, col) of an operand of rows x cols, or 0 outside it.
__device__ __forceinline__ float element(const l2::elem* base, int row, int col, int rows, int cols,
                                         int ld, bool transposed) {
  if (row >= rows || col >= cols) return 0.f;
  const long long offset = transposed ? static_cast<long long>(col) * ld + row
                                      : static_cast<long long>(row) * ld + col;
  return l2::to_float(base[offset]);
}

extern "C" __global__ void __launch_bounds__(256)
gemm(const l2::elem* __restrict__ a, const l2::elem* __restrict__ b, l2::elem* __restrict__ c,
     int m, int n, int k, int lda, int ldb, int ldc, long long stride_a, long long stride_b,
     long long stride_c) {
  __shared__ SMem smem;
  const int x = threadIdx.x, y = threadIdx.y;

  // All tiles of all batches lie along grid.x, the only axis that is not limited to 65535 blocks.
  const int tiles_m = (m + kTile - 1) / kTile, tiles_n = (n + kTile - 1) / kTile;
  const int item = blockIdx.x / tiles_n / tiles_m;
  const int row0 = blockIdx.x / tiles_n % tiles_m * kTile, col0 = blockIdx.x % tiles_n * kTile;
  a += item * stride_a, b += item * stride_b, c += item * stride_c;

  float sum[kOutputs] = {};
  for (int k0 = 0; k0 < k; k0 += kTile) {
#pragma unroll
    for (int i = 0; i < kTile; i += kRows) {
      // x walks the dimension that is contiguous in memory, so that a warp reads one row of it.
      if (L2_A_T) smem.a[x][y + i] = element(a, row0 + x, k0 + y + i, m, k, lda, true);
      else        smem.a[y + i][x] = element(a, row0 + y + i, k0 + x, m, k, lda, false);
      if (L2_B_T) smem.b[x][y + i] = element(b, k0 + x, col0 + y + i, k, n, ldb, true);
      else        smem.b[y + i][x] = element(b, k0 + y + i, col0 + x, k, n, ldb, false);
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kTile; ++p) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) sum[i] += smem.a[y + i * kRows][p] * smem.b[p][x];
    }
    __syncthreads();  // the next step overwrites both tiles
  }

#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int row = row0 + y + i * kRows, col = col0 + x;
    if (row < m && col < n) c[static_cast<long long>(row) * ldc + col] = l2::to_elem(sum[i]);
  }
}
