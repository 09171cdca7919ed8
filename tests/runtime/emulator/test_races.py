"""What is not ordered is a race, and what is barely ordered is none."""

import numpy as np
import pytest
from ptx import execute, fault

from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.races import Accessor, Clocks, Shadow

TILE = """
.shared .align 128 .b8 tile[256];
.shared .align 8 .b64 bar;
"""
TWO_WARPS = {"block": (64, 1, 1), "variables": TILE}
FIRST = "setp.eq.u32 %p0, %r0, 0;"
SECOND_WARP = "setp.ge.u32 %p2, %r0, 32;"
OWN = "mov.u32 %r2, tile; mad.lo.u32 %r2, %r0, 4, %r2;"  # each of 64 threads its own word
OTHER = "xor.b32 %r4, %r0, 32; mov.u32 %r5, tile; mad.lo.u32 %r4, %r4, 4, %r5;"
INIT = FIRST + "@%p0 mbarrier.init.shared::cta.b64 [bar], 1; fence.proxy.async; bar.sync 0;"
WAIT = """
wait{0}:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], {0};
  @!%p1 bra wait{0};
"""
LOAD = (
    "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %d5, [bar], 256;"
    "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    " [tile], [%a0], 256, [bar];"
)


def source() -> np.ndarray:
    array = np.arange(1, 65, dtype=np.uint32)
    array.setflags(write=False)
    return array


def found(body: str, *buffers: np.ndarray, **options) -> Fault | None:
    """The kind of finding of a launch of two warps, None where there is none."""
    try:
        execute(body, *buffers, **{**TWO_WARPS, **options})
    except EmulationStopped as stopped:
        return stopped.finding.fault
    return None


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("order", ["", "bar.sync 1, 64;", "bar.warp.sync 0xffffffff;"])
def test_another_warps_write_is_read_after_a_barrier(order, seed):
    body = OWN + OTHER + "st.shared.u32 [%r2], %r0;" + order + "ld.shared.u32 %r1, [%r4];"
    clean = order.startswith("bar.sync")
    result = found(body, seed=seed)
    assert result in ((None,) if clean else (Fault.SHARED_RACE, Fault.UNINITIALISED))


@pytest.mark.parametrize("order", ["", "bar.sync 0;"])
def test_a_tile_is_refilled_after_a_barrier(order):
    body = OWN + OTHER + "st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r1, [%r4];"
    body += order + "st.shared.u32 [%r2], %r1;"
    assert found(body) == (None if order else Fault.SHARED_RACE)


@pytest.mark.parametrize("order", ["", "bar.sync 0;"])
def test_two_warps_do_not_write_one_word(order):
    body = "@%p2 st.shared.u32 [tile], %r0;" + order + "@!%p2 st.shared.u32 [tile], %r0;"
    result = found(SECOND_WARP + body)
    assert result == (None if order else Fault.SHARED_RACE)


def test_neighbouring_halves_of_a_word_are_apart():
    body = "mov.u32 %r2, tile; shr.u32 %r3, %r0, 5; mad.lo.u32 %r2, %r3, 2, %r2;"
    body += "mov.u16 %h1, 3; st.shared.u16 [%r2], %h1; ld.shared.u16 %h2, [%r2];"
    assert found(body) is None


def test_the_lanes_of_a_warp_are_in_step():
    body = OWN + "xor.b32 %r4, %r0, 1; mov.u32 %r5, tile; mad.lo.u32 %r4, %r4, 4, %r5;"
    body += "st.shared.u32 [%r2], %r0; ld.shared.u32 %r1, [%r4];"
    assert found(body) is None


def test_a_barrier_orders_only_those_who_take_part():
    body = "st.shared.u32 [%r2], %r0; setp.ge.u32 %p3, %r0, 64; @%p3 bra read;"
    body += "bar.sync 1, 64; bra done; read: ld.shared.u32 %r1, [tile]; done:"
    result = found(OWN + body, block=(96, 1, 1), variables=TILE.replace("256", "512"))
    assert result in (Fault.SHARED_RACE, Fault.UNINITIALISED)


@pytest.mark.parametrize("waits", [False, True])
def test_an_arrival_shows_what_came_before_it_to_who_waits(waits):
    body = INIT + SECOND_WARP + "@%p2 bra reader; st.shared.u32 [tile], %r0;"
    body += "@%p0 mbarrier.arrive.shared::cta.b64 %d5, [bar]; bra done; reader:"
    body += (WAIT.format(0) if waits else "") + "ld.shared.u32 %r1, [tile]; done:"
    result = found(body)
    assert result in ((None,) if waits else (Fault.SHARED_RACE, Fault.UNINITIALISED))


CP_ASYNC = OWN + OTHER + (
    "mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0;"
    "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.commit_group;"
)  # fmt: skip


@pytest.mark.parametrize(
    ("order", "read", "clean"),
    [
        ("", "%r2", False),
        ("cp.async.wait_group 1;", "%r2", False),
        ("cp.async.wait_group 0;", "%r2", True),
        ("bar.sync 0;", "%r4", False),
        ("cp.async.wait_group 0;", "%r4", False),
        ("bar.sync 0; cp.async.wait_group 0;", "%r4", False),
        ("cp.async.wait_group 0; bar.sync 0;", "%r4", True),
    ],
)
def test_asynchronous_copies_need_a_wait_and_for_others_a_barrier(order, read, clean):
    body = CP_ASYNC + order + f"ld.shared.u32 %r1, [{read}]; cp.async.wait_all;"
    result = found(body, source())
    assert result in ((None,) if clean else (Fault.SHARED_RACE, Fault.UNINITIALISED))


@pytest.mark.parametrize("waits", [False, True])
def test_a_bulk_load_is_seen_once_its_bytes_are_waited_for(waits):
    body = INIT + LOAD + OWN + (WAIT.format(0) if waits else "") + "ld.shared.u32 %r1, [%r2];"
    result = found(body + ("" if waits else WAIT.format(0)), source())
    assert result in ((None,) if waits else (Fault.SHARED_RACE, Fault.UNINITIALISED))


@pytest.mark.parametrize("order", ["", "bar.sync 0;"])
def test_a_bulk_load_over_a_tile_waits_for_its_readers(order):
    body = INIT + LOAD + OWN + WAIT.format(0) + "ld.shared.u32 %r1, [%r2];"
    result = found(body + order + LOAD + WAIT.format(1), source())
    assert result == (None if order else Fault.SHARED_RACE)


@pytest.mark.parametrize(
    ("access", "expected"),
    [("ld.shared.u32 %r1, [%r2];", Fault.SHARED_RACE),
     ("st.shared.u32 [%r2], 0;", Fault.SHARED_RACE),
     ("ld.shared.u32 %r1, [%r2+256];", None)],
)  # fmt: skip
def test_a_tile_belongs_to_its_copy_from_issue_to_completion(access, expected):
    variables = TILE.replace("[256]", "[512]")
    body = INIT + OWN + "st.shared.u32 [%r2+256], %r0; st.shared.u32 [%r2], %r0;"
    body += "fence.proxy.async; bar.sync 0;" + LOAD + "{} " + WAIT.format(0) + "{}"
    assert found(body.format(access, ""), source(), variables=variables) is expected
    assert found(body.format("", access), source(), variables=variables) is None


STORE = (
    "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 256;"
    "@%p0 cp.async.bulk.commit_group;"
)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("bar.sync 0;", Fault.MISSING_PROXY_FENCE),
        ("fence.proxy.async;", Fault.SHARED_RACE),
        ("fence.proxy.async; bar.sync 0;", None),
    ],
)
def test_the_async_proxy_sees_generic_writes_after_a_fence_and_a_barrier(order, expected):
    body = OWN + FIRST + "add.u32 %r1, %r0, 1; st.shared.u32 [%r2], %r1;" + order + STORE
    target = np.zeros(64, np.uint32)
    result = found(body + "cp.async.bulk.wait_group 0;", target, seed=3)
    assert result in (expected, Fault.UNINITIALISED if order.startswith("fence") else expected)
    assert expected is not None or target.tolist() == list(range(1, 65))


@pytest.mark.parametrize("waits", [False, True])
def test_the_source_of_a_bulk_store_is_kept_until_it_was_read(waits):
    body = OWN + FIRST + "add.u32 %r1, %r0, 1; st.shared.u32 [%r2], %r1; fence.proxy.async;"
    body += "bar.sync 0;" + STORE + ("cp.async.bulk.wait_group.read 0;" if waits else "")
    body += "@%p0 st.shared.u32 [%r2], 0; cp.async.bulk.wait_group 0;"
    result = found(body, np.zeros(64, np.uint32))
    assert result == (None if waits else Fault.SHARED_RACE)


@pytest.mark.parametrize("clean", [False, True])
def test_a_copy_that_nobody_waits_for_is_unfinished(clean):
    body = INIT + LOAD + (WAIT.format(0) if clean else "")
    assert found(body, source()) == (None if clean else Fault.UNFINISHED_ASYNC)


BLOCK = "mov.u32 %r9, %ctaid.x; setp.eq.u32 %p4, %r9, 0;"


@pytest.mark.parametrize("sms", [1, 2])
def test_blocks_do_not_share_an_element_of_global_memory(sms):
    options = {"grid": (2, 1, 1), "block": (32, 1, 1), "sms": sms}
    same = "st.global.u32 [%a0], %r9;"
    own = "mul.wide.u32 %d0, %r9, 4; add.s64 %d1, %a0, %d0; st.global.u32 [%d1], %r9;"
    assert found(BLOCK + same, np.zeros(2, np.uint32), **options) is Fault.GLOBAL_RACE
    assert found(BLOCK + own, np.zeros(2, np.uint32), **options) is None


@pytest.mark.parametrize("flag", ["atom.global.add.u32 %r3, [%a0+4], 1;", ""])
def test_an_atomic_hands_over_what_was_written_before_it(flag):
    body = BLOCK + "@!%p4 bra second; st.global.u32 [%a0], 7;" + flag + "bra done; second:"
    body += flag + "ld.global.u32 %r1, [%a0]; done:"
    options = {"grid": (2, 1, 1), "block": (32, 1, 1)}
    result = found(body, np.array([1, 5], np.uint32), **options)
    assert result == (None if flag else Fault.GLOBAL_RACE)


@pytest.mark.parametrize("access", ["red.global.add.u32 [%a0], 1;", "st.global.u32 [%a0], 1;"])
def test_atomics_never_race_with_each_other_but_with_plain_accesses(access):
    body = BLOCK + "@%p4 red.global.add.u32 [%a0], 1; @!%p4 " + access
    clean = access.startswith("red")
    options = {"grid": (2, 1, 1), "block": (32, 1, 1)}
    result = found(body, np.array([5], np.uint32), **options)
    assert result == (None if clean else Fault.GLOBAL_RACE)


@pytest.mark.parametrize("order", ["", "barrier.cluster.arrive; barrier.cluster.wait;"])
def test_a_peers_shared_memory_is_read_after_a_cluster_barrier(order):
    body = "mov.u32 %r9, %cluster_ctarank; xor.b32 %r9, %r9, 1; mov.u32 %r5, tile;"
    body += "mapa.shared::cluster.u32 %r6, %r5, %r9; st.shared::cluster.u32 [%r6], %r9;" + order
    options = {"grid": (2, 1, 1), "block": (32, 1, 1), "cluster": (2, 1, 1), "sms": 2}
    result = found(body + "ld.shared.u32 %r1, [tile];", **options)
    assert result in ((None,) if order else (Fault.SHARED_RACE, Fault.UNINITIALISED))


@pytest.mark.parametrize("order", ["", "barrier.cluster.arrive; barrier.cluster.wait;"])
def test_a_block_stays_while_its_peer_uses_its_shared_memory(order):
    body = "st.shared.u32 [tile], 3; barrier.cluster.arrive; barrier.cluster.wait;"
    body += "mov.u32 %r9, %cluster_ctarank; xor.b32 %r9, %r9, 1; mov.u32 %r5, tile;"
    body += "mapa.shared::cluster.u32 %r6, %r5, %r9; ld.shared::cluster.u32 %r1, [%r6];" + order
    options = {"grid": (2, 1, 1), "block": (32, 1, 1), "cluster": (2, 1, 1), "sms": 2}
    assert found(body, **options) == (None if order else Fault.SHARED_RACE)


def test_the_end_of_one_kind_of_operation_says_nothing_of_another():
    clocks = Clocks(1)
    clocks.start(0, (0, 0, 0), 0)
    store, later = clocks.issue(0, "store"), clocks.issue(0, "wgmma")
    clocks.acquire(0, clocks.finished(later, proxy="async"))
    known = clocks.known[0][0]
    assert known[later.agent] == later.time
    assert known[store.agent] < store.time


def test_a_race_names_both_sides():
    body = SECOND_WARP + "@%p2 st.shared.u32 [tile+8], 1; @!%p2 st.shared.u32 [tile+8], 2;"
    said = fault(body, **TWO_WARPS)
    assert "byte 8 of shared memory" in said.message
    assert "warp 0" in said.message
    assert "warp 1" in said.message


def test_what_is_known_passes_on_through_a_third_warp():
    clocks = Clocks(3)
    for warp in range(3):
        clocks.start(2 * warp, (0, 0, 0), warp)
    shadow, rows = Shadow(16, range(6)), np.array([0])

    def by(agent: int) -> Accessor:
        known = clocks.known[agent][0]
        return Accessor(agent, int(known[agent]), known, known)

    assert shadow.write(rows, 4, by(0)) is None
    clocks.acquire(2, clocks.release(0))
    assert shadow.read(rows, 4, by(4)).agent == 0
    clocks.acquire(4, clocks.release(2))
    assert shadow.read(rows, 4, by(4)) is None
    assert shadow.write(rows, 4, by(2)).wrote is False
