/*---l2tune
id       = "sm90a/wgmma_half"
summary  = "wgmma with float16 sums: half the registers, so that a tile may be 256x256."
arch     = ["sm_90a"]
dtype    = ["f16"]
acc      = "f16"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "cdiv(m, 64) * cdiv(n, 8) * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M  = [128, 256]
TILE_N  = [64, 128, 256]
TILE_K  = [64]
STAGES  = [2, 3, 4, 5, 6, 7, 8]
CLUSTER = [1, 2]
GROUP   = [1, 2, 4, 8, 16]
where   = ["STAGES * 128 * (TILE_M + TILE_N) + 34816 <= smem_limit"]
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
block   = [384, 1, 1]
cluster = ["CLUSTER", 1, 1]
smem    = "STAGES * 128 * (TILE_M + TILE_N) + 34816"
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "batch", "ldc", "stride_c",
           "a_batched", "b_batched"]
---*/
// Sums in float16, for those who asked for them: every 16 products are rounded to half precision.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// The structure of wgmma_persistent without its ping-pong: one thread keeps a ring of STAGES slots
// filled, two warpgroups halve each tile's rows between them, a cluster of 2 takes two tiles, one
// above the other, and each block fetches half of B into both. Two sums share a register, so a
// thread of a 256x256 tile has 128 of them, and each byte fetched serves more products than in any
// tile of float sums. What it stores it has in registers already: nothing is converted.
#include "l2/barrier.cuh"
#include "l2/tma_sm90.cuh"
#include "l2/types.cuh"
#include "l2/wgmma_half_sm90.cuh"

using namespace l2;

constexpr int kSlab = 64;                // elements in a 128-byte swizzled row
constexpr int kRows = TILE_M / 2;        // of a tile, that one warpgroup owns
constexpr int kBlocks = kRows / 64;      // wgmma takes 64 rows
constexpr int kReaders = 8 * CLUSTER;    // warps that must release a slot
constexpr u32 kBytesA = TILE_M * TILE_K * 2, kBytesB = TILE_N * TILE_K * 2;
constexpr u32 kSlabBytes = TILE_K * kSlab * 2;  // 64 columns (or rows), all of a slot's k
constexpr u32 kBufferBytes = 16 * kSlab * 2;    // 16 rows; a warp has two, one drains
static_assert(TILE_K == kSlab, "a slot's k is one swizzled row");

// Shared memory, from a 1024-byte boundary on, since the swizzle counts rows from one:
//   a[STAGES][kBytesA]  b[STAGES][kBytesB]  c[8 warps][2][kBufferBytes]
//   full[STAGES]  empty[STAGES]
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetC = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetFull = kOffsetC + 8 * 2 * kBufferBytes;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;

// A thread's sums, two to a register.
using Sums = u32[kBlocks][TILE_N / 4];

// The ring, as one thread goes round it. A slot has two mbarriers: `full`, the bytes are there, and
// `empty`, every warp that reads it, in both blocks of a cluster, is done.
struct Ring {
  u32 base, slot = 0, parity = 0;

  __device__ __forceinline__ u32 a() const { return base + slot * kBytesA; }
  __device__ __forceinline__ u32 b() const { return base + kOffsetB + slot * kBytesB; }
  __device__ __forceinline__ u32 full() const { return base + kOffsetFull + slot * 8; }
  __device__ __forceinline__ u32 empty() const { return base + kOffsetEmpty + slot * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
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

// Fetches 64 of k, from k0 on: the block's A, and its share of the cluster's B.
__device__ __forceinline__ void load(Ring& ring, const tensor_map& map_a, const tensor_map& map_b,
                                     Tile tile, int k0, int rank, int batch_a, int batch_b) {
  mbarrier_wait(ring.empty(), ring.parity ^ 1);
  // Both halves of B: the other block's may come even before this announcement.
  mbarrier_arrive_expect_tx(ring.full(), kBytesA + kBytesB);
#pragma unroll
  for (int i = 0; i < (L2_A_T ? TILE_M / kSlab : 1); ++i) {
    const int row = tile.row + i * kSlab;
    tma_load_3d(ring.a() + i * kSlabBytes, map_a, ring.full(), L2_A_T ? row : k0,
                L2_A_T ? k0 : row, batch_a);
  }
  // The share is half of the columns where k is contiguous, else half of each slab's k.
  constexpr int kShare = (L2_B_T ? TILE_N : TILE_K) / CLUSTER;
#pragma unroll
  for (int i = 0; i < (L2_B_T ? 1 : TILE_N / kSlab); ++i) {
    const u32 to = ring.b() + i * kSlabBytes + rank * kShare * 128;
    const int inner = L2_B_T ? k0 : tile.col + i * kSlab;
    const int outer = (L2_B_T ? tile.col : k0) + rank * kShare;
    if (CLUSTER == 1) tma_load_3d(to, map_b, ring.full(), inner, outer, batch_b);
    else tma_load_3d_multicast(to, map_b, ring.full(), inner, outer, batch_b, 3);
  }
  ring.next();
}

// Adds a slot's product, 64 of k in steps of 16; `a` is where the warpgroup's rows start.
__device__ __forceinline__ void multiply(Sums& acc, u32 a, u32 b, bool first) {
  constexpr u32 kStepA = (L2_A_T ? 16 * 128 : 32) / 16, kStepB = (L2_B_T ? 32 : 16 * 128) / 16;
  const auto operand_a = L2_A_T ? wgmma_mn_major(a, kSlabBytes) : wgmma_k_major(a);
  const auto operand_b = L2_B_T ? wgmma_k_major(b) : wgmma_mn_major(b, kSlabBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < TILE_K / 16; ++step) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      // 64 rows of A are 8 KB in either order.
      wgmma_half<L2_A_T, !L2_B_T>(acc[i], operand_a + step * kStepA + i * (64 * 128 / 16),
                                  operand_b + step * kStepB, step > 0 || !first);
    }
  }
  wgmma_commit();
}

// Called by each reading warp: the slot may be overwritten, in both blocks of a cluster.
__device__ __forceinline__ void release(u32 empty, int lane) {
  if (CLUSTER == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < CLUSTER) {
    mbarrier_arrive_cluster(map_to_rank(empty, lane));
  }
}

// Writes a warp's 16 rows through its two buffers, 64 columns at a time, without other warps.
// Returns before the last copies have read them: they go on under the next tile's main loop.
__device__ __forceinline__ void store_by_copy(const u32 (&acc)[TILE_N / 4], u32 buffers, u32& turn,
                                              const tensor_map& map_c, int row, int col, int batch,
                                              int n, int lane) {
#pragma unroll
  for (int slab = 0; slab < TILE_N / kSlab; ++slab) {
    if (col + slab * kSlab >= n) break;
    const u32 buffer = buffers + turn * kBufferBytes;
    if (lane == 0) tma_store_wait_read<1>();  // the buffer's last copy has read it
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlab / 16; ++i) {
      const u32* d = acc + slab * (kSlab / 4) + i * 4;
      // 16x16 as four 8x8: rows 0-7, rows 8-15, and the same of the next 8 columns.
      stmatrix_x4(buffer + swizzle_128(lane % 16, i * 2 + lane / 16), d[0], d[1], d[2], d[3]);
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      tma_store_3d(map_c, buffer, col + slab * kSlab, row, batch);
      tma_store_commit();
    }
    turn ^= 1;
  }
}

// The same from registers, for n that does not end on 16 bytes: there a bulk store writes up to the
// next 16, as seen on an H200.
__device__ __forceinline__ void store_directly(const u32 (&acc)[TILE_N / 4], elem* c, int row,
                                               int col, int m, int n, int ldc, int lane) {
#pragma unroll
  for (int i = 0; i < TILE_N / 4; ++i) {
    const int r = row + lane / 4 + i % 2 * 8, x = col + i / 2 * 8 + lane % 4 * 2;
    elem* out = c + static_cast<long long>(r) * ldc + x;  // 4-byte aligned: ldc and x are even
    if (r < m && x + 1 < n) *reinterpret_cast<u32*>(out) = acc[i];
    else if (r < m && x < n) *out = __ushort_as_half(static_cast<unsigned short>(acc[i]));
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
     const __grid_constant__ tensor_map map_c, elem* __restrict__ c, int m, int n, int k, int batch,
     int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  // Shared addresses are 32 bits wide; both blocks of a cluster compute the same ones.
  const u32 base = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in a whole warp
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) % 4, lane = threadIdx.x % 32;
  const int rank = CLUSTER == 1 ? 0 : cluster_rank();

  // A cluster works on CLUSTER tiles, one above the other, as if on one.
  const int tiles_m = (m - 1) / (TILE_M * CLUSTER) + 1, tiles_n = (n - 1) / TILE_N + 1;
  const int tiles = tiles_m * tiles_n * batch, steps_k = (k - 1) / TILE_K + 1;
  const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;

  if (threadIdx.x == 0) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    prefetch_tensor_map(map_c);
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(base + kOffsetFull + i * 8, 1);  // the copying thread, and bytes it announces
      mbarrier_init(base + kOffsetEmpty + i * 8, kReaders);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_arrive(), cluster_wait();  // so are the other block's barriers

  Ring ring{base};
  if (group == 0) {
    setmaxnreg_decrease<40>();
    if (warp == 0 && lane == 0) {
      for (int index = first; index < tiles; index += stride) {
        const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
        for (int step = 0; step < steps_k; ++step)
          load(ring, map_a, map_b, tile, step * TILE_K, rank, tile.batch * a_batched,
               tile.batch * b_batched);
      }
    }
  } else {
    setmaxnreg_increase<232>();
    const int rows = (group - 1) * kRows;  // of the tile, above this warpgroup's
    const u32 buffers = base + kOffsetC + ((group - 1) * 4 + warp) * 2 * kBufferBytes;
    u32 turn = 0;
    Sums acc;

    for (int index = first; index < tiles; index += stride) {
      const Tile tile = tile_at(index, tiles_m, tiles_n, rank);
      u32 previous = 0;
      for (int step = 0; step < steps_k; ++step) {
        mbarrier_wait(ring.full(), ring.parity);
        multiply(acc, ring.a() + rows * 128, ring.b(), step == 0);
        wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
        if (step > 0) release(previous, lane);
        previous = ring.empty();
        ring.next();
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        for (int j = 0; j < TILE_N / 4; ++j) wgmma_pin(acc[i][j]);
      release(previous, lane);

#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int row = tile.row + rows + i * 64 + warp * 16;
        if (row >= m) break;
        if (n % 8 == 0)
          store_by_copy(acc[i], buffers, turn, map_c, row, tile.col, tile.batch, n, lane);
        else
          store_directly(acc[i], c + tile.batch * stride_c, row, tile.col, m, n, ldc, lane);
      }
    }
    // Shared memory must outlive the copies that read it.
    if (lane == 0) tma_store_wait_read<0>();
  }
  // A block stays until the other has sent its last bytes and arrivals here.
  if (CLUSTER > 1) cluster_arrive(), cluster_wait();
}
