"""`wgmma`: layouts as the PTX manual words them, what is asynchronous, and each misuse."""

import itertools

import numpy as np
import pytest
from emulation import fault, fill_shared, launch

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.ops.tensor_math import GENERATIONS, dot_accumulate

RNG = np.random.default_rng(3)
PLACE_B = 8192
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


def elements(shape, element="f16"):
    values = RNG.standard_normal(shape).astype(np.float32)
    if element == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def steps(extent, mn_major, swizzle):
    """Leading and stride byte offsets of a dense operand of 16 k."""
    if not swizzle:
        # K-major: 8x8 cores, the second along k after all rows. MN-major: k first, then m or n.
        return (extent * 16, 128) if not mn_major else (128, 256)
    if not mn_major:
        return 16, 8 * swizzle
    return 16 * swizzle, 8 * swizzle  # slabs of swizzle / 2 elements, 16 k deep


def place(matrix, mn_major, swizzle):
    """`[extent, 16]` as it must lie in shared memory, element by element."""
    extent = len(matrix)
    leading, stride = steps(extent, mn_major, swizzle)
    room = max(extent * 32, -(-extent // max(swizzle // 2, 1)) * 16 * swizzle, 2048)
    out = np.zeros(room * (4 if swizzle else 1), dtype=np.uint8)
    for r, k in itertools.product(range(extent), range(16)):
        if not swizzle and not mn_major:
            at = r // 8 * stride + k // 8 * leading + r % 8 * 16 + k % 8 * 2
        elif not swizzle:
            at = r // 8 * stride + k // 8 * leading + k % 8 * 16 + r % 8 * 2
        elif not mn_major:
            at = r // 8 * stride + r % 8 * swizzle + k * 2
        else:
            wide = swizzle // 2
            at = r // wide * leading + r % wide * 2 + k // 8 * stride + k % 8 * swizzle
        line, chunk = at // 128, at // 16 % 8
        chunk ^= line % (swizzle // 16) if swizzle else 0
        at = line * 128 + chunk * 16 + at % 16
        out[at : at + 2] = np.frombuffer(matrix[r, k].tobytes(), np.uint8)
    return out[: -(-out.nonzero()[0][-1] // 2048) * 2048]


def descriptor(start, extent, mn_major, swizzle):
    leading, stride = steps(extent, mn_major, swizzle)
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[swizzle] << 62


def accumulators(d, values):
    """Manual: row 16 * warp + lane / 4 + 8 * (i / 2), column 8 * j + 2 * (lane % 4) + i % 2."""
    n = d.shape[1]
    for thread, j, i in itertools.product(range(128), range(n // 8), range(4)):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2)
        d[row, 8 * j + 2 * (thread % 4) + i % 2] = values[thread, 4 * j + i]
    return d


def program(n, da, db, majors=(0, 0), *, element="f16", accumulator="f32", scale=1, signs=(1, 1),
            before="", after="", fence="fence.proxy.async;", left=None,
            wait="wgmma.wait_group.sync.aligned 0;",
            wgmma_fence="wgmma.fence.sync.aligned;", size_b=None):  # fmt: skip
    count = n // (2 if accumulator == "f32" else 4)
    regs = [f"%r{10 + i}" for i in range(count)]
    body = [before, fence, "bar.sync 0;", f"mul.wide.u32 %rd20, %r0, {4 * count};",
            "add.s64 %rd21, %rd20, %rd2; add.s64 %rd22, %rd20, %rd3;"]  # fmt: skip
    body += [f"ld.global.b32 {r}, [%rd21+{4 * i}];" for i, r in enumerate(regs)]
    tail = ", ".join(map(str, majors if left is None else majors[1:]))
    first = "%rd23" if left is None else left
    body += [
        f"mov.u64 %rd23, {da}; mov.u64 %rd24, {db}; setp.ne.u32 %p3, {scale}, 0;",
        wgmma_fence,
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.{accumulator}.{element}.{element} "
        f"{{{', '.join(regs)}}}, {first}, %rd24, %p3, {signs[0]}, {signs[1]}, {tail};",
        "wgmma.commit_group.sync.aligned;",
        wait,
    ]  # fmt: skip
    body += [f"st.global.b32 [%rd22+{4 * i}], {r};" for i, r in enumerate(regs)]
    return "\n".join([*body, after])


def fills(a, b):
    return (
        fill_shared(a.size, threads=128)
        + "\n"
        + fill_shared(b.size, threads=128, source=1, start=PLACE_B)
    )


def multiply(a, b, c, majors=(0, 0), swizzles=(128, 128), **options):
    """Run one instruction on A `[64, 16]`, B `[n, 16]` and accumulators by thread."""
    n = len(b)
    left, right = place(a, majors[0], swizzles[0]), place(b, majors[1], swizzles[1])
    da = descriptor(0, 64, majors[0], swizzles[0])
    db = descriptor(PLACE_B, n, majors[1], swizzles[1])
    out = np.zeros_like(c)
    text = program(n, da, db, majors, before=fills(left, right), **options)
    launch(text, (left, "input"), (right, "input"), (c, "input"), (out, "output"), threads=128,
           shared_bytes=65536)  # fmt: skip
    return out


@pytest.mark.parametrize("majors", list(itertools.product([0, 1], repeat=2)))
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("n", [8, 64])
def test_operands_are_read_as_the_manual_lays_them_out(n, majors, swizzle):
    a, b = elements((64, 16)), elements((n, 16))
    c = RNG.standard_normal((128, n // 2)).astype(np.float32)
    found = multiply(a, b, c, majors, (swizzle, swizzle))
    start = accumulators(np.zeros((64, n), np.float32), c).view(np.uint32)
    expected = dot_accumulate(a, b.T, start, element="f16", accumulator="f32",
                              core=GENERATIONS["sm_90a"])  # fmt: skip
    result = accumulators(np.zeros((64, n), np.float32), found)
    np.testing.assert_array_equal(result.view(np.uint32), expected)


@pytest.mark.parametrize("n", [24, 128, 256])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_every_width_and_both_elements(n, element):
    a, b, c = (
        elements((64, 16), element),
        elements((n, 16), element),
        np.zeros((128, n // 2), np.float32),
    )
    found = multiply(a, b, c, element=element)
    result = accumulators(np.zeros((64, n), np.float32), found)
    expected = dot_accumulate(a, b.T, np.zeros((64, n), np.uint32), element=element,
                              accumulator="f32", core=GENERATIONS["sm_90a"])  # fmt: skip
    np.testing.assert_array_equal(result.view(np.uint32), expected)


@pytest.mark.parametrize(
    ("scale", "signs"), [(0, (1, 1)), (1, (-1, 1)), (1, (1, -1)), (0, (-1, -1))]
)
def test_scale_d_and_the_signs(scale, signs):
    a, b = elements((64, 16)), elements((8, 16))
    c = RNG.standard_normal((128, 4)).astype(np.float32)
    found = accumulators(np.zeros((64, 8)), multiply(a, b, c, scale=scale, signs=signs))
    product = (
        signs[0] * signs[1] * a.view(np.float16).astype(float) @ b.view(np.float16).astype(float).T
    )
    expected = product + scale * accumulators(np.zeros((64, 8)), c)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_half_accumulator_packs_two_columns():
    a, b, c = elements((64, 16)), elements((16, 16)), np.zeros((128, 4), np.uint32)
    found = multiply(a, b, c, accumulator="f16").view(np.float16).reshape(128, 8)
    expected = a.view(np.float16).astype(float) @ b.view(np.float16).astype(float).T
    result = np.zeros((64, 16))
    for thread, j, i in itertools.product(range(128), range(2), range(4)):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2)
        result[row, 8 * j + 2 * (thread % 4) + i % 2] = found[thread, 4 * j + i]
    np.testing.assert_allclose(result, expected, atol=0.02)


def test_a_may_come_from_registers():
    a, b, c = elements((64, 16)), elements((8, 16)), np.zeros((128, 4), np.float32)
    packed = np.zeros((128, 8), np.uint16)
    for thread, i in itertools.product(range(128), range(4)):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i % 2)
        column = thread % 4 * 2 + 8 * (i // 2)
        packed[thread, 2 * i : 2 * i + 2] = a[row, column : column + 2]
    right, out = place(b, 0, 128), np.zeros_like(c)
    before = (
        fill_shared(right.size, threads=128, source=1, start=PLACE_B)
        + """
      mul.wide.u32 %rd20, %r0, 16; add.s64 %rd20, %rd20, %rd0;
      ld.global.v4.b32 {%r200, %r201, %r202, %r203}, [%rd20];"""
    )
    text = program(8, 0, descriptor(PLACE_B, 8, 0, 128), before=before,
                   left="{%r200, %r201, %r202, %r203}")  # fmt: skip
    launch(text, (packed, "input"), (right, "input"), (c, "input"), (out, "output"), threads=128,
           shared_bytes=65536)  # fmt: skip
    expected = a.view(np.float16).astype(float) @ b.view(np.float16).astype(float).T
    np.testing.assert_allclose(accumulators(np.zeros((64, 8)), out), expected, atol=1e-5)


def misuse(**options):
    """What is wrong with a program on small operands, given as `program` takes it."""
    a, b = elements((64, 16)), elements((8, 16))
    left, right = place(a, 0, 128), place(b, 0, 128)
    c, out = np.zeros((128, 4), np.float32), np.zeros((128, 4), np.float32)
    da = options.pop("da", descriptor(0, 64, 0, 128))
    db = options.pop("db", descriptor(PLACE_B, 8, 0, 128))
    text = program(8, da, db, before=fills(left, right), **options)
    return fault(text, (left, "input"), (right, "input"), (c, "input"), (out, "output"),
                 threads=128, shared_bytes=16384)  # fmt: skip


def test_results_are_not_there_before_the_wait():
    assert misuse(wait="", after="wgmma.wait_group.sync.aligned 0;") is Fault.ACCUMULATOR_IN_FLIGHT
    assert misuse(wait="wgmma.wait_group.sync.aligned 1;") is Fault.ACCUMULATOR_IN_FLIGHT


def test_ordinary_writes_need_the_proxy_fence():
    assert misuse(fence="") is Fault.MISSING_PROXY_FENCE


def test_the_first_wgmma_needs_a_wgmma_fence():
    assert misuse(wgmma_fence="") is Fault.INVALID_USE


def test_a_slot_that_is_refilled_before_the_wait_is_found():
    early = "st.shared.b32 [%r290+0], 0; wgmma.wait_group.sync.aligned 0;"
    assert misuse(wait=early) is Fault.SHARED_RACE


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (descriptor(1024 * 15, 64, 0, 128), Fault.OUT_OF_BOUNDS),
        (descriptor(128, 64, 0, 128), Fault.MISALIGNED),
        (descriptor(0, 64, 0, 128) | 3 << 49, Fault.MISALIGNED),
    ],
)
def test_a_descriptor_that_points_elsewhere_is_found(bits, expected):
    assert misuse(da=bits) is expected


def test_a_wgmma_that_nobody_waits_for_is_found_at_the_end():
    text = "exit;"
    assert misuse(wait=text) is Fault.UNFINISHED_ASYNC


def test_three_warps_are_no_warpgroup():
    left, c = np.zeros(8192, np.uint8), np.zeros((128, 4), np.float32)
    found = fault(
        program(8, descriptor(0, 64, 0, 128), descriptor(0, 8, 0, 128),
                before=fill_shared(9216, threads=96)),
        (np.zeros(9216, np.uint8), "input"), (left, "input"), (c, "input"), (c.copy(), "output"),
        threads=96, shared_bytes=16384,
    )  # fmt: skip
    assert found is Fault.INVALID_USE


def test_warps_with_different_descriptors_are_found():
    change = "setp.lt.u32 %p4, %r0, 32; @%p4 mov.u64 %rd24, 0; wgmma.fence.sync.aligned;"
    assert misuse(wgmma_fence=change) is Fault.BARRIER_DIVERGENCE
