/*---l2tune
id       = "sm90a/wgmma_streamk"
summary  = "wgmma_persistent, whose last tiles are shared out step by step, so that no block idles."
arch     = ["sm_90a"]
dtype    = ["f16", "bf16"]
acc      = "f32"
layout   = ["nn", "nt", "tn", "tt"]
requires = ["align >= 16", "k >= 1", "max(m, n, k) <= 2147000000", "sms <= 256",
            "cdiv(m, TILE_M) * cdiv(n, TILE_N) * batch * cdiv(k, TILE_K) <= 2147000000"]
workspace = "8192 + sms * 2 * TILE_M * TILE_N * 4"
origin   = { kind = "seed", source = "written for l2tune" }
[tune]
TILE_M = [64, 128, 256]
TILE_N = [32, 64, 96, 128, 192, 256]
TILE_K = [64]
STAGES = [2, 3, 4, 5, 6, 7, 8, 10]
SHARED = [0, 1, 2]
GROUP  = [1, 4, 8, 16]
where  = [
  "TILE_M * TILE_N <= 32768",
  "STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + min(TILE_M, 128) * 256 + 2048 <= smem_limit",
]
[tma.a]
box          = ["64", "TILE_K if a_t else TILE_M"]
swizzle      = 128
l2_promotion = 256
[tma.b]
box          = ["64", "TILE_N if b_t else TILE_K"]
swizzle      = 128
l2_promotion = 256
[tma.c]
box          = ["64", "16"]
swizzle      = 128
[[launch]]
kernel  = "clear"
grid    = [1, 1, 1]
block   = [128, 1, 1]
pdl     = true
args    = ["workspace"]
[[launch]]
kernel  = "gemm"
grid    = [
  "min(sms, cdiv(m, TILE_M) * cdiv(n, TILE_N) * batch * cdiv(k, TILE_K) // cdiv(k, 16 * TILE_K))",
  1, 1,
]
block   = ["128 + 2 * min(TILE_M, 128)", 1, 1]
smem    = "STAGES * 128 * (TILE_M + cdiv(TILE_N, 64) * 64) + min(TILE_M, 128) * 256 + 2048"
pdl     = true
args    = ["tma.a", "tma.b", "tma.c", "c", "workspace", "m", "n", "k", "batch", "ldc", "stride_c",
           "a_batched", "b_batched"]
---*/
// wgmma_persistent without its last, partly filled wave: one block a multiprocessor, all as busy.
//   A [batch, M, K]   B [batch, K, N]   C [batch, M, N], any layout, 16-byte aligned
//
// - One thread copies, through a ring of STAGES slots 64 deep; one or two warpgroups multiply.
// - Each block first takes as many whole tiles as every other. The steps over k of the tiles that
//   are left are one row, of which each block has an equal share. SHARED says how many tiles that
//   are: 1, those of the last wave, if it is not full; 2, those of the wave before as well; 0, all.
// - A share is worked off from its end. So what it has of the tile that it ends within, whose rest
//   the next blocks have, is done and written to the workspace long before they ask for it.
// - A tile of few parts is finished by the block that has its last steps: it adds the others' sums
//   to its registers. Of a tile of many parts each block adds up some columns, once all are there.
//
// No hang, whatever else runs on the GPU: a block waits only for parts of blocks before it, which
// start before it and write them before they wait; where it would wait for later ones it gives up
// after a while, and whoever comes last does the work of those that did.
namespace l2 {
constexpr int kCluster = 1, kGroups = TILE_M > 64 ? 2 : 1, kSharers = kGroups;
}
#include "l2/flag.cuh"
#include "l2/pdl.cuh"
#include "l2/wgmma_pipeline_sm90.cuh"

using namespace l2;

constexpr int kMostParts = 16;                 // of a tile; one more where shares lie askew
constexpr int kFewParts = 3;                   // which one block adds up
constexpr int kPatience = 256;                 // looks at a flag, some 0.2 ms
constexpr int kNap = 32;                       // between them, ns
constexpr int kEights = TILE_N / 8;            // of 16 rows and 8 columns a thread has 4 sums
constexpr int kQuads = kBlocks * kEights;      // of a thread's sums, in fours

// The workspace: a flag for each block, 32 bytes apart, then parts of tiles, two for each block:
//   flags[256][8]  parts[block][of its first tile, of its last][kQuads][kReaders] float4
constexpr int kFlagStride = 8, kFlagBytes = 8192;

// Steps `first` to `last` over k of a tile.
struct Piece {
  int tile, first, last;
};

// The parts of a tile: those of blocks `first` to `last`, in the order of k.
struct Parts {
  int first, last;
  bool early;  // the first block goes on to other tiles afterwards

  __device__ __forceinline__ int count() const { return last - first + 1; }
};

// Who does what. Steps of shared tiles are counted from the first such tile.
struct Work {
  int tiles_m, tiles_n, steps;  // of a tile
  int whole, sharers;           // tiles that are not shared; blocks that have a share of the others
  int share, longer;            // steps of a share; the first so many have one more

  __device__ __forceinline__ Work(int m, int n, int k, int batch)
      : tiles_m((m - 1) / TILE_M + 1), tiles_n((n - 1) / TILE_N + 1), steps((k - 1) / TILE_K + 1) {
    const int tiles = tiles_m * tiles_n * batch, grid = gridDim.x;
    whole = SHARED == 0 ? 0 : max(0, tiles / grid - (SHARED - 1)) * grid;
    const int shared = (tiles - whole) * steps, least = (steps - 1) / kMostParts + 1;
    sharers = min(grid, shared / least);
    share = shared / max(sharers, 1);
    longer = shared - share * sharers;
  }
  __device__ __forceinline__ int start(int block) const {
    return share * block + min(block, longer);
  }
  __device__ __forceinline__ int block_of(int step) const {
    const int in_longer = longer * (share + 1);
    return step < in_longer ? step / (share + 1) : longer + (step - in_longer) / share;
  }
  __device__ __forceinline__ Parts parts(int tile) const {
    const int begin = (tile - whole) * steps, first = block_of(begin);
    return {first, block_of(begin + steps - 1), start(first) < begin};
  }
};

// A block's pieces, in the order in which all its threads take them.
struct Walk {
  int tile;        // the next whole one
  int begin, end;  // what is left of its share

  __device__ __forceinline__ explicit Walk(const Work& work) : tile(blockIdx.x), begin(0), end(0) {
    if (tile < work.sharers) begin = work.start(tile), end = work.start(tile + 1);
  }
  __device__ __forceinline__ bool next(const Work& work, Piece& piece) {
    if (tile < work.whole) {
      piece = {tile, 0, work.steps};
      tile += gridDim.x;
      return true;
    }
    if (begin == end) return false;
    const int shared = (end - 1) / work.steps, tile_begin = shared * work.steps;
    piece = {work.whole + shared, max(begin - tile_begin, 0), end - tile_begin};
    end = tile_begin + piece.first;
    return true;
  }
};

// Parts of one tile, as one of the threads that multiply sees them.
struct Meeting {
  Parts parts;
  u32* flag;
  float4* sums;  // this thread's in the workspace, kReaders apart: a warp's are 512 bytes in one
  int reader;

  __device__ __forceinline__ Meeting(unsigned char* workspace, Parts parts, int reader)
      : parts(parts), flag(reinterpret_cast<u32*>(workspace) + parts.first * kFlagStride),
        sums(reinterpret_cast<float4*>(workspace + kFlagBytes) + reader), reader(reader) {}

  __device__ __forceinline__ float4* part(int block) const {
    const long long slot = 2 * block + (block == parts.first && parts.early);
    return sums + slot * (kQuads * kReaders);
  }
  __device__ __forceinline__ void write(const Sums<float>& acc, int block) const {
    float4* to = part(block);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* d = acc[i / kEights] + i % kEights * 4;
      __stcg(to + i * kReaders, make_float4(d[0], d[1], d[2], d[3]));
    }
  }
  // Adds the parts of all blocks before the last, whose own `acc` has.
  __device__ __forceinline__ void add_others(Sums<float>& acc) const {
    for (int block = parts.first; block < parts.last; ++block) {
      const float4* from = part(block);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 d = __ldcg(from + i * kReaders);
        float* sum = acc[i / kEights] + i % kEights * 4;
        sum[0] += d.x, sum[1] += d.y, sum[2] += d.z, sum[3] += d.w;
      }
    }
  }
  // Adds up this thread's quads `begin` to `end` of all parts, in the order of k, and stores them.
  __device__ __forceinline__ void finish(int begin, int end, const Output& out) const {
    constexpr int kTogether = 8;  // loads under way
    for (int quad = begin; quad < end; ++quad) {
      float4 sum = {};
      for (int block = parts.first; block <= parts.last; block += kTogether) {
        float4 d[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (block + i <= parts.last) d[i] = __ldcg(part(block + i) + quad * kReaders);
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (block + i <= parts.last)
            sum.x += d[i].x, sum.y += d[i].y, sum.z += d[i].z, sum.w += d[i].w;
      }
      out.store(quad / kEights * 64, quad % kEights * 8, pack2(sum.x, sum.y), pack2(sum.z, sum.w),
                reader % 32);
    }
  }
};

// One thread's word for its block, whose part is in the workspace: which of the tile's shares of
// columns the block is to finish, one bit each. `own` is the bit of its own, 0 if it has none. The
// flag counts blocks that came in its low 8 bits; above are the shares of those that gave up.
__device__ __forceinline__ u32 claim(u32* flag, u32 count, u32 own) {
  u32 seen = flag_fetch_add(flag, 1);
  if ((seen & 255) == count - 1) return own | seen >> 8;  // the last to come
  if (!own) return 0;
  for (int look = 0; look < kPatience; ++look, __nanosleep(kNap))
    if ((flag_load(flag) & 255) == count) return own;
  seen = flag_fetch_or(flag, own << 8);
  return (seen & 255) == count ? own : 0;
}

// What a block does with its part of a tile. True where `acc` then has the sums of the whole tile.
__device__ __forceinline__ bool join(Sums<float>& acc, const Meeting& meeting, const Output& out,
                                     u32* claimed) {
  const Parts& parts = meeting.parts;
  const int block = blockIdx.x;
  const bool few = parts.count() <= kFewParts, one = meeting.reader == 0;
  if (few && block == parts.last) {
    while (one && flag_load(meeting.flag) != parts.count() - 1) __nanosleep(kNap);
    __syncwarp();
    named_barrier_sync(1, kReaders);
    meeting.add_others(acc);
    return true;
  }
  meeting.write(acc, block);
  named_barrier_sync(1, kReaders);
  if (few) {
    if (one) flag_add(meeting.flag, 1);
    return false;
  }
  const int first = parts.first + parts.early, shares = parts.last - first + 1;
  const u32 own = block < first ? 0 : 1u << (block - first);
  if (one) *claimed = claim(meeting.flag, parts.count(), own);
  __syncwarp();
  named_barrier_sync(1, kReaders);
  for (u32 left = *claimed; left; left &= left - 1) {
    const int share = __ffs(left) - 1;
    meeting.finish(kQuads * share / shares, kQuads * (share + 1) / shares, out);
  }
  return false;
}

extern "C" __global__ void __launch_bounds__(128)
clear(uint4* __restrict__ workspace) {
  launch_dependents();
  grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < kFlagBytes / 16; i += 128) workspace[i + threadIdx.x] = {};
}

extern "C" __global__ void __launch_bounds__(kReaders + 128, 1)
gemm(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
     const __grid_constant__ tensor_map map_c, elem* __restrict__ c, unsigned char* workspace,
     int m, int n, int k, int batch, int ldc, long long stride_c, int a_batched, int b_batched) {
  extern __shared__ unsigned char dynamic[];
  __shared__ u32 claimed;
  Ring ring = {(shared_address(dynamic) + 1023) / 1024 * 1024};
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);  // the same in a whole warp
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0) % 4, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    prefetch_tensor_map(map_c);
    ring.init();
  }
  __syncthreads();
  grid_dependency_wait();  // the flags are clear, and what is ahead of the launch that did it, done

  if (group == 0) {
    if (kReaders == 256) setmaxnreg_decrease<40>();
    if (warp == 0 && lane == 0) {
      const Work work(m, n, k, batch);
      Walk walk(work);
      Piece piece;
      while (walk.next(work, piece)) {
        const Tile tile = tile_at(piece.tile, work.tiles_m, work.tiles_n, 0);
        for (int step = piece.first; step < piece.last; ++step)
          load(ring, map_a, map_b, tile, step * TILE_K, 0, tile.batch * a_batched,
               tile.batch * b_batched);
      }
      launch_dependents();
    }
  } else {
    if (kReaders == 256) setmaxnreg_increase<232>();
    const int rows = (group - 1) * kRows;  // above this warpgroup's
    const u32 buffers = ring.base + kOffsetC + ((group - 1) * 4 + warp) * kStoreBytes;
    const Work work(m, n, k, batch);
    Walk walk(work);
    Piece piece;
    u32 turn = 0;
    Sums<float> acc;
    while (walk.next(work, piece)) {
      multiply_steps(acc, ring, piece.last - piece.first, rows, lane, [] {});
      const Tile tile = tile_at(piece.tile, work.tiles_m, work.tiles_n, 0);
      const Output out = {c + tile.batch * stride_c, tile.row + rows + warp * 16, tile.col, m, n,
                          ldc};
      if (piece.last - piece.first < work.steps) {
        const Meeting meeting(workspace, work.parts(piece.tile), threadIdx.x - 128);
        if (!join(acc, meeting, out, &claimed)) continue;
      }
      store_rows(acc, out, buffers, turn, map_c, tile.batch, lane);
    }
    // Shared memory must outlive the copies that read it.
    if (lane == 0) tma_store_wait_read<0>();
  }
}
