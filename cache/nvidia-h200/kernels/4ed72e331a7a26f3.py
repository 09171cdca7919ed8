# /// l2tune
# id            = "triton/matmul"
# summary       = "Tiles of any size, split over k into a float32 workspace or persistent."
# arch          = ["sm_80", "sm_90a"]
# dtype         = ["f16", "bf16"]
# acc           = "f32"
# layout        = ["nn", "nt", "tn", "tt"]
# requires      = [
#   "align >= 2 * VECTOR",
#   "m % (VECTOR if a_t else 1) == 0",
#   "n % VECTOR == 0",
#   "k % (VECTOR if b_t or not a_t else 1) == 0",
#   "k % (BLOCK_K if EVEN_K else 1) == 0",
#   "SPLIT <= max(1, cdiv(k, BLOCK_K))",
#   "max(m, k) <= 2147483136 and max(n, lda, ldb, ldc) <= 8388607",
#   "cdiv(m, BLOCK_M) * cdiv(n, BLOCK_N) * batch * SPLIT <= 2147483136",
# ]
# workspace     = "4 * SPLIT * batch * m * n if SPLIT > 1 else 0"
# deterministic = true
# origin        = { kind = "seed", source = "written for l2tune" }
# [tune]
# BLOCK_M    = [16, 32, 64, 128, 256]
# BLOCK_N    = [16, 32, 64, 128, 256]
# BLOCK_K    = [32, 64, 128]
# GROUP_M    = [1, 8]
# SPLIT      = [1, 2, 3, 4, 6, 8, 12, 16, 32]
# PERSISTENT = [0, 1, 2]
# VECTOR     = [1, 2, 8]
# EVEN_K     = [0, 1]
# NUM_WARPS  = [2, 4, 8]
# NUM_STAGES = [2, 3, 4, 6]
# where = [
#   "(BLOCK_M + BLOCK_N) * BLOCK_K * 2 * NUM_STAGES <= smem_limit",
#   "128 * NUM_WARPS <= BLOCK_M * BLOCK_N and BLOCK_M * BLOCK_N <= 4096 * NUM_WARPS",
#   "PERSISTENT == 0 or SPLIT == 1",
# ]
# [[launch]]
# kernel     = "matmul"
# grid       = [
#   """min(PERSISTENT * sms if PERSISTENT else 2147483136, \
#     cdiv(m, BLOCK_M) * cdiv(n, BLOCK_N) * batch * SPLIT)""",
#   1,
#   1,
# ]
# pdl        = "SPLIT > 1"
# num_warps  = "NUM_WARPS"
# num_stages = "NUM_STAGES"
# args       = [
#   "a", "b", "c", "workspace", "m", "n", "k", "batch", "lda", "ldb", "ldc",
#   "stride_a", "stride_b", "stride_c",
# ]
# [[launch]]
# kernel     = "reduce"
# grid       = [
#   "cdiv(m, 512 // min(BLOCK_N, 64)) * cdiv(n, min(BLOCK_N, 64)) * batch if SPLIT > 1 else 0",
#   1,
#   1,
# ]
# pdl        = true
# num_warps  = 4
# num_stages = 1
# args       = ["c", "workspace", "m", "n", "batch", "ldc", "stride_c"]
# ///
"""C = A @ B for every layout, size, batch and stride, with float32 sums.

    A [batch, m, k]   B [batch, k, n]   C [batch, m, n]   workspace [SPLIT, batch, m, n] float32

One program computes one BLOCK_M x BLOCK_N tile over one of SPLIT equal runs of k. With SPLIT > 1
the partial sums go to the workspace and `reduce` adds them, always in the same order. With
PERSISTENT > 0 that many programs per multiprocessor walk over all tiles.

VECTOR is what the problem promises: sizes along which elements lie next to each other, and leading
dimensions, are its multiples, and pointers are aligned to as many elements. With 8, loads are 16
bytes wide and asynchronous; with 1, any problem is served, two bytes at a time. EVEN_K promises
that no tile crosses the end of k, and saves the mask. Both reach the compiler because `requires`
says so: conditions of the forms `NAME % X == 0` and `align >= X` are compiled in.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(index, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile; GROUP_M rows of tiles share the columns of B in the L2."""
    per_group = GROUP_M * tiles_n
    first_m = index // per_group * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    inside = index % per_group
    return first_m + inside % rows, inside // rows


@triton.jit
def product(a, b, lda, ldb, left_m, left_n, k, first, last,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
            EVEN_K: tl.constexpr, L2_A_T: tl.constexpr, L2_B_T: tl.constexpr):
    """One tile over the k blocks [first, last): `a` at its first row, `b` at its first column."""
    rows, cols, ks = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    begin = first.to(tl.int64) * BLOCK_K
    if L2_A_T:
        a_at = a + begin * lda + rows[:, None] + ks[None, :] * lda
        a_step = lda.to(tl.int64) * BLOCK_K
    else:
        a_at = a + begin + rows[:, None] * lda + ks[None, :]
        a_step = BLOCK_K
    if L2_B_T:
        b_at = b + begin + ks[:, None] + cols[None, :] * ldb
        b_step = BLOCK_K
    else:
        b_at = b + begin * ldb + ks[:, None] * ldb + cols[None, :]
        b_step = ldb.to(tl.int64) * BLOCK_K
    a_inside, b_inside = (rows < left_m)[:, None], (cols < left_n)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in tl.range(first, last):
        if EVEN_K:
            a_tile = tl.load(a_at, mask=a_inside, other=0.0)
            b_tile = tl.load(b_at, mask=b_inside, other=0.0)
        else:
            k_inside = ks < k - block * BLOCK_K
            a_tile = tl.load(a_at, mask=a_inside & k_inside[None, :], other=0.0)
            b_tile = tl.load(b_at, mask=b_inside & k_inside[:, None], other=0.0)
        total = tl.dot(a_tile, b_tile, total)
        a_at += a_step
        b_at += b_step
    return total


@triton.jit
def one_tile(work, a, b, c, workspace, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             GROUP_M: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr,
             L2_A_T: tl.constexpr, L2_B_T: tl.constexpr):
    """Compute and store the tile number `work`: batches outermost, then splits, then tiles."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tile_of(work % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    item = work // (tiles_m * tiles_n)
    split, z = item % SPLIT, (item // SPLIT).to(tl.int64)
    row, col = (tile_m * BLOCK_M).to(tl.int64), (tile_n * BLOCK_N).to(tl.int64)
    blocks = tl.cdiv(k, BLOCK_K)
    per_split = tl.cdiv(blocks, SPLIT)
    first = split * per_split
    a += z * stride_a + row * (1 if L2_A_T else lda)
    b += z * stride_b + col * (ldb if L2_B_T else 1)
    left_m, left_n = m - tile_m * BLOCK_M, n - tile_n * BLOCK_N
    total = product(a, b, lda, ldb, left_m, left_n, k, first, tl.minimum(first + per_split, blocks),
                    BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, L2_A_T, L2_B_T)
    rows, cols = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    inside = (rows < left_m) & (cols < left_n)
    if SPLIT == 1:
        c += z * stride_c + row * ldc + col
        tl.store(c + rows * ldc + cols, total.to(c.dtype.element_ty), mask=inside)
    else:
        partial = workspace + ((split.to(tl.int64) * batch + z) * m + row) * n + col
        tl.store(partial + rows * n + cols, total, mask=inside)


@triton.jit
def matmul(a, b, c, workspace, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
           GROUP_M: tl.constexpr, SPLIT: tl.constexpr, PERSISTENT: tl.constexpr,
           EVEN_K: tl.constexpr, L2_A_T: tl.constexpr, L2_B_T: tl.constexpr, L2_PDL: tl.constexpr):
    # Wait first: a launch before this one may write a and b, or read c and the workspace. Only then
    # let the next launch start, so that at most two of a chain are on the GPU.
    if L2_PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if PERSISTENT:
        works = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N) * batch
        for work in tl.range(tl.program_id(0), works, tl.num_programs(0), flatten=True):
            one_tile(work, a, b, c, workspace, m, n, k, batch, lda, ldb, ldc, stride_a, stride_b,
                     stride_c, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT, EVEN_K, L2_A_T, L2_B_T)
    else:
        one_tile(tl.program_id(0), a, b, c, workspace, m, n, k, batch, lda, ldb, ldc, stride_a,
                 stride_b, stride_c, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT, EVEN_K, L2_A_T,
                 L2_B_T)


@triton.jit
def reduce(c, workspace, m, n, batch, ldc, stride_c,
           BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, L2_PDL: tl.constexpr):
    # 512 elements of C a program, four a thread: one 16-byte load a split, all of them in flight.
    COLS: tl.constexpr = min(BLOCK_N, 64)
    ROWS: tl.constexpr = 512 // COLS
    blocks_n = tl.cdiv(n, COLS)
    blocks = tl.cdiv(m, ROWS) * blocks_n
    block, z = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    tile_m, tile_n = block // blocks_n, block % blocks_n
    row, col = (tile_m * ROWS).to(tl.int64), (tile_n * COLS).to(tl.int64)
    rows, cols = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    inside = (rows < m - tile_m * ROWS) & (cols < n - tile_n * COLS)
    partial = workspace + (z * m + row) * n + col + rows * n + cols
    plane = batch.to(tl.int64) * m * n
    if L2_PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for split in tl.static_range(SPLIT):
        total += tl.load(partial + split * plane, mask=inside, other=0.0)
    c += z * stride_c + row * ldc + col
    tl.store(c + rows * ldc + cols, total.to(c.dtype.element_ty), mask=inside)
