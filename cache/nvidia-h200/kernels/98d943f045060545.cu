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
// ---- l2/mma_pipeline_sm80.cuh
// One tile of a product by mma.sync, from cp.async to the stored rows (sm_80 and later): what
// mma_multistage and mma_streamk share. It is written for the tunables of the file that includes
// it: TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N and STAGES.
// ---- l2/cp_async.cuh
// Asynchronous copies from global to shared memory (sm_80 and later), one function per instruction.
//
// Each copies `bytes` bytes (0 to its size) and fills the rest of its destination with zeros, so a
// tile's ragged edge needs no branch and nothing past `source + bytes` is read. `source` and
// `destination` must be aligned to the size, also where `bytes` is 0.
// ---- l2/types.cuh
// The element type that was picked for this compile, and its conversions.
//
// A kernel names its operands' type `l2::elem`; L2_DTYPE_F16 or L2_DTYPE_BF16 decides what that is.
// Every conversion to it rounds to the nearest, ties to even, once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace l2 {

using u32 = unsigned int;  // one 32-bit register, as PTX sees it

#if defined(L2_DTYPE_BF16) && L2_DTYPE_BF16
using elem = __nv_bfloat16;
__device__ __forceinline__ float to_float(elem x) { return __bfloat162float(x); }
__device__ __forceinline__ elem to_elem(float x) { return __float2bfloat16_rn(x); }
// Two neighbours in memory, `low` at the lower address, as an mma or a 4-byte store takes them.
__device__ __forceinline__ u32 pack2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const u32*>(&pair);
}
#elif defined(L2_DTYPE_F16) && L2_DTYPE_F16
using elem = half;
__device__ __forceinline__ float to_float(elem x) { return __half2float(x); }
__device__ __forceinline__ elem to_elem(float x) { return __float2half_rn(x); }
// Two neighbours in memory, `low` at the lower address, as an mma or a 4-byte store takes them.
__device__ __forceinline__ u32 pack2(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const u32*>(&pair);
}
#else
#error "define L2_DTYPE_F16 or L2_DTYPE_BF16 as 1"
#endif

// The 32-bit shared-memory address that ldmatrix, cp.async and the mbarrier instructions take.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

}  // namespace l2
// ---- end of l2/types.cuh

namespace l2 {

// Through L1: the only path for sizes below 16 bytes.
__device__ __forceinline__ void cp_async_4(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_8(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// Past L1; asks L2 to fetch the whole 128-byte line, which the tile's next chunks will want.
__device__ __forceinline__ void cp_async_16(u32 destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// The same without a tail: all 16 bytes.
__device__ __forceinline__ void cp_async_16(u32 destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               ::"r"(destination), "l"(source) : "memory");
}

// Closes the group of copies issued since the last commit; an empty group is complete at once.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's newest groups are incomplete. Other threads'
// copies need a __syncthreads() after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace l2
// ---- end of l2/cp_async.cuh
// ---- l2/mma_sm80.cuh
// Warp-level matrix instructions of sm_80: ldmatrix and mma.sync, one function per instruction.
//
// ldmatrix reads 8x8 matrices of 16-bit elements. Lane l gives the address of one row (16 bytes,
// 16-byte aligned): lanes 0-7 the rows of matrix 0, lanes 8-15 of matrix 1, and so on. Lane l
// receives elements (l / 4, 2 * (l % 4)) and the one after it of each matrix, of the transposed
// matrix with _trans. mma_m16n8k16 takes A in four registers, rows 0-7 then 8-15 of k 0-7, then the
// same of k 8-15; B (k x n) in two, k 0-7 then 8-15; both just as ldmatrix leaves them. In C and D
// lane l holds (l / 4, 2 * (l % 4)), the one after it, and the two 8 rows below.


namespace l2 {

__device__ __forceinline__ void ldmatrix_x1(u32& r0, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r0) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x1_trans(u32& r0, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r0) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(u32& r0, u32& r1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(u32& r0, u32& r1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32& r0, u32& r1, u32& r2, u32& r3, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32& r0, u32& r1, u32& r2, u32& r3, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

// d += a * b in float, for the picked element type.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(L2_DTYPE_BF16) && L2_DTYPE_BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a * b in half: two elements a register, rounded to half at each step. Only f16 has it.
__device__ __forceinline__ void mma_m16n8k16_half(u32 (&d)[2], const u32 (&a)[4],
                                                  const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
               "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace l2
// ---- end of l2/mma_sm80.cuh


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
// ---- end of l2/mma_pipeline_sm80.cuh
// ---- l2/pdl.cuh
// Programmatic dependent launch (sm_90 and later): a launch may start before its predecessor ends.
//
// Before sm_90 launches on a stream never overlap, so both calls are rightly nothing there.

namespace l2 {

// Waits until the grids this one depends on have ended and their writes are visible. Before it,
// read nothing that an earlier launch may write, and write nothing that an earlier one may read.
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch start once every block of this grid has said so or ended. It promises
// nothing about memory: the next launch must still wait.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace l2
// ---- end of l2/pdl.cuh

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
