// One tile of a product by wgmma, from TMA to the stored rows (sm_90a): one thread copies 64 of k
// at a time into a ring, one or two warpgroups multiply, and each stores its own rows. It is written
// for the tunables of the file that includes it: TILE_M, TILE_N, TILE_K and STAGES.
#pragma once
#include "l2/barrier.cuh"
#include "l2/tma_sm90.cuh"
#include "l2/types.cuh"
#include "l2/wgmma_sm90.cuh"

namespace l2 {

constexpr int kSlab = 64;                          // elements in a 128-byte swizzled row
constexpr int kColsB = L2_B_T ? TILE_N : (TILE_N + kSlab - 1) / kSlab * kSlab;  // fetched of B
constexpr int kReaders = TILE_M > 64 ? 256 : 128;  // threads that multiply
constexpr int kRows = TILE_M / (kReaders / 128);   // rows of a tile that one warpgroup owns
constexpr int kBlocks = kRows / 64;                // wgmma takes 64 rows
constexpr int kEights = TILE_N / 8;                // of 16 rows and 8 columns a thread has 4 sums
constexpr u32 kBytesA = TILE_M * TILE_K * 2, kBytesB = kColsB * TILE_K * 2;
constexpr u32 kSlabBytes = TILE_K * kSlab * 2;     // 64 columns (or rows), all of a slot's k
constexpr int kStoreBuffers = 2;                   // per warp: one is filled, one drains
constexpr u32 kBufferBytes = 16 * kSlab * 2, kStoreBytes = kStoreBuffers * kBufferBytes;
static_assert(TILE_K == kSlab && kRows % 64 == 0 && TILE_N % 8 == 0, "wgmma and swizzle");

// Shared memory, from a 1024-byte boundary on, since the swizzle counts rows from one:
//   a[STAGES][kBytesA]  b[STAGES][kBytesB]  c[warps][kStoreBytes]  full[STAGES]  empty[STAGES]
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetC = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetFull = kOffsetC + kReaders / 32 * kStoreBytes;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;

// A thread's sums: of 64 rows each, of 8 columns each, 4.
using Sums = float[kBlocks][TILE_N / 2];

struct Tile {
  int row, col, batch;
};

// The ring, as one thread goes round it. A slot has two mbarriers: `full`, the bytes are there, and
// `empty`, every warp that reads it is done.
struct Ring {
  u32 base, slot = 0, parity = 0;  // of the rounds, which are odd and even in turn

  __device__ __forceinline__ u32 a() const { return base + slot * kBytesA; }
  __device__ __forceinline__ u32 b() const { return base + kOffsetB + slot * kBytesB; }
  __device__ __forceinline__ u32 full() const { return base + kOffsetFull + slot * 8; }
  __device__ __forceinline__ u32 empty() const { return base + kOffsetEmpty + slot * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
  // One thread does it, before a barrier.
  __device__ __forceinline__ void init() const {
    for (u32 i = 0; i < STAGES; ++i) {
      mbarrier_init(base + kOffsetFull + i * 8, 1);  // the copying thread, and bytes it announces
      mbarrier_init(base + kOffsetEmpty + i * 8, kReaders / 32);
    }
    mbarrier_init_fence();
  }
};

// Fetches 64 of k, from k0 on, into the next slot.
__device__ __forceinline__ void load(Ring& ring, const tensor_map& map_a, const tensor_map& map_b,
                                     Tile tile, int k0, int batch_a, int batch_b) {
  mbarrier_wait(ring.empty(), ring.parity ^ 1);
  mbarrier_arrive_expect_tx(ring.full(), kBytesA + kBytesB);
#pragma unroll
  for (int i = 0; i < (L2_A_T ? TILE_M / kSlab : 1); ++i) {
    const int row = tile.row + i * kSlab;
    tma_load_3d(ring.a() + i * kSlabBytes, map_a, ring.full(), L2_A_T ? row : k0,
                L2_A_T ? k0 : row, batch_a);
  }
#pragma unroll
  for (int i = 0; i < (L2_B_T ? 1 : kColsB / kSlab); ++i) {
    const int col = tile.col + i * kSlab;
    tma_load_3d(ring.b() + i * kSlabBytes, map_b, ring.full(), L2_B_T ? k0 : col,
                L2_B_T ? col : k0, batch_b);
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
      wgmma<L2_A_T, !L2_B_T>(acc[i], operand_a + step * kStepA + i * (64 * 128 / 16),
                             operand_b + step * kStepB, step > 0 || !first);
    }
  }
  wgmma_commit();
}

// The product of the next `steps` slots, at least one; the warpgroup's rows start `rows` down.
__device__ __forceinline__ void multiply_steps(Sums& acc, Ring& ring, int steps, int rows,
                                               int lane) {
  u32 previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(ring.full(), ring.parity);
    multiply(acc, ring.a() + rows * 128, ring.b(), step == 0);
    wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
    if (step > 0 && lane == 0) mbarrier_arrive(previous);
    previous = ring.empty();
    ring.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i)
    for (int j = 0; j < TILE_N / 2; ++j) wgmma_pin(acc[i][j]);
  if (lane == 0) mbarrier_arrive(previous);
}

// Writes one warp's 16 rows through its two buffers, 64 columns at a time, without other warps.
// Returns before the last copies have read them: they go on under the next tile's main loop.
__device__ __forceinline__ void store_by_copy(const float (&acc)[TILE_N / 2], u32 buffers,
                                              u32& turn, const tensor_map& map_c, int row, int col,
                                              int batch, int n, int lane) {
#pragma unroll
  for (int slab = 0; slab < TILE_N / kSlab; ++slab) {
    if (col + slab * kSlab >= n) break;
    const u32 buffer = buffers + turn * kBufferBytes;
    if (lane == 0) tma_store_wait_read<kStoreBuffers - 1>();  // its last copy has read it
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSlab / 16; ++i) {
      const float* d = acc + slab * (kSlab / 2) + i * 8;
      // 16x16 as four 8x8: rows 0-7, rows 8-15, and the same of the next 8 columns.
      stmatrix_x4(buffer + swizzle_128(lane % 16, i * 2 + lane / 16), pack2(d[0], d[1]),
                  pack2(d[2], d[3]), pack2(d[4], d[5]), pack2(d[6], d[7]));
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (lane == 0) {
      tma_store_3d(map_c, buffer, col + slab * kSlab, row, batch);
      tma_store_commit();
    }
    turn = (turn + 1) % kStoreBuffers;
  }
}

// The place in C that a warp writes to: rows and columns from `row` and `col` on, of m and n.
struct Output {
  elem* c;
  int row, col, m, n, ldc;

  // Writes the four sums that a lane has of 16 rows and 8 columns, `down` and `right` of here.
  __device__ __forceinline__ void store(int down, int right, float4 d, int lane) const {
    const int x = col + right + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + down + lane / 4 + half * 8;
      const float first = half ? d.z : d.x, second = half ? d.w : d.y;
      elem* to = c + static_cast<long long>(r) * ldc + x;  // 4-byte aligned: ldc and x are even
      if (r < m && x + 1 < n) *reinterpret_cast<u32*>(to) = pack2(first, second);
      else if (r < m && x < n) *to = to_elem(first);
    }
  }
};

// Writes a warp's rows of a tile. A bulk store writes up to the next 16 bytes, as seen on an H200,
// so where n ends elsewhere, and where the tile is no multiple of 128 bytes wide, none is used.
__device__ __forceinline__ void store_rows(const Sums& acc, const Output& out, u32 buffers,
                                           u32& turn, const tensor_map& map_c, int batch,
                                           int lane) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    if (out.row + i * 64 >= out.m) break;
    if (TILE_N % kSlab == 0 && out.n % 8 == 0) {
      store_by_copy(acc[i], buffers, turn, map_c, out.row + i * 64, out.col, batch, out.n, lane);
    } else {
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const float* d = acc[i] + j * 4;
        out.store(i * 64, j * 8, make_float4(d[0], d[1], d[2], d[3]), lane);
      }
    }
  }
}

}  // namespace l2
