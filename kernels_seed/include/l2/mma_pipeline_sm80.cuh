// One tile of a product by mma.sync, from cp.async to the stored rows (sm_80 and later): what
// mma_multistage and mma_streamk share. It is written for the tunables of the file that includes
// it: TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N and STAGES.
#pragma once
#include "l2/cp_async.cuh"
#include "l2/mma_sm80.cuh"
#include "l2/types.cuh"

namespace l2 {

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
      cp_async_16(stage + offset, from, i * kRowStep < rows_left ? bytes : 0);
    }
    source += kAlongK ? TILE_K : static_cast<long long>(TILE_K) * ld;
    k_left -= TILE_K;
  }

  // Piece `t` along m or n of k-step `step`. The part of the offset that the swizzle touches is
  // added by XOR; the other part moves by whole rows, in multiples of 16, which it does not see.
  __device__ __forceinline__ void load_piece(u32 (&r)[4], u32 stage, int t, int step) const {
    const int across = kAlongK ? step : t, down = kAlongK ? t : step;
    const u32 address = stage + (fragment ^ across * 32) + down * 16 * kChunks * 16;
    if constexpr (kAlongK) ldmatrix_x4(r[0], r[1], r[2], r[3], address);
    else                   ldmatrix_x4_trans(r[0], r[1], r[2], r[3], address);
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

// A thread's sums.
using Sums = float[kMmaM][kMmaN][4];

// Adds the product of the next `count` tiles along k of both operands, which may be none. Copies of
// tiles after these, zeros, are still under way when it returns.
__device__ __forceinline__ void multiply_tiles(Sums& acc, OperandA& a, OperandB& b, u32 smem,
                                               int count) {
  Fragments fragments[2];
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    a.copy_tile(smem + s * kBytesA);
    b.copy_tile(smem + STAGES * kBytesA + s * kBytesB);
    cp_async_commit();
  }
  cp_async_wait<STAGES - 2>();
  __syncthreads();
  int read = 0, write = STAGES - 1;
  load_fragments(fragments[0], a, b, smem, read, 0);

  for (int t = 0; t < count; ++t) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {
        // All fragments of this tile are in registers: after the barrier its buffer may be
        // overwritten, and the next tile is there for every thread.
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        read = read == STAGES - 1 ? 0 : read + 1;
      }
      load_fragments(fragments[(step + 1) % 2], a, b, smem, read, (step + 1) % kSteps);
      if (step == 0) a.copy_tile(smem + write * kBytesA);
      if (step == kCopyStepB) {
        b.copy_tile(smem + STAGES * kBytesA + write * kBytesB);
        cp_async_commit();
        write = write == STAGES - 1 ? 0 : write + 1;
      }
      const Fragments& now = fragments[step % 2];
#pragma unroll
      for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
        for (int j = 0; j < kMmaN; ++j) mma_m16n8k16(acc[i][j], now.a[i], now.b[j]);
      }
    }
  }
}

// Calls store(row, column, two neighbouring sums) for all that a lane has of its warp's tile.
template <class Store>
__device__ __forceinline__ void for_pairs(const Sums& acc, int lane, Store store) {
#pragma unroll
  for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmaN; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store(i * 16 + half * 8 + lane / 4, j * 8 + lane % 4 * 2,
              make_float2(acc[i][j][2 * half], acc[i][j][2 * half + 1]));
    }
  }
}

// Stores a warp's tile of results, 16 rows at a time through shared memory that is this warp's own;
// `c` points at the first of them.
__device__ __forceinline__ void store_tile(const Sums& acc, elem* c, elem* staged, int ldc,
                                           int rows_left, int cols_left, int lane) {
  constexpr int chunks = kWarpN / kChunk;
#pragma unroll
  for (int i = 0; i < kMmaM; ++i) {
#pragma unroll
    for (int j = 0; j < kMmaN; ++j) {
      elem* to = staged + lane / 4 * kPitchC + j * 8 + lane % 4 * 2;
      *reinterpret_cast<u32*>(to) = pack2(acc[i][j][0], acc[i][j][1]);
      *reinterpret_cast<u32*>(to + 8 * kPitchC) = pack2(acc[i][j][2], acc[i][j][3]);
    }
    __syncwarp();
#pragma unroll
    for (int at = lane; at < 16 * chunks; at += 32) {
      const int row = at / chunks, col = at % chunks * kChunk;
      if (row >= rows_left - i * 16) continue;
      elem* to = c + static_cast<long long>(i * 16 + row) * ldc + col;
      const elem* from = staged + row * kPitchC + col;
      if (col + kChunk <= cols_left) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll 1
        for (int e = 0; e < cols_left - col; ++e) to[e] = from[e];
      }
    }
    __syncwarp();  // the next 16 rows overwrite these
  }
}

// Stores four neighbouring sums of a row of n, from column `col` on.
__device__ __forceinline__ void store_quad(elem* c, float4 sum, int col, int n) {
  if (col + 4 <= n) {
    *reinterpret_cast<uint2*>(c) = make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w));
  } else {
    const float tail[3] = {sum.x, sum.y, sum.z};
#pragma unroll
    for (int e = 0; e < 3; ++e)
      if (col + e < n) c[e] = to_elem(tail[e]);
  }
}

}  // namespace l2
