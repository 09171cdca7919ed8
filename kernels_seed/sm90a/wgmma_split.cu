/*---l2tune
id       = "sm90a/wgmma_split"
summary  = "One wave of clusters, whose blocks share out k and share what they fetch."
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000",
            "SPLIT * cdiv(m, 8) * cdiv(n, 8) * ROWS * COLS * batch <= 2147000000"]
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M = [64, 128]
TILE_N = [8, 16, 32, 64, 96, 128, 192, 256]
TILE_K = [64]
STAGES = [2, 3, 4, 5, 6, 7, 8, 10, 12]
SPLIT  = [1, 2, 3, 4, 5, 6, 7, 8]
ROWS   = [1, 2]
COLS   = [1, 2]
PUSH   = [0, 1]
FLIP   = [0, 1]
BULK   = [1, 0]
where  = ["SPLIT * ROWS * COLS <= 8", "TILE_N % (8 * ROWS) == 0",
          """STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + 2048 \
             + PUSH * (SPLIT - 1) * cdiv(TILE_N, 8 * SPLIT) * 32 * TILE_M <= smem_limit""",
          "SPLIT == 1 or PUSH == 1 or TILE_M * TILE_N * 4 <= STAGES * 128 * (TILE_M + TILE_N)",
          "SPLIT > 1 or PUSH == 0",
          "BULK == 1 or SPLIT == 1 and FLIP == 0 and TILE_N % 64 == 0"]
[tma.a]
box          = ["64", """(TILE_K if a_t else TILE_M) // COLS if FLIP == 0 \
                         else (TILE_K if a_t else TILE_N) // ROWS"""]
swizzle      = 128
l2_promotion = 256
[tma.b]
box          = ["64", """(TILE_N if b_t else TILE_K) // ROWS if FLIP == 0 \
                         else (TILE_M if b_t else TILE_K) // COLS"""]
swizzle      = 128
l2_promotion = 256
[tma.c]
box          = ["64", "16"]
swizzle      = 128
[[launch]]
kernel  = "gemm"
grid    = ["""SPLIT * ROWS * COLS * cdiv(n if FLIP else m, TILE_M * ROWS) \
              * cdiv(m if FLIP else n, TILE_N * COLS) * batch""", 1, 1]
block   = ["2 * TILE_M + 32", 1, 1]
cluster = ["SPLIT * ROWS * COLS", 1, 1]
smem    = """STAGES * 128 * (TILE_M + (TILE_N if (a_t == 0 if FLIP else b_t == 1) \
                                       else cdiv(TILE_N, 64) * 64)) + 2048 \
             + PUSH * (SPLIT - 1) * cdiv(TILE_N, 8 * SPLIT) * 32 * TILE_M"""
args    = ["tma.a", "tma.b", "tma.c", "c", "m", "n", "k", "ldc", "stride_c", "a_batched",
           "b_batched"]
---*/
// For products that one wave of blocks computes: nothing stays, nothing is launched twice.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// - A cluster has ROWS x COLS tiles of C, and SPLIT blocks for each. Block `part` of a tile takes
//   that part of k, so that many multiprocessors read the operands of a small, deep product.
// - Tiles side by side need the same of A, tiles one above the other the same of B: each block
//   fetches its share of both, into all blocks that need it.
// - The last warp of a block copies, through a ring of STAGES slots 64 deep; the others, one or two
//   warpgroups of 64 rows, multiply. A slot is free when its readers in all blocks that write to
//   it have said so.
// - Then each block leaves its sums in its own shared memory, where the ring was, meets the others,
//   and adds up its share of the columns from all parts, always in the same order.
// - With FLIP the tiles are those of the transposed product: n goes along the 64 rows that an
//   instruction has at least, and m along the columns, of which 8 will do.
// - With PUSH it sends the others their shares as soon as it has them, from registers into memory
//   kept for that beside the ring; each block waits only for what it is sent. Where a tile has
//   fewer than 8 * SPLIT columns some blocks have no share.
// - With BULK 1 the rows of a tile that is not split are stored by the copy engine, where they are
//   whole; else by the threads, 16 bytes at once if a block has more than a few columns to store.
//
// Past an edge the copy engine reads zeros, and drops what is stored; a block with no part of k
// adds zeros. A bulk store writes up to the next 16 bytes; where n ends elsewhere, none is used.
#include "l2/barrier.cuh"
#include "l2/movmatrix.cuh"
#include "l2/pdl.cuh"
#include "l2/push.cuh"
#include "l2/wgmma_tile_sm90.cuh"

using namespace l2;

constexpr int kBlocks = SPLIT * ROWS * COLS;  // of a cluster
constexpr int kReaders = TILE_M / 64 * 128;   // threads that multiply
constexpr u32 kOffsetB = STAGES * kBytesA, kOffsetFull = kOffsetB + STAGES * kBytesB;
constexpr u32 kOffsetEmpty = kOffsetFull + STAGES * 8;
constexpr int kEights = TILE_N / 8;           // groups of 8 columns, of which a thread holds 4 sums
constexpr int kShare = (kEights + SPLIT - 1) / SPLIT;  // those that one block stores, at most
// Whether rows of whole slabs may be stored by the copy engine.
constexpr bool kCopied = SPLIT == 1 && !FLIP && TILE_N % kSlab == 0 && BULK;
// Whether the threads store 16 bytes at once, by way of shared memory: more than a few columns, and
// where the ring was, nobody else looks for sums.
constexpr bool kGathered = (SPLIT == 1 || PUSH) && kShare > 2;

constexpr int kPeers = ROWS + COLS - 1;       // blocks that read what this one fetches, it included

// Where the barrier for what is pushed is, after those of the ring.
__device__ __forceinline__ u32 pushed(u32 base) { return base + kOffsetEmpty + STAGES * 8; }

// Where a block stands in its cluster.
struct Place {
  int part, row, col;

  __device__ __forceinline__ int rank_of(int other_part, int other_row, int other_col) const {
    return (other_part * ROWS + other_row) * COLS + other_col;
  }
  // The i-th block that shares an operand with this one, counted from 0: its row, then its column.
  __device__ __forceinline__ int peer(int i) const {
    if (i < COLS) return rank_of(part, row, i);
    return rank_of(part, i - COLS + (i - COLS >= row), col);
  }
};

// Rows and columns of the product, or of the transposed one.
struct Tile {
  int row, col, batch_a, batch_b;
};

// Fetches 64 of k: this block's share of A for the blocks of its row, of B for those of its column.
__device__ __forceinline__ void load(u32 base, int slot, const tensor_map& map_a,
                                     const tensor_map& map_b, Tile tile, Place place, int k0) {
  const u32 full = base + kOffsetFull + slot * 8;
  mbarrier_arrive_expect_tx(full, kBytesA + kBytesB);  // of all shares
  constexpr int kShareA = (kAlongM ? kSlab : TILE_M) / COLS;
  constexpr int kShareB = (kAlongN ? kSlab : TILE_N) / ROWS;
  const u32 a = base + slot * kBytesA + place.col * kShareA * 128;
  const u32 b = base + kOffsetB + slot * kBytesB + place.row * kShareB * 128;
  const int k_a = k0 + (kAlongM ? place.col * kShareA : 0);
  const int row = tile.row + (kAlongM ? 0 : place.col * kShareA);
  const int k_b = k0 + (kAlongN ? place.row * kShareB : 0);
  const int col = tile.col + (kAlongN ? 0 : place.row * kShareB);
#pragma unroll
  for (int i = 0; i < (kAlongM ? TILE_M / kSlab : 1); ++i) {
    const int inner = kAlongM ? row + i * kSlab : k_a, outer = kAlongM ? k_a : row;
    if (COLS == 1) tma_load_3d(a + i * kSlabBytes, map_a, full, inner, outer, tile.batch_a);
    else tma_load_3d_multicast(a + i * kSlabBytes, map_a, full, inner, outer, tile.batch_a,
                               3 << place.rank_of(place.part, place.row, 0));
  }
#pragma unroll
  for (int i = 0; i < (kAlongN ? kColsB / kSlab : 1); ++i) {
    const int inner = kAlongN ? col + i * kSlab : k_b, outer = kAlongN ? k_b : col;
    if (ROWS == 1) tma_load_3d(b + i * kSlabBytes, map_b, full, inner, outer, tile.batch_b);
    else tma_load_3d_multicast(b + i * kSlabBytes, map_b, full, inner, outer, tile.batch_b,
                               (1 | 1 << COLS) << place.rank_of(place.part, 0, place.col));
  }
}

// Called by each reading warp: the slot may be overwritten, by every block that fetches for it.
__device__ __forceinline__ void release(u32 empty, Place place, int lane) {
  if (kPeers == 1) {
    if (lane == 0) mbarrier_arrive(empty);
  } else if (lane < kPeers) {
    mbarrier_arrive_cluster(map_to_rank(empty, place.peer(lane)));
  }
}

__device__ __forceinline__ void store_shared(u32 address, const float* d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, u32 pair) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}

__device__ __forceinline__ float4 load_cluster(u32 remote) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(remote) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_shared(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
}

// Writes a warp's 16 rows by copies from `buffer`, 2 KB of shared memory for each 64 columns.
__device__ __forceinline__ void store_by_copy(const float* acc, u32 buffer, const Output& out,
                                              const tensor_map& map_c, int batch, int lane) {
#pragma unroll
  for (int i = 0; i < TILE_N / 16; ++i)
    stage(buffer + i / 4 * kBufferBytes, i % 4, acc + i * 8, lane);
  fence_proxy_async_shared();
  __syncwarp();
  if (lane == 0) {
    for (int slab = 0; slab < TILE_N / kSlab && out.col + slab * kSlab < out.n; ++slab)
      tma_store_3d(map_c, buffer + slab * kBufferBytes, out.col + slab * kSlab, out.row, batch);
    tma_store_commit();
    tma_store_wait_read<0>();  // shared memory must outlive the copies that read it
  }
}

// Two pairs, of the upper and the lower 8 rows of a group of 8 columns, as a lane stores them: with
// FLIP its two of a column are exchanged for two of a row of C.
struct Pairs {
  u32 upper, lower;

  __device__ __forceinline__ explicit Pairs(const float* d) : upper(pair_of(d)),
                                                              lower(pair_of(d + 2)) {
    if (FLIP) upper = movmatrix_trans(upper), lower = movmatrix_trans(lower);
  }
};

// Writes the four sums that a lane holds of the `eight`-th 8 columns.
__device__ __forceinline__ void store(const Output& out, int eight, const float* d, int lane) {
  const Pairs pairs(d);
  if (!FLIP) return out.store(0, eight * 8, pairs.upper, pairs.lower, lane);
  const int row = out.col + eight * 8 + lane / 4, col = out.row + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 pair = half ? pairs.lower : pairs.upper;
    const int x = col + half * 8;
    elem* to = out.c + static_cast<long long>(row) * out.ldc + x;
    if (row < out.n && x + 1 < out.m) *reinterpret_cast<u32*>(to) = pair;
    else if (row < out.n && x < out.m) *reinterpret_cast<unsigned short*>(to) = pair;
  }
}

// A warp's groups of 8 columns on their way to C: rows of C in `buffer`, where the ring was.
struct Gathered {
  // Rows are 16 bytes more than a multiple of all banks apart, or 48, so that no two lanes meet.
  static constexpr int kPitch = FLIP ? 48 : (kShare * 16 + 127) / 128 * 128 + 16;
  static constexpr int kBytes = (FLIP ? 8 * kShare : 16) * kPitch;
  u32 buffer;

  // Puts the sums of the i-th group into its place.
  __device__ __forceinline__ void put(int i, const float* d, int lane) const {
    const Pairs pairs(d);
    const u32 to = buffer + (FLIP ? i * 8 * kPitch : i * 16) + lane / 4 * kPitch + lane % 4 * 4;
    store_shared(to, pairs.upper);
    store_shared(to + (FLIP ? 16 : 8 * kPitch), pairs.lower);
  }
  // Writes `count` groups, the first of which is the `eight`-th of the tile, 16 bytes at once.
  __device__ __forceinline__ void store(const Output& out, int eight, int count, int lane) const {
    constexpr int kChunks = FLIP ? 2 : kShare, kRows = FLIP ? 8 * kShare : 16;
    const int top = FLIP ? out.col + eight * 8 : out.row, rows = FLIP ? out.n : out.m;
    const int left = FLIP ? out.row : out.col + eight * 8, cols = FLIP ? out.m : out.n;
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kRows * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks, col = left + chunk * 8;
      if ((FLIP ? row / 8 : chunk) >= count || top + row >= rows || col >= cols) continue;
      const float4 eight_of_them = load_shared(buffer + row * kPitch + chunk * 16);
      elem* to = out.c + static_cast<long long>(top + row) * out.ldc + col;
      if (col + 8 <= cols) {
        *reinterpret_cast<float4*>(to) = eight_of_them;
      } else {
        const elem* each = reinterpret_cast<const elem*>(&eight_of_them);
        for (int e = 0; e < cols - col; ++e) to[e] = each[e];
      }
    }
  }
};

static_assert(!kGathered || kReaders / 32 * Gathered::kBytes <= kOffsetFull, "the ring holds them");

// Sends each other part its share of the columns, and adds up this block's own, part 0 first.
__device__ __forceinline__ void add_pushed(const float* acc, u32 base, Place place,
                                           const Output& out, int warp, int lane) {
  const u32 parts = base + (pushed(0) + 8 + 127) / 128 * 128 + threadIdx.x * 16;
  // What part `from` sends to part `to`: a block has no place for its own.
  const auto place_of = [=](int from, int to) {
    return parts + (from - (from > to)) * kShare * kReaders * 16;
  };
  u32 there[SPLIT], barrier[SPLIT];
#pragma unroll
  for (int p = 0; p < SPLIT; ++p) {
    const int rank = place.rank_of(p, place.row, place.col);
    there[p] = map_to_rank(place_of(place.part, p), rank);
    barrier[p] = map_to_rank(pushed(base), rank);
  }
  float own[kShare * 4] = {};
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const int p = ((eight + 1) * SPLIT - 1) / kEights;  // whose share it is in
    const int i = eight - kEights * p / SPLIT;
    const float* d = acc + eight * 4;
    if (p != place.part) push(there[p] + i * kReaders * 16, d, barrier[p]);
    else own[i * 4] = d[0], own[i * 4 + 1] = d[1], own[i * 4 + 2] = d[2], own[i * 4 + 3] = d[3];
  }
  mbarrier_wait_cluster(pushed(base), 0);
  const int first = kEights * place.part / SPLIT;
  const int count = kEights * (place.part + 1) / SPLIT - first;
  const Gathered gathered = {base + warp * Gathered::kBytes};
  if (kGathered) named_barrier_sync(1, kReaders);  // no warpgroup reads the ring any more
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (kEights % SPLIT && i == count) break;
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int p = 0; p < SPLIT; ++p) {
      float4 part = {own[i * 4], own[i * 4 + 1], own[i * 4 + 2], own[i * 4 + 3]};
      if (p != place.part) part = load_shared(place_of(p, place.part) + i * kReaders * 16);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
    if (kGathered) gathered.put(i, sum, lane);
    else store(out, first + i, sum, lane);
  }
  if (kGathered) gathered.store(out, first, count, lane);
}

extern "C" __global__ void __launch_bounds__(kReaders + 32)
gemm(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
     const __grid_constant__ tensor_map map_c, elem* __restrict__ c, int m, int n, int k,
     int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  // The swizzle counts rows from a 1024-byte boundary; all blocks of a cluster find the same one.
  const u32 base = (shared_address(dynamic) + 1023) / 1024 * 1024;
  const u32 full = base + kOffsetFull, empty = base + kOffsetEmpty;
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = kBlocks == 1 ? 0 : cluster_rank();
  const Place place = {rank / (ROWS * COLS), rank / COLS % ROWS, rank % COLS};

  // Rows and columns of the product whose tiles these are, and what its factors are.
  const int rows = FLIP ? n : m, cols = FLIP ? m : n;
  const tensor_map& rows_map = FLIP ? map_b : map_a;
  const tensor_map& cols_map = FLIP ? map_a : map_b;
  const int rows_batched = FLIP ? b_batched : a_batched;
  const int cols_batched = FLIP ? a_batched : b_batched;

  const int tiles_m = (rows - 1) / (TILE_M * ROWS) + 1, tiles_n = (cols - 1) / (TILE_N * COLS) + 1;
  const int index = blockIdx.x / kBlocks, batch = index / (tiles_m * tiles_n);
  const int in_batch = index - batch * tiles_m * tiles_n;
  const Tile tile = {(in_batch % tiles_m * ROWS + place.row) * TILE_M,
                     (in_batch / tiles_m * COLS + place.col) * TILE_N, batch * rows_batched,
                     batch * cols_batched};
  const long long steps_k = (k - 1) / kSlab + 1;
  const int begin = static_cast<int>(steps_k * place.part / SPLIT);
  const int steps = static_cast<int>(steps_k * (place.part + 1) / SPLIT) - begin;

  const bool copies = warp == kReaders / 32 && lane == 0;
  if (copies) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    if (kCopied) prefetch_tensor_map(map_c);
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + i * 8, 1);  // the copying thread, and the bytes it announces
      mbarrier_init(empty + i * 8, kReaders / 32 * kPeers);
    }
    if (PUSH) mbarrier_init(pushed(base), 1);
    mbarrier_init_fence();
    if (PUSH) {
      const int groups = kEights * (place.part + 1) / SPLIT - kEights * place.part / SPLIT;
      mbarrier_arrive_expect_tx(pushed(base), (SPLIT - 1) * groups * kReaders * 16);
    }
  }
  if (kPeers > 1) cluster_arrive(), cluster_wait();  // so are the other blocks' barriers
  else if (PUSH) cluster_arrive_relaxed();  // they will be when something is sent
  if (copies) {
    grid_dependency_wait();
    for (int step = 0; step < min(STAGES, steps); ++step)
      load(base, step, rows_map, cols_map, tile, place, (begin + step) * kSlab);
  }
  __syncthreads();

  if (copies) {
    u32 parity = 0;
    for (int step = STAGES, slot = 0; step < steps; ++step) {
      mbarrier_wait(empty + slot * 8, parity);
      load(base, slot, rows_map, cols_map, tile, place, (begin + step) * kSlab);
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    launch_dependents();
  }
  const Output out = {c + batch * stride_c, tile.row + warp * 16, tile.col, rows, cols, ldc};
  float acc[1][TILE_N / 2];
  if (warp < kReaders / 32) {
    int slot = 0, previous = 0;
    u32 parity = 0;
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) acc[0][i] = 0;
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(full + slot * 8, parity);
      multiply<1>(acc, base + slot * kBytesA + warp / 4 * (64 * 128),
                  base + kOffsetB + slot * kBytesB, step == 0);
      wgmma_wait<1>();  // all but the product just issued are done: the slot before is read
      if (step > 0) release(empty + previous * 8, place, lane);
      previous = slot;
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    complete(acc);
    grid_dependency_wait();  // C may be read by the launch before
    // No warpgroup reads the ring any more, before it is overwritten.
    if (!PUSH && (SPLIT > 1 || kCopied || kGathered)) named_barrier_sync(1, kReaders);
    if (kCopied && n % 8 == 0) {
      if (out.row < out.m)
        store_by_copy(acc[0], base + warp * (TILE_N * 32), out, map_c, batch, lane);
    } else if (SPLIT == 1) {
      const Gathered gathered = {base + warp * Gathered::kBytes};
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        if (kGathered) gathered.put(i, acc[0] + i * 4, lane);
        else store(out, i, acc[0] + i * 4, lane);
      }
      if (kGathered) gathered.store(out, 0, kEights, lane);
    }
    if (SPLIT > 1 && !PUSH) {
#pragma unroll
      for (int i = 0; i < kEights; ++i)
        store_shared(base + (i * kReaders + threadIdx.x) * 16, acc[0] + i * 4);
    }
  }
  if (PUSH) {
    if (kPeers == 1) cluster_wait();  // the other blocks' barriers are initialised
    if (warp < kReaders / 32) add_pushed(acc[0], base, place, out, warp, lane);
  } else if (SPLIT > 1) {
    cluster_arrive(), cluster_wait();  // every block's sums are there
    if (warp < kReaders / 32) {
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        const int eight = kEights * place.part / SPLIT + i;
        if (kEights % SPLIT && eight == kEights * (place.part + 1) / SPLIT) break;
        const u32 mine = base + (eight * kReaders + threadIdx.x) * 16;
        float4 part[SPLIT];
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
          part[p] = load_cluster(map_to_rank(mine, place.rank_of(p, place.row, place.col)));
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int p = 0; p < SPLIT; ++p)
          sum[0] += part[p].x, sum[1] += part[p].y, sum[2] += part[p].z, sum[3] += part[p].w;
        store(out, eight, sum, lane);
      }
    }
  }
  // A block stays until the others have read its sums, and sent their last arrivals. What they push
  // it has waited for.
  if (kBlocks > 1 && (!PUSH || kPeers > 1)) cluster_arrive(), cluster_wait();
}
