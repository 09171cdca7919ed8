// Tiles of a product by wgmma, from TMA to the stored rows (sm_90a): one thread copies 64 of k at a
// time into a ring, warpgroups multiply, and each stores its own rows. Two blocks may take two
// tiles, one above the other: both need the same B, of which each fetches half into both. It is
// written for the tunables of the file that includes it, TILE_M, TILE_N, TILE_K, STAGES and GROUP,
// and for what that file defines before: kCluster, blocks that share B; kGroups, warpgroups that
// multiply; and kSharers, how many of them share out the rows of a tile.
#pragma once
#include "l2/barrier.cuh"
#include "l2/wgmma_tile_sm90.cuh"

namespace l2 {

constexpr int kReaders = kGroups * 128;          // threads that multiply
constexpr int kRows = TILE_M / kSharers;         // of a tile, a warpgroup's own
constexpr int kBlocks = kRows / 64;              // wgmma takes 64 rows
// ptxas lets no wgmma have more registers than a thread starts with: for three warpgroups 64x256
// are two of them.
constexpr int kAcross = kGroups > 2 && TILE_N > 192 ? 2 : 1;
constexpr int kPieces = kBlocks * kAcross, kCols = TILE_N / kAcross;
constexpr int kStoreBuffers = 2;                 // per warp: one is filled, one drains
constexpr u32 kStoreBytes = kStoreBuffers * kBufferBytes;
static_assert(kRows % 64 == 0, "a warpgroup has whole blocks of 64 rows");

// Shared memory, from a 1024-byte boundary on, since the swizzle counts rows from one:
//   a[STAGES][kBytesA]  b[STAGES][kBytesB]  c[warps][kStoreBytes]  full[STAGES]  empty[STAGES]
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetC = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetFull = kOffsetC + kReaders / 32 * kStoreBytes;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;

// A thread's sums, floats or halves.
template <class Sum>
using Sums = Sum[kPieces][kCols / 4 * kPair<Sum>];

struct Tile {
  int row, col, batch;
};

// Tile `index` of block `rank` of a cluster, which has a tile in each of kCluster rows of tiles.
// GROUP such rows are walked column by column, then the next GROUP: the blocks at work at one time
// share rows of A and columns of B in the L2.
__device__ __forceinline__ Tile tile_at(int index, int tiles_m, int tiles_n, int rank) {
  const int batch = index / (tiles_m * tiles_n);
  index -= batch * tiles_m * tiles_n;
  const int group_rows = min(GROUP, tiles_m), group = index / (group_rows * tiles_n);
  const int rows = min(group_rows, tiles_m - group * group_rows);  // the last group may have fewer
  index -= group * group_rows * tiles_n;
  const int row = group * group_rows + index % rows;
  return {(row * kCluster + rank) * TILE_M, index / rows * TILE_N, batch};
}

// The ring, as one thread goes round it. A slot has two mbarriers: `full`, the bytes are there, and
// `empty`, every warp that reads it, in all blocks of the cluster, is done.
struct Ring {
  u32 base, slot = 0, parity = 0;  // of the rounds, which are odd and even in turn

  __device__ __forceinline__ u32 a() const { return base + slot * kBytesA; }
  __device__ __forceinline__ u32 b() const { return base + kOffsetB + slot * kBytesB; }
  __device__ __forceinline__ u32 full() const { return base + kOffsetFull + slot * 8; }
  __device__ __forceinline__ u32 empty() const { return base + kOffsetEmpty + slot * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(u32 steps) {
    slot += steps;
    parity ^= slot / STAGES & 1;
    slot %= STAGES;
  }
  // One thread does it, before a barrier of the cluster.
  __device__ __forceinline__ void init() const {
    for (u32 i = 0; i < STAGES; ++i) {
      mbarrier_init(base + kOffsetFull + i * 8, 1);  // the copying thread, and bytes it announces
      mbarrier_init(base + kOffsetEmpty + i * 8, kSharers * 4 * kCluster);
    }
    mbarrier_init_fence();
  }
};

// Fetches 64 of k, from k0 on, into the next slot: the block's A, and its share of the cluster's B.
__device__ __forceinline__ void load(Ring& ring, const tensor_map& map_a, const tensor_map& map_b,
                                     Tile tile, int k0, int rank, int batch_a, int batch_b) {
  mbarrier_wait(ring.empty(), ring.parity ^ 1);
  // All shares of B: another block's may come even before this announcement.
  mbarrier_arrive_expect_tx(ring.full(), kBytesA + kBytesB);
#pragma unroll
  for (int i = 0; i < (kAlongM ? TILE_M / kSlab : 1); ++i) {
    const int row = tile.row + i * kSlab;
    tma_load_3d(ring.a() + i * kSlabBytes, map_a, ring.full(), kAlongM ? row : k0,
                kAlongM ? k0 : row, batch_a);
  }
  // The share is a part of the columns where k is contiguous, else of each slab's k.
  constexpr int kShare = (kAlongN ? TILE_K : TILE_N) / kCluster;
#pragma unroll
  for (int i = 0; i < (kAlongN ? kColsB / kSlab : 1); ++i) {
    const u32 to = ring.b() + i * kSlabBytes + rank * kShare * 128;
    const int inner = kAlongN ? tile.col + i * kSlab : k0;
    const int outer = (kAlongN ? k0 : tile.col) + rank * kShare;
    if (kCluster == 1) tma_load_3d(to, map_b, ring.full(), inner, outer, batch_b);
    else tma_load_3d_multicast(to, map_b, ring.full(), inner, outer, batch_b, (1 << kCluster) - 1);
  }
  ring.next();
}

// Called by each reading warp: the slot may be overwritten, in all blocks of the cluster.
__device__ __forceinline__ void release(u32 empty, int lane) {
  if (kCluster == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < kCluster) {
    mbarrier_arrive_cluster(map_to_rank(empty, lane));
  }
}

// The product of the next `steps` slots, at least one; the warpgroup's rows start `rows` down.
// Calls `issued` once the last product is under way.
template <class Sum, int kRegisters, class Issued>
__device__ __forceinline__ void multiply_steps(Sum (&acc)[kPieces][kRegisters], Ring& ring,
                                               int steps, int rows, int lane, Issued issued) {
  u32 previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(ring.full(), ring.parity);
    multiply<kAcross>(acc, ring.a() + rows * 128, ring.b(), step == 0);
    wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
    if (step > 0) release(previous, lane);
    previous = ring.empty();
    ring.next();
  }
  issued();
  complete(acc);
  release(previous, lane);
}

// Writes one warp's 16 rows through its two buffers, 64 columns at a time, without other warps.
// Returns before the last copies have read them: they go on under the next tile's main loop.
template <class Sum>
__device__ __forceinline__ void store_by_copy(const Sum* acc, u32 buffers, u32& turn,
                                              const tensor_map& map_c, int row, int col, int batch,
                                              int n, int lane) {
#pragma unroll
  for (int slab = 0; slab < kCols / kSlab; ++slab) {
    if (col + slab * kSlab >= n) break;
    const u32 buffer = buffers + turn * kBufferBytes;
    if (lane == 0) tma_store_wait_read<kStoreBuffers - 1>();  // its last copy has read it
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlab / 16; ++i)
      stage(buffer, i, acc + (slab * (kSlab / 4) + i * 4) * kPair<Sum>, lane);
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      tma_store_3d(map_c, buffer, col + slab * kSlab, row, batch);
      tma_store_commit();
    }
    turn = (turn + 1) % kStoreBuffers;
  }
}

// Writes a warp's rows of a tile. A bulk store writes up to the next 16 bytes, as seen on an H200,
// so where n ends elsewhere, and where the tile is no multiple of 128 bytes wide, none is used.
template <class Sum, int kRegisters>
__device__ __forceinline__ void store_rows(const Sum (&acc)[kPieces][kRegisters],
                                           const Output& out, u32 buffers, u32& turn,
                                           const tensor_map& map_c, int batch, int lane) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int down = i / kAcross * 64, right = i % kAcross * kCols;
    if (out.row + down >= out.m) break;
    if (TILE_N % kSlab == 0 && out.n % 8 == 0) {
      store_by_copy(acc[i], buffers, turn, map_c, out.row + down, out.col + right, batch, out.n,
                    lane);
    } else {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const Sum* d = acc[i] + j * 2 * kPair<Sum>;
        out.store(down, right + j * 8, pair_of(d), pair_of(d + kPair<Sum>), lane);
      }
    }
  }
}

}  // namespace l2
