/*---l2tune
id       = "sm80/naive"
summary  = "One thread an output: right for every problem, and the first kernel to read."
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["cdiv(m * n * batch, 256) <= 2147483647"]
origin   = { kind = "seed", source = "written for l2tune" }
[[launch]]
kernel   = "gemm"
grid     = ["cdiv(m * n * batch, 256)", 1, 1]
block    = [256, 1, 1]
args     = [
  "a", "b", "c", "m", "n", "k", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c",
]
---*/
// C[i][j] = sum over p of A[i][p] * B[p][j], one thread for each (item, i, j).
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N]; an operand that is stored transposed
//   differs only in which of its two steps is the leading dimension and which is 1.
// Neighbouring threads take neighbouring columns, so that stores, and loads of B, are coalesced.
// Every element is read K times over from the caches: that is all the other kernels avoid.
#include "l2/types.cuh"

extern "C" __global__ void __launch_bounds__(256)
gemm(const l2::elem* __restrict__ a, const l2::elem* __restrict__ b, l2::elem* __restrict__ c,
     int m, int n, int k, int batch, int lda, int ldb, int ldc, long long stride_a,
     long long stride_b, long long stride_c) {
  // Offsets are 64-bit throughout: rows * leading dimension passes 2^31 well before memory ends.
  const long long output = blockIdx.x * 256ll + threadIdx.x;
  const long long area = static_cast<long long>(m) * n;
  if (output >= area * batch) return;
  const long long item = output / area, row = output % area / n, col = output % n;

  const long long a_row = L2_A_T ? 1 : lda, a_k = L2_A_T ? lda : 1;
  const long long b_col = L2_B_T ? ldb : 1, b_k = L2_B_T ? 1 : ldb;
  a += item * stride_a + row * a_row;
  b += item * stride_b + col * b_col;

  float sum = 0.f;
  for (int p = 0; p < k; ++p) sum += l2::to_float(a[p * a_k]) * l2::to_float(b[p * b_k]);
  c[item * stride_c + row * ldc + col] = l2::to_elem(sum);
}
