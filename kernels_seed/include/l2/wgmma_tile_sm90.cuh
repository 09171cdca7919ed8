// A slot's product by wgmma, and how a warp stores its rows of a tile (sm_90a). Sums are floats, or
// halves, two to a register, where l2/wgmma_half_sm90.cuh was included before. It is written for
// the tunables of the file that includes it: TILE_M, TILE_N and TILE_K; and FLIP, if it has that.
#pragma once
#include "l2/tma_sm90.cuh"
#include "l2/types.cuh"
#include "l2/wgmma_sm90.cuh"

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
