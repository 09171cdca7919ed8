"""Every access is checked for bounds, alignment, values and leave to write."""

import numpy as np
import pytest
from ptx import execute, fault, is_fault

from l2tune.runtime.emulator.findings import Fault

LANE = "mul.wide.u32 %d0, %r0, {stride}; add.s64 %d1, %a0, %d0;"
DIRECT = "add.s64 %d1, %a0, {offset};"
LOCAL = ".local .align 16 .b8 depot[{size}];"
SHARED = ".shared .align 16 .b8 tile[{size}];"


def constant(values, dtype=np.uint32):
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("dtype", "suffix", "registers"),
    [
        (np.uint16, "u16", "%h1"),
        (np.uint32, "u32", "%r1"),
        (np.uint64, "u64", "%d2"),
    ],
)
def test_lanes_load_and_store_units_of_every_width(dtype, suffix, registers):
    source, target = constant(np.arange(32) * 7 + 1, dtype), np.zeros(32, dtype)
    body = (
        LANE.format(stride=source.itemsize)
        + f"add.s64 %d3, %a1, %d0; ld.global.{suffix} {registers}, [%d1];"
        + f"st.global.{suffix} [%d3], {registers};"
    )
    execute(body, source, target)
    assert (source == target).all()


def test_a_vector_of_16_bytes_moves_as_a_whole():
    source, target = constant(np.arange(128) + 1), np.zeros(128, np.uint32)
    body = LANE.format(stride=16) + (
        "add.s64 %d3, %a1, %d0; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];"
        "st.global.v4.u32 [%d3], {%r1, %r2, %r3, %r4};"
    )
    execute(body, source, target)
    assert (source == target).all()


@pytest.mark.parametrize(("offset", "wrong"), [(4, True), (0, False), (-4, True)])
def test_the_last_element_is_the_last(offset, wrong):
    body = LANE.format(stride=4) + f"ld.global.u32 %r1, [%d1+{offset}];"
    source = constant(range(1, 33))
    if not wrong:
        execute(body, source)
        return
    found = fault(body, source)
    assert found.fault is Fault.OUT_OF_BOUNDS
    assert found.thread == (31 if offset > 0 else 0)


def test_lanes_may_read_from_several_buffers_at_once():
    low, high, target = constant([5] * 32), constant([9] * 32), np.zeros(32, np.uint32)
    body = (
        "setp.lt.u32 %p0, %r0, 16; selp.b64 %d1, %a0, %a1, %p0; ld.global.u32 %r1, [%d1];"
        "mul.wide.u32 %d0, %r0, 4; add.s64 %d2, %a2, %d0; st.global.u32 [%d2], %r1;"
    )
    execute(body, low, high, target)
    assert (target == [5] * 16 + [9] * 16).all()


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_an_access_must_be_aligned_to_its_own_size(offset):
    vector = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];"
    source = constant(range(1, 33))
    assert is_fault(Fault.MISALIGNED, DIRECT.format(offset=offset) + vector, source)
    execute(DIRECT.format(offset=16) + vector, source)


def test_an_input_is_not_written():
    body = DIRECT.format(offset=0) + "st.global.u32 [%d1], %r0;"
    assert is_fault(Fault.WRITE_TO_INPUT, body, constant([1]))


def test_an_output_is_read_only_where_it_was_written():
    store, load = "st.global.u32 [%a0], 7;", "ld.global.u32 %r1, [%a0{}];"
    execute(store + load.format(""), np.zeros(2, np.uint32))
    assert is_fault(Fault.UNINITIALISED, store + load.format("+4"), np.zeros(2, np.uint32))


def test_shared_memory_holds_nothing_at_first_and_ends_exactly():
    shared = SHARED.format(size=20)
    store, load = "st.shared.u32 [tile+{0}], 7;", "ld.shared.u32 %r1, [tile+{0}];"
    execute(store.format(16) + load.format(16), variables=shared)
    assert is_fault(Fault.UNINITIALISED, store.format(12) + load.format(16), variables=shared)
    assert is_fault(Fault.OUT_OF_BOUNDS, store.format(20), variables=shared)


def test_local_memory_is_each_threads_own():
    target = np.zeros(32, np.uint32)
    local = LOCAL.format(size=4)
    body = LANE.format(stride=4) + (
        "add.u32 %r1, %r0, 1; st.local.u32 [depot], %r1; ld.local.u32 %r2, [depot];"
        "st.global.u32 [%d1], %r2;"
    )
    execute(body, target, variables=local)
    assert (target == np.arange(32) + 1).all()
    assert is_fault(Fault.UNINITIALISED, "ld.local.u32 %r1, [depot];", variables=local)
    assert is_fault(Fault.OUT_OF_BOUNDS, "st.local.u32 [depot+4], %r0;", variables=local)


def test_constants_hold_their_first_values_and_are_not_written():
    target = np.zeros(1, np.uint32)
    const = ".const .align 4 .u32 table[2] = {3, 8};"
    execute("ld.const.u32 %r1, [table+4]; st.global.u32 [%a0], %r1;", target, variables=const)
    assert target[0] == 8
    assert is_fault(Fault.OUT_OF_BOUNDS, "ld.const.u32 %r1, [table+8];", variables=const)


def test_atomics_of_one_warp_take_turns():
    total = np.full(1, 100, np.uint32)
    execute("atom.global.add.u32 %r1, [%a0], %r0;", total)
    assert total[0] == 100 + sum(range(32))
