"""`mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix` against the layouts that the PTX manual words."""

import numpy as np
import pytest
from emulation import fault, fill_shared, launch, store_words

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.ops.mma import tensor_core
from l2tune.runtime.emulator.ops.tensor_math import EXACT, GENERATIONS, dot_accumulate

RNG = np.random.default_rng(11)


def fragments_a(a, k):
    """Manual: a_i has row groupID (+8 for a1 a3), column 2 * lane%4 (+8 for a2 a3)."""
    lanes = []
    for lane in range(32):
        group, inside = lane // 4, lane % 4
        for register in range(k // 4):
            row = group + (8 if register % 2 else 0)
            column = inside * 2 + (8 if register >= 2 else 0)
            lanes += [a[row, column], a[row, column + 1]]
    return np.array(lanes, dtype=a.dtype)


def fragments_b(b, k):
    """b_i has row 2 * lane%4 (+8 for the second register), column groupID."""
    lanes = []
    for lane in range(32):
        group, inside = lane // 4, lane % 4
        for register in range(k // 8):
            row = inside * 2 + 8 * register
            lanes += [b[row, group], b[row + 1, group]]
    return np.array(lanes, dtype=b.dtype)


def matrix_c(values, per_lane=4):
    """c0 c1 at row groupID, c2 c3 eight below, columns 2 * lane%4 and the next."""
    out = np.zeros((16, 8), dtype=values.dtype)
    for lane in range(32):
        for i in range(per_lane):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = values[lane * per_lane + i]
    return out


def elements(shape, element):
    values = RNG.standard_normal(shape).astype(np.float32)
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def load_fragments(names, source, count):
    lines = [f"mul.wide.u32 %rd20, %r0, {4 * count};", f"add.s64 %rd20, %rd20, %rd{source};"]
    return "\n".join(lines + [f"ld.global.b32 {n}, [%rd20+{4 * i}];" for i, n in enumerate(names)])


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize(
    ("element", "accumulator"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")]
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_mma_multiplies_the_fragments_of_the_manual(k, element, accumulator, target):
    a, b = elements((16, k), element), elements((k, 8), element)
    words = 4 if accumulator == "f32" else 2
    start = RNG.standard_normal(128).astype(np.float32 if words == 4 else np.float16)
    out = np.zeros(32 * words, dtype=np.uint32)
    d = [f"%r{30 + i}" for i in range(words)]
    ra, rb = [f"%r{10 + i}" for i in range(k // 4)], [f"%r{20 + i}" for i in range(k // 8)]
    body = "\n".join([
        load_fragments(ra, 0, len(ra)), load_fragments(rb, 1, len(rb)), load_fragments(d, 2, words),
        f"mma.sync.aligned.m16n8k{k}.row.col.{accumulator}.{element}.{element}.{accumulator} "
        f"{{{', '.join(d)}}}, {{{', '.join(ra)}}}, {{{', '.join(rb)}}}, {{{', '.join(d)}}};",
        store_words(d, target=3),
    ])  # fmt: skip
    launch(body, (fragments_a(a, k), "input"), (fragments_b(b, k), "input"), (start, "input"),
           (out, "output"), target=target)  # fmt: skip
    kind = np.uint32 if words == 4 else np.uint16
    expected = dot_accumulate(a, b, matrix_c(start).view(kind), element=element,
                              accumulator=accumulator, core=GENERATIONS[target])  # fmt: skip
    np.testing.assert_array_equal(matrix_c(out.view(kind)), expected)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_each_lane_two_neighbours_of_each_matrix(count, transposed):
    tile = np.arange(64 * 4, dtype=np.uint16).reshape(32, 8)
    out = np.zeros(32 * count, dtype=np.uint32)
    names = [f"%r{10 + i}" for i in range(count)]
    trans = ".trans" if transposed else ""
    body = fill_shared(512, threads=32) + f"""
      bar.sync 0;
      shl.b32 %r5, %r0, 4;
      ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{", ".join(names)}}}, [%r5];
    """ + store_words(names)  # fmt: skip
    launch(body, (tile, "input"), (out, "output"))
    found = out.view(np.uint16).reshape(32, count, 2)
    for matrix in range(count):
        rows = tile[8 * matrix : 8 * matrix + 8]
        rows = rows.T if transposed else rows
        for lane in range(32):
            pair = rows[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert list(found[lane, matrix]) == list(pair), (matrix, lane)


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_undoes_ldmatrix(transposed):
    tile, out = RNG.integers(0, 65536, (32, 8)).astype(np.uint16), np.zeros((32, 8), np.uint16)
    trans = ".trans" if transposed else ""
    body = fill_shared(512, threads=32) + f"""
      bar.sync 0;
      shl.b32 %r5, %r0, 4;
      ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r5];
      stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r5+512], {{%r10, %r11, %r12, %r13}};
      bar.sync 0;
      ld.shared.v4.u32 {{%r14, %r15, %r16, %r17}}, [%r5+512];
    """ + store_words(["%r14", "%r15", "%r16", "%r17"])  # fmt: skip
    launch(body, (tile, "input"), (out, "output"))
    np.testing.assert_array_equal(out, tile)


def test_movmatrix_transposes_what_the_lanes_hold():
    matrix, out = RNG.integers(0, 65536, (8, 8)).astype(np.uint16), np.zeros((8, 8), np.uint16)
    body = """
      shl.b32 %r5, %r0, 2;
      cvt.u64.u32 %rd8, %r5;
      add.u64 %rd8, %rd0, %rd8;
      ld.global.u32 %r10, [%rd8];
      movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10;
    """ + store_words(["%r11"])
    launch(body, (matrix, "input"), (out, "output"))
    np.testing.assert_array_equal(out, matrix.T)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shl.b32 %r5, %r0, 3;", Fault.MISALIGNED),
        ("shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, 4096;", Fault.OUT_OF_BOUNDS),
        ("shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, 512;", Fault.UNINITIALISED),
    ],
)
def test_ldmatrix_of_rows_that_are_not_there_is_found(text, expected):
    tile = np.zeros((32, 8), np.uint16)
    body = (
        fill_shared(512, threads=32)
        + text
        + """
      ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r5];"""
    )
    assert fault(body, (tile, "input")) is expected


def test_ldmatrix_by_a_part_of_the_warp_is_found():
    body = (
        fill_shared(512, threads=32)
        + """
      setp.lt.u32 %p1, %r0, 16;
      shl.b32 %r5, %r0, 4;
      @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r5];"""
    )
    assert fault(body, (np.zeros((32, 8), np.uint16), "input")) is Fault.BARRIER_DIVERGENCE


def test_ldmatrix_of_rows_that_another_warp_wrote_needs_a_barrier():
    body = (
        fill_shared(1024, threads=64).replace("%", "%%")
        + """
      %s
      shl.b32 %%r5, %%r0, 4;
      xor.b32 %%r5, %%r5, 512;
      ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%%r10, %%r11, %%r12, %%r13}, [%%r5];"""
    )
    tile = np.zeros((64, 8), np.uint16)
    assert fault(body % "", (tile, "input"), threads=64) in (Fault.SHARED_RACE, Fault.UNINITIALISED)
    launch(body % "bar.sync 0;", (tile, "input"), threads=64)


def test_the_exact_arithmetic_can_be_chosen_for_a_machine():
    machine = launch("")
    warp = type("W", (), {"block": type("B", (), {"machine": machine})})
    assert tensor_core(warp) is GENERATIONS["sm_90a"]  # type: ignore[arg-type]
    machine.tensor_core = EXACT  # type: ignore[attr-defined]
    assert tensor_core(warp) is EXACT  # type: ignore[arg-type]


def test_bank_conflicts_of_ldmatrix_are_counted():
    body = (
        fill_shared(2048, threads=32)
        + """
      shl.b32 %r5, %r0, {shift};
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r10}}, [%r5];"""
    )
    for shift, passes in [(4, 1), (7, 8)]:
        machine = launch(
            body.replace("{shift}", str(shift)).replace("{{", "{").replace("}}", "}"),
            (np.zeros((128, 8), np.uint16), "input"), shared_bytes=4096,
        )  # fmt: skip
        counts = [c for c in machine.statistics.accesses.values() if "ldmatrix" in c.text]
        assert [c.taken for c in counts] == [passes]
