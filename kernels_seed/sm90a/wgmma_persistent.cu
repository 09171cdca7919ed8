/*---l2tune
id       = "sm90a/wgmma_persistent"
summary  = "TMA producer, two or three wgmma warpgroups, persistent over tiles in L2-sized groups."
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "cdiv(m, 64) * cdiv(n, 8) * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M    = [64, 128, 192, 256]
TILE_N    = [8, 16, 32, 64, 128, 192, 256]
TILE_K    = [64]
STAGES    = [2, 3, 4, 5, 6, 7, 8]
CLUSTER   = [1, 2]
CONSUMERS = [2, 3]
PINGPONG  = [0, 1]
GROUP     = [1, 2, 4, 8, 16]
where     = [
  "PINGPONG == 1 or TILE_M >= 128",
  "PINGPONG == 0 or CONSUMERS == 2",
  "(TILE_M == 192) == (CONSUMERS == 3)",
  "TILE_M * TILE_N <= (24576 if PINGPONG == 1 else 49152)",
  "CLUSTER == 1 or TILE_N >= 16",
  "STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + 16384 * CONSUMERS + 2048 <= smem_limit",
]
[tma.a]
box          = ["64", "TILE_K if a_t else TILE_M"]
swizzle      = 128
l2_promotion = 256
[tma.b]
box          = ["64", "(TILE_N if b_t else TILE_K) // CLUSTER"]
swizzle      = 128
l2_promotion = 256
[tma.c]
box          = ["64", "16"]
swizzle      = 128
[[launch]]
kernel  = "gemm"
grid    = ["CLUSTER * min(sms // CLUSTER, cdiv(m, TILE_M * CLUSTER) * cdiv(n, TILE_N) * batch)",
           1, 1]
block   = ["128 * (1 + CONSUMERS)", 1, 1]
cluster = ["CLUSTER", 1, 1]
smem    = """STAGES * 128 * (TILE_M + (TILE_N if b_t else cdiv(TILE_N, 64) * 64)) \
             + 16384 * CONSUMERS + 2048"""
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "batch", "ldc", "stride_c",
           "a_batched", "b_batched"]
---*/
// One thread copies, two or three warpgroups multiply, and the blocks stay while tiles last.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// - Warpgroup 0 gives its registers away; one thread of it keeps a ring of STAGES slots filled with
//   64-deep pieces of A and B. A slot has two mbarriers: `full` (the bytes are there) and `empty`
//   (every warp that reads it is done).
// - The other CONSUMERS warpgroups multiply. With PINGPONG 0 they share out each tile's rows, so
//   that it may be 128x256, or 192x256 for three. With PINGPONG 1 each of two has every other tile
//   for itself, and they take turns at the tensor cores: one writes its tile out while the other
//   multiplies.
// - A cluster of 2 takes two tiles, one above the other. Both need the same B: each block fetches
//   half of it into both. So a slot is empty only when the readers in both blocks say so.
// - Tiles are numbered so that the blocks at work at one time share rows of A and columns of B.
//
// Past an edge the copy engine reads zeros, and drops what is stored. A cluster's second block
// whose tile lies wholly past the last row does as always: the first needs its half of B.
#include "l2/barrier.cuh"
#include "l2/pdl.cuh"
#include "l2/tma_sm90.cuh"
#include "l2/types.cuh"
#include "l2/wgmma_sm90.cuh"

using l2::u32;

constexpr int kSlab = 64;                               // elements in a 128-byte swizzled row
constexpr int kColsB = L2_B_T ? TILE_N : (TILE_N + kSlab - 1) / kSlab * kSlab;  // fetched of B
constexpr int kRows = PINGPONG ? TILE_M : TILE_M / CONSUMERS;  // of a tile, a warpgroup's own
constexpr int kBlocks = kRows / 64;                            // wgmma takes 64 rows
constexpr int kReaders = (PINGPONG ? 4 : 4 * CONSUMERS) * CLUSTER;  // warps that release a slot
constexpr u32 kBytesA = TILE_M * TILE_K * 2, kBytesB = kColsB * TILE_K * 2;
constexpr u32 kSlabBytes = TILE_K * kSlab * 2;          // 64 columns (or rows), all of a slot's k
constexpr int kStoreRows = 16;                          // of a 64-row block, what one warp owns
constexpr int kStoreBuffers = 2;                        // per warp: one is filled, one drains
constexpr u32 kBufferBytes = kStoreRows * kSlab * 2, kStoreBytes = kStoreBuffers * kBufferBytes;
static_assert(TILE_K == kSlab && kRows % 64 == 0 && TILE_N % 8 == 0, "wgmma and swizzle");
static_assert(!PINGPONG || CONSUMERS == 2, "two take turns");

// Shared memory, from a 1024-byte boundary on, since the swizzle counts rows from one:
//   a[STAGES][kBytesA]  b[STAGES][kBytesB]  c[multiplying warps][kStoreBytes]
//   full[STAGES]  empty[STAGES]
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetC = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetFull = kOffsetC + CONSUMERS * 4 * kStoreBytes;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;

// A place in the ring, and how often (odd or even) the ring has been gone round.
struct Slot {
  u32 index = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++index == STAGES) index = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(u32 steps) {
    index += steps;
    parity ^= index / STAGES & 1;
    index %= STAGES;
  }
};

struct Tile {
  int row, col, batch;
};

// Tile `index` of this block. GROUP rows of tiles are walked column by column, then the next GROUP.
__device__ __forceinline__ Tile tile_at(int index, int tiles_m, int tiles_n, int rank) {
  const int batch = index / (tiles_m * tiles_n);
  index -= batch * tiles_m * tiles_n;
  const int group_rows = min(GROUP, tiles_m), group = index / (group_rows * tiles_n);
  const int rows = min(group_rows, tiles_m - group * group_rows);  // the last group may have fewer
  index -= group * group_rows * tiles_n;
  const int row = group * group_rows + index % rows;
  return {(row * CLUSTER + rank) * TILE_M, index / rows * TILE_N, batch};
}

// Fetches one 64-deep piece of the block's A, and its share of the cluster's B.
__device__ __forceinline__ void load(u32 a, u32 b, u32 full, const l2::tensor_map& map_a,
                                     const l2::tensor_map& map_b, Tile tile, int k0, int rank,
                                     int a_batched, int b_batched) {
  const int batch_a = tile.batch * a_batched, batch_b = tile.batch * b_batched;
  if (L2_A_T) {
#pragma unroll
    for (int i = 0; i < TILE_M / kSlab; ++i)
      l2::tma_load_3d(a + i * kSlabBytes, map_a, full, tile.row + i * kSlab, k0, batch_a);
  } else {
    l2::tma_load_3d(a, map_a, full, k0, tile.row, batch_a);
  }
  // The share is half of the columns where k is contiguous, else half of each slab's k.
  constexpr int kShare = (L2_B_T ? TILE_N : TILE_K) / CLUSTER;
  b += rank * kShare * 128;
#pragma unroll
  for (int i = 0; i < (L2_B_T ? 1 : kColsB / kSlab); ++i) {
    const int inner = L2_B_T ? k0 : tile.col + i * kSlab;
    const int outer = (L2_B_T ? tile.col : k0) + rank * kShare;
    if (CLUSTER == 1) l2::tma_load_3d(b + i * kSlabBytes, map_b, full, inner, outer, batch_b);
    else l2::tma_load_3d_multicast(b + i * kSlabBytes, map_b, full, inner, outer, batch_b, 3);
  }
}

// Adds one slot's product, 64 of k in steps of 16; `a` is where this warpgroup's rows start. The
// sums are in pieces of 64 rows and 2 * kFloats columns, row by row.
template <int kPieces, int kFloats>
__device__ __forceinline__ void multiply(float (&acc)[kPieces][kFloats], u32 a, u32 b,
                                         bool first) {
  constexpr int kAcross = kPieces / kBlocks;
  constexpr u32 kStepA = (L2_A_T ? 16 * 128 : 32) / 16, kStepB = (L2_B_T ? 32 : 16 * 128) / 16;
  const auto operand_a = L2_A_T ? l2::wgmma_mn_major(a, kSlabBytes) : l2::wgmma_k_major(a);
  const auto operand_b = L2_B_T ? l2::wgmma_k_major(b) : l2::wgmma_mn_major(b, kSlabBytes);
  l2::wgmma_fence();
#pragma unroll
  for (int step = 0; step < TILE_K / 16; ++step) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      // 64 rows of A are 8 KB in either order, and so are 64 columns of B.
      const auto piece_a = operand_a + step * kStepA + i / kAcross * (64 * 128 / 16);
      const auto piece_b = operand_b + step * kStepB + i % kAcross * (2 * kFloats * 128 / 16);
      l2::wgmma<L2_A_T, !L2_B_T>(acc[i], piece_a, piece_b, step > 0 || !first);
    }
  }
  l2::wgmma_commit();
}

// Called by each reading warp: the slot may be overwritten, in both blocks of a cluster.
__device__ __forceinline__ void release(u32 empty, int lane) {
  if (CLUSTER == 1) {
    if (lane == 0) l2::mbarrier_arrive(empty);
  } else if (lane < CLUSTER) {
    l2::mbarrier_arrive_cluster(l2::map_to_rank(empty, lane));
  }
}

// Writes one warp's 16 rows through its two buffers, 64 columns at a time, without other warps.
// Returns before the last copies have read them: they go on under the next tile's main loop.
template <int kFloats>
__device__ __forceinline__ void store_by_copy(const float (&acc)[kFloats], u32 buffers, u32& turn,
                                              const l2::tensor_map& map_c, int row, int col,
                                              int batch, int n, int lane) {
#pragma unroll
  for (int slab = 0; slab < 2 * kFloats / kSlab; ++slab) {
    if (col + slab * kSlab >= n) break;
    const u32 buffer = buffers + turn * kBufferBytes;
    if (lane == 0) l2::tma_store_wait_read<kStoreBuffers - 1>();  // its last copy has read it
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlab / 16; ++i) {
      const float* d = acc + slab * (kSlab / 2) + i * 8;
      // 16x16 as four 8x8: rows 0-7, rows 8-15, and the same of the next 8 columns.
      l2::stmatrix_x4(buffer + l2::swizzle_128(lane % 16, i * 2 + lane / 16),
                      l2::pack2(d[0], d[1]), l2::pack2(d[2], d[3]),
                      l2::pack2(d[4], d[5]), l2::pack2(d[6], d[7]));
    }
    l2::fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      l2::tma_store_3d(map_c, buffer, col + slab * kSlab, row, batch);
      l2::tma_store_commit();
    }
    turn = (turn + 1) % kStoreBuffers;
  }
}

// The same from registers, for tiles with less than 128 bytes in a row, and for n that does not end on
// 16 bytes: there a bulk store writes up to the next 16, as seen on an H200.
template <int kFloats>
__device__ __forceinline__ void store_directly(const float (&acc)[kFloats], l2::elem* c, int row,
                                               int col, int m, int n, int ldc, int lane) {
#pragma unroll
  for (int i = 0; i < kFloats / 2; ++i) {
    const int r = row + lane / 4 + i % 2 * 8, x = col + i / 2 * 8 + lane % 4 * 2;
    l2::elem* out = c + static_cast<long long>(r) * ldc + x;  // 4-byte aligned: ldc and x are even
    if (r < m && x + 1 < n) *reinterpret_cast<u32*>(out) = l2::pack2(acc[2 * i], acc[2 * i + 1]);
    else if (r < m && x < n) *out = l2::to_elem(acc[2 * i]);
  }
}

extern "C" __global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
gemm(const __grid_constant__ l2::tensor_map map_a, const __grid_constant__ l2::tensor_map map_b,
     const __grid_constant__ l2::tensor_map map_c, l2::elem* __restrict__ c, int m, int n, int k,
     int batch, int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  // Shared addresses are 32 bits wide; both blocks of a cluster compute the same ones.
  const u32 base = (l2::shared_address(dynamic) + 1023) / 1024 * 1024;
  const u32 smem_a = base, smem_b = base + kOffsetB;
  const u32 full = base + kOffsetFull, empty = base + kOffsetEmpty;

  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in a whole warp
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) % 4, lane = threadIdx.x % 32;
  const int rank = CLUSTER == 1 ? 0 : l2::cluster_rank();

  // A cluster works on CLUSTER tiles, one above the other, as if on one.
  const int tiles_m = (m - 1) / (TILE_M * CLUSTER) + 1, tiles_n = (n - 1) / TILE_N + 1;
  const int tiles = tiles_m * tiles_n * batch, steps_k = (k - 1) / TILE_K + 1;
  const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;

  if (threadIdx.x == 0) {
    l2::prefetch_tensor_map(map_a);
    l2::prefetch_tensor_map(map_b);
    l2::prefetch_tensor_map(map_c);
    for (int i = 0; i < STAGES; ++i) {
      l2::mbarrier_init(full + i * 8, 1);  // the copying thread, and the bytes it announces
      l2::mbarrier_init(empty + i * 8, kReaders);
    }
    l2::mbarrier_init_fence();
  }
  __syncthreads();
  if (CLUSTER > 1) l2::cluster_arrive(), l2::cluster_wait();  // so are the other block's barriers
  l2::grid_dependency_wait();

  // Of 65,536 registers each thread starts with an equal share: 168, or 128 where three multiply.
  if (group == 0) {
    l2::setmaxnreg_decrease<CONSUMERS == 2 ? 40 : 32>();
    if (warp == 0 && lane == 0) {
      Slot slot;
      for (int index = first; index < tiles; index += stride) {
        const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
        for (int step = 0; step < steps_k; ++step) {
          l2::mbarrier_wait(empty + slot.index * 8, slot.parity ^ 1);
          // Both halves of B: the other block's may come even before this announcement.
          l2::mbarrier_arrive_expect_tx(full + slot.index * 8, kBytesA + kBytesB);
          load(smem_a + slot.index * kBytesA, smem_b + slot.index * kBytesB, full + slot.index * 8,
               map_a, map_b, tile, step * TILE_K, rank, a_batched, b_batched);
          slot.next();
        }
      }
      l2::launch_dependents();
    }
  } else {
    l2::setmaxnreg_increase<CONSUMERS == 2 ? 232 : 160>();
    const int consumer = group - 1;
    const u32 buffers = base + kOffsetC + (consumer * 4 + warp) * kStoreBytes;
    const u32 row_bytes = PINGPONG ? 0 : consumer * kRows * 128;  // this warpgroup's part of A
    u32 turn = 0;
    // ptxas lets no wgmma have more registers than a thread starts with: 64x256 are two of them.
    constexpr int kAcross = CONSUMERS > 2 && TILE_N > 192 ? 2 : 1, kPieces = kBlocks * kAcross;
    constexpr int kCols = TILE_N / kAcross;
    float acc[kPieces][kCols / 2];

    Slot slot;
    if (PINGPONG && consumer == 1) slot.skip(steps_k);  // the first tile is the other's
    for (int index = first + (PINGPONG ? consumer * stride : 0); index < tiles;
         index += PINGPONG ? 2 * stride : stride) {
      const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
      // Named barriers 1 and 2 pass the tensor cores on, tile by tile.
      if (PINGPONG && index != first) l2::named_barrier_sync(1 + consumer, 256);
      u32 previous = 0;
      for (int step = 0; step < steps_k; ++step) {
        l2::mbarrier_wait(full + slot.index * 8, slot.parity);
        multiply(acc, smem_a + slot.index * kBytesA + row_bytes, smem_b + slot.index * kBytesB,
                 step == 0);
        l2::wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
        if (step > 0) release(empty + previous * 8, lane);
        previous = slot.index;
        slot.next();
      }
      if (PINGPONG && index + stride < tiles) l2::named_barrier_arrive(2 - consumer, 256);
      l2::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        for (int j = 0; j < kCols / 2; ++j) l2::wgmma_pin(acc[i][j]);
      release(empty + previous * 8, lane);
      if (PINGPONG) slot.skip(steps_k);  // the other's tile

#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int below = (PINGPONG ? 0 : consumer * kRows) + i / kAcross * 64 + warp * kStoreRows;
        const int row = tile.row + below, col = tile.col + i % kAcross * kCols;
        if (row >= m) break;
        if (TILE_N >= kSlab && n % 8 == 0)
          store_by_copy(acc[i], buffers, turn, map_c, row, col, tile.batch, n, lane);
        else
          store_directly(acc[i], c + tile.batch * stride_c, row, col, m, n, ldc, lane);
      }
    }
    // Shared memory must outlive the copies that read it.
    if (lane == 0) l2::tma_store_wait_read<0>();
  }
  // A block stays until the other has sent its last bytes and arrivals here.
  if (CLUSTER > 1) l2::cluster_arrive(), l2::cluster_wait();
}
