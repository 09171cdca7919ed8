"""Bulk and tensor copies: layouts as the PTX manual words them, edges, multicast, and misuse."""

import itertools

import numpy as np
import pytest
from emulation import Box, fault, fill_shared, launch
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.ops.tensor_map import EmulatedMap
from l2tune.spec.geometry import MapGeometry

BARRIER = 16384
SETUP = f"""
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [{BARRIER}], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
WAIT = f"""
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [{BARRIER}], 0;
  @!%p2 bra wait;
"""
INTO = "shared::cluster.global.tile.mbarrier::complete_tx::bytes"
LOAD = f"""
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [16384], {{size}};
  @%p1 cp.async.bulk.tensor.{{rank}}d.{INTO} [{{to}}], [%rd10, {{{{{{at}}}}}}], [16384];
"""
STORE = """
  @%p1 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%rd10, {{{at}}}], [{start}];
  @%p1 cp.async.bulk.commit_group;
  @%p1 cp.async.bulk.wait_group 0;
"""
SHARED = 16384 + 64


def dump_shared(size_bytes, target):
    """PTX that copies shared memory out, 16 bytes a lane."""
    lines = [
        "shl.b32 %r290, %r0, 4;",
        "cvt.u64.u32 %rd30, %r290;",
        f"add.s64 %rd30, %rd30, %rd{target};",
    ]
    for place in range(0, size_bytes, 512):
        lines += [f"ld.shared.v4.u32 {{%r291, %r292, %r293, %r294}}, [%r290+{place}];",
                  f"st.global.v4.u32 [%rd30+{place}], {{%r291, %r292, %r293, %r294}};"]  # fmt: skip
    return "\n".join(lines)


def numbered(*shape):
    return (np.arange(int(np.prod(shape))) + 1).astype(np.uint16).reshape(shape)


def read_box(tensor, box, at):
    """The box's elements, zeros outside; dimensions innermost first in `box` and `at`."""
    out = np.zeros(tuple(reversed(box)), dtype=tensor.dtype)
    for place in itertools.product(*[range(n) for n in reversed(box)]):
        where = tuple(a + p for a, p in zip(reversed(at), place, strict=True))
        if all(0 <= w < n for w, n in zip(where, tensor.shape, strict=True)):
            out[place] = tensor[where]
    return out


def swizzle_by_hand(rows, swizzle):
    """Manual: chunk c of 128-byte line l is stored at chunk c ^ (l mod 8), 2 bits or 1 for less."""
    data = rows.reshape(-1).view(np.uint8)
    lines = data.reshape(-1, 8, 16)
    out = np.zeros_like(lines)
    for line, chunk in itertools.product(range(len(lines)), range(8)):
        bits = {0: 0, 32: line % 2, 64: line % 4, 128: line % 8}[swizzle]
        out[line, chunk ^ bits] = lines[line, chunk]
    return out.reshape(-1)


def map_of(tensor, box, swizzle=0, buffer=0):
    sizes, strides = tensor.shape[::-1], tuple(int(s) for s in tensor.strides[::-1][1:])
    return Box(buffer, sizes, strides, box, swizzle)


def load(tensor, box, at, swizzle=0):
    size = int(np.prod(box)) * 2
    out = np.zeros(-(-size // 512) * 512, dtype=np.uint8)
    zero = "\n".join(
        f"st.shared.v4.u32 [%r289+{p}], {{0, 0, 0, 0}};" for p in range(0, out.size, 512)
    )
    body = f"shl.b32 %r289, %r0, 4; {zero} fence.proxy.async.shared::cta;" + SETUP
    body += LOAD.format(size=size, rank=len(box), to=0, at=", ".join(map(str, at)))
    body += WAIT + dump_shared(out.size, 1)
    launch(body, (tensor, "input"), (out, "output"), maps=(map_of(tensor, box, swizzle),),
           shared_bytes=SHARED)  # fmt: skip
    return out[:size]


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_load_is_swizzled_as_the_manual_says(swizzle):
    tensor = numbered(24, 64)
    box = ((swizzle or 64) // 2, 16)
    expected = swizzle_by_hand(read_box(tensor, box, (8, 3)), swizzle)
    np.testing.assert_array_equal(load(tensor, box, (8, 3), swizzle), expected)


@settings(max_examples=12, deadline=None)
@given(st.integers(-40, 70), st.integers(-20, 30))
def test_what_lies_outside_is_zero(x, y):
    tensor = numbered(24, 64)
    found = load(tensor, (32, 8), (x, y))
    np.testing.assert_array_equal(
        found.view(np.uint16).reshape(8, 32), read_box(tensor, (32, 8), (x, y))
    )


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((40,), (16,), (30,)),
        ((3, 6, 16), (8, 4, 2), (8, 4, 2)),
        ((2, 3, 4, 8), (8, 2, 2, 2), (0, 1, 2, 1)),
        ((2, 2, 3, 4, 8), (8, 2, 2, 1, 2), (0, -1, 2, 1, 0)),
    ],
)
def test_boxes_of_one_to_five_dimensions(shape, box, at):
    tensor = numbered(*shape)
    found = load(tensor, box, at)
    np.testing.assert_array_equal(found.view(np.uint16), read_box(tensor, box, at).reshape(-1))


def store(tensor, source, box, at, swizzle=0, fence="fence.proxy.async.shared::cta;"):
    body = fill_shared(source.nbytes, threads=32, source=1) + f"""
      {fence}
      bar.sync 0;
      setp.eq.u32 %p1, %r0, 0;
    """ + STORE.format(rank=len(box), at=", ".join(map(str, at)), start=0)  # fmt: skip
    launch(body, (tensor, "output"), (source, "input"), maps=(map_of(tensor, box, swizzle),),
           shared_bytes=SHARED)  # fmt: skip


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("at", [(0, 0), (40, 20), (-8, -3)])
def test_a_store_undoes_a_load_and_drops_what_lies_outside(swizzle, at):
    box = ((swizzle or 64) // 2, 16)
    tensor = np.zeros((24, 64), dtype=np.uint16)
    rows = numbered(16, box[0])
    store(tensor, swizzle_by_hand(rows, swizzle).view(np.uint16), box, at, swizzle)
    expected = np.zeros_like(tensor)
    for y, x in itertools.product(range(16), range(box[0])):
        if 0 <= at[1] + y < 24 and 0 <= at[0] + x < 64:
            expected[at[1] + y, at[0] + x] = rows[y, x]
    np.testing.assert_array_equal(tensor, expected)


def test_a_store_whose_rows_end_off_16_bytes_writes_past_them():
    tensor, rows = np.zeros((4, 24), dtype=np.uint16), numbered(16, 32)
    body = (
        fill_shared(1024, threads=32, source=1)
        + """
      fence.proxy.async; bar.sync 0; setp.eq.u32 %p1, %r0, 0;
    """
        + STORE.format(rank=2, at="0, 0", start=0)
    )
    narrow = Box(0, (20, 4), (48,), (32, 16))
    launch(body, (tensor, "output"), (rows, "input"), maps=(narrow,), shared_bytes=SHARED)
    assert tensor[0].tolist() == [*range(1, 25)]  # 20 elements, and 4 more up to 48 bytes
    exact = np.zeros(3 * 24 + 20, dtype=np.uint16)
    found = fault(body, (exact, "output"), (rows, "input"), maps=(narrow,), shared_bytes=SHARED)
    assert found is Fault.OUT_OF_BOUNDS


def test_a_store_of_ordinary_writes_needs_the_proxy_fence():
    tensor = np.zeros((24, 64), dtype=np.uint16)
    body = fill_shared(1024, threads=32, source=1) + "bar.sync 0; setp.eq.u32 %p1, %r0, 0;"
    body += STORE.format(rank=2, at="0, 0", start=0)
    found = fault(body, (tensor, "output"), (numbered(16, 32), "input"), shared_bytes=SHARED,
                  maps=(map_of(tensor, (32, 16)),))  # fmt: skip
    assert found is Fault.MISSING_PROXY_FENCE


def test_shared_memory_may_be_refilled_only_after_the_store_has_read_it():
    tensor = np.zeros((24, 64), dtype=np.uint16)
    body = (
        fill_shared(1024, threads=32, source=1)
        + """
      fence.proxy.async; bar.sync 0; setp.eq.u32 %p1, %r0, 0;
      @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd10, {0, 0}], [0];
      @%p1 cp.async.bulk.commit_group;
      {wait}
      bar.warp.sync -1;
      st.shared.b32 [%r290], 0;
      {end}
    """
    )
    options = {"maps": (map_of(tensor, (32, 16)),), "shared_bytes": SHARED}
    buffers = (tensor, "output"), (numbered(16, 32), "input")
    read, done = "@%p1 cp.async.bulk.wait_group.read 0;", "@%p1 cp.async.bulk.wait_group 0;"
    launch(body.replace("{wait}", read).replace("{end}", ""), *buffers, **options)
    np.testing.assert_array_equal(tensor[:16, :32], numbered(16, 32))
    found = fault(body.replace("{wait}", "").replace("{end}", done), *buffers, **options)
    assert found is Fault.SHARED_RACE
    left = body.replace("st.shared.b32 [%r290], 0;", "").replace("{wait}", "").replace("{end}", "")
    assert fault(left, *buffers, **options) is Fault.UNFINISHED_ASYNC


def test_a_store_that_ended_before_its_wait_is_known_to_the_waiter():
    tensor, rows = np.zeros((24, 64), dtype=np.uint16), numbered(16, 32)
    body = fill_shared(1024, threads=32, source=1) + "fence.proxy.async;" + SETUP
    body += """
      @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd10, {0, 0}], [0];
      @%p1 cp.async.bulk.commit_group;
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [16384], 1024;
      @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [4096], [%rd1], 1024, \
[16384];
    """
    body += (
        WAIT
        + """
      @%p1 cp.async.bulk.wait_group.read 0;
      bar.warp.sync -1;
      st.shared.b32 [%r290], 0;
    """
    )
    launch(body, (tensor, "output"), (rows, "input"), maps=(map_of(tensor, (32, 16)),),
           shared_bytes=SHARED)  # fmt: skip
    np.testing.assert_array_equal(tensor[:16, :32], rows)


def test_a_multicast_load_fills_every_block_named_and_tells_its_mbarrier():
    tensor, out = numbered(16, 64), np.zeros(2 * 1024, dtype=np.uint8)
    body = (
        SETUP
        + """
      barrier.cluster.arrive; barrier.cluster.wait;
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [16384], 1024;
      shl.b32 %r5, %r1, 9;
      shl.b32 %r6, %r1, 3;
      mov.u16 %rs1, 3;
      @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes\
.multicast::cluster [%r5], [%rd10, {0, %r6}], [16384], %rs1;
    """
        + WAIT
        + """
      barrier.cluster.arrive; barrier.cluster.wait;
      shl.b32 %r7, %r1, 10;
      cvt.u64.u32 %rd20, %r7;
      add.s64 %rd1, %rd1, %rd20;
    """
        + dump_shared(1024, 1)
    )
    launch(body, (tensor, "input"), (out, "output"), maps=(map_of(tensor, (32, 8)),), cluster=2,
           shared_bytes=SHARED)  # fmt: skip
    np.testing.assert_array_equal(out.view(np.uint16).reshape(2, 16, 32), [tensor[:, :32]] * 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOAD.format(size=1024, rank=2, to=64, at="0, 0"), Fault.MISALIGNED),
        (LOAD.format(size=1024, rank=2, to=15872, at="0, 0"), Fault.OUT_OF_BOUNDS),
        (LOAD.format(size=1008, rank=2, to=0, at="0, 0") + WAIT, Fault.INVALID_USE),
        (LOAD.format(size=1040, rank=2, to=0, at="0, 0") + WAIT, Fault.DEADLOCK),
        (LOAD.format(size=1024, rank=2, to=0, at="0, 0"), Fault.UNFINISHED_ASYNC),
        (LOAD.format(size=1024, rank=3, to=0, at="0, 0, 0"), Fault.INVALID_USE),
        (LOAD.format(size=1024, rank=2, to=0, at="0, 0") + "ld.shared.b32 %r9, [0];",
         Fault.SHARED_RACE),
        (LOAD.format(size=1024, rank=2, to=0, at="0, 0") + WAIT + "ld.shared.b32 %r9, [0];", None),
        (LOAD.format(size=1024, rank=2, to=0, at="0, 0").replace("[16384];", "[8192];"),
         Fault.INVALID_USE),
    ],
)  # fmt: skip
def test_misuse_of_a_load_is_found(text, expected):
    tensor = numbered(24, 64)
    # The out-of-bounds case would reach past the mbarrier too; keep it out of the way.
    options = {"maps": (map_of(tensor, (32, 16)),), "shared_bytes": 16392}
    if expected is None:
        launch(SETUP + text, (tensor, "input"), **options)
    else:
        text = text + WAIT if expected in (Fault.OUT_OF_BOUNDS,) else text
        assert fault(SETUP + text, (tensor, "input"), **options) is expected


def test_an_mbarrier_must_be_fenced_before_copies_use_it():
    tensor = numbered(24, 64)
    text = SETUP.replace("fence.mbarrier_init.release.cluster;", "{fence}")
    text += LOAD.format(size=1024, rank=2, to=0, at="0, 0") + WAIT
    options = {"maps": (map_of(tensor, (32, 16)),), "shared_bytes": SHARED}
    launch(text.replace("{fence}", "fence.proxy.async.shared::cta;"), (tensor, "input"), **options)
    found = fault(text.replace("{fence}", "membar.cta;"), (tensor, "input"), **options)
    assert found is Fault.MISSING_PROXY_FENCE


def test_contiguous_copies_there_and_back():
    source, out = numbered(512), np.zeros(512, dtype=np.uint16)
    body = (
        SETUP
        + """
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [16384], 1024;
      @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [512], [%rd0], 1024, \
[16384];
    """
        + WAIT
        + """
      @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [512], 1024;
      @%p1 cp.async.bulk.commit_group;
      @%p1 cp.async.bulk.wait_group 0;
    """
    )
    launch(body, (source, "input"), (out, "output"), shared_bytes=SHARED)
    np.testing.assert_array_equal(out, source)
    odd = body.replace("[512], 1024;", "[512], 1016;")
    assert fault(odd, (source, "input"), (out, "output"), shared_bytes=SHARED) is Fault.MISALIGNED


def test_a_map_of_the_contract_is_taken_over():
    described = MapGeometry("a", "a", (40, 7, 2), (80, 560), (32, 4, 1), 64, 256)
    found = EmulatedMap.of(described, 0x7000_0000_0000)
    assert (found.row_bytes, found.box_bytes, found.swizzle) == (64, 256, 64)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"address": 8}, "address"), ({"strides_bytes": (72,)}, "strides"),
        ({"box": (300, 4)}, "box"), ({"box": (4, 4)}, "rows of 8 bytes"),
        ({"swizzle": 128}, "swizzle 128"), ({"sizes": (0, 4)}, "sizes"),
    ],
)  # fmt: skip
def test_what_the_driver_would_not_encode_is_refused(change, word):
    good = {"address": 0, "sizes": (40, 7), "strides_bytes": (80,), "box": (32, 4), "swizzle": 64}
    EmulatedMap(**good)
    with pytest.raises(ValueError, match=word):
        EmulatedMap(**{**good, **change})
