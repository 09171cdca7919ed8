"""Stores and reductions from afar: what arrives, when, and for whom."""

import numpy as np
import pytest
from emulation import fault, fill_shared, launch

from l2tune.runtime.emulator.findings import Fault

BAR = 2048
PEER = f"""
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [{BAR}], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  shl.b32 %r2, %r0, 2;
  st.shared.u32 [%r2], 1000;
  barrier.cluster.arrive; barrier.cluster.wait;
  xor.b32 %r3, %r1, 1;
  mapa.shared::cluster.u32 %r4, %r2, %r3;
  mov.u32 %r5, {BAR};
  mapa.shared::cluster.u32 %r5, %r5, %r3;
  mad.lo.u32 %r6, %r1, 100, %r0;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BAR}], 128;
"""
SEND = "{}.shared::cluster.mbarrier::complete_tx::bytes.{} [%r4], %r6, [%r5];"
STORE, ADD = SEND.format("st.async", "u32"), SEND.format("red.async.relaxed.cluster", "add.u32")
WAIT = f"""
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [{BAR}], 0;
  @!%p2 bra wait;
"""
READ = "ld.shared.u32 %r7, [%r2]; mad.lo.u32 %r8, %r1, 128, %r2; cvt.u64.u32 %rd5, %r8;"
READ += "add.s64 %rd5, %rd5, %rd0; st.global.u32 [%rd5], %r7;"


@pytest.mark.parametrize(("send", "base"), [(STORE, 0), (ADD, 1000)])
def test_a_peers_shared_memory_is_changed_once_its_mbarrier_says_so(send, base):
    out = np.zeros(64, np.uint32)
    body = PEER + send + WAIT + READ
    launch(body, (out, "output"), cluster=2)
    assert out.tolist() == [base + 100 + i for i in range(32)] + [base + i for i in range(32)]
    early = fault(PEER + send + READ + WAIT, (out, "output"), cluster=2)
    assert early is Fault.SHARED_RACE
    assert fault(PEER + send, (out, "output"), cluster=2) is Fault.UNFINISHED_ASYNC


def test_lanes_of_one_store_may_send_to_different_blocks():
    out = np.zeros(64, np.uint32)
    turn = "and.b32 %r3, %r0, 1; xor.b32 %r3, %r3, %r1; mapa.shared::cluster.u32 %r4, %r2, %r3;"
    turn += f"mov.u32 %r5, {BAR}; mapa.shared::cluster.u32 %r5, %r5, %r3;"
    launch(PEER + turn + STORE + WAIT + READ, (out, "output"), cluster=2)
    assert out[:32].tolist() == [i % 2 * 100 + i for i in range(32)]
    assert out[32:].tolist() == [(1 - i % 2) * 100 + i for i in range(32)]


def test_bytes_from_afar_are_counted():
    body = PEER.replace("[2048], 128", "[2048], 132") + STORE + WAIT
    assert fault(body, (np.zeros(64, np.uint32), "output"), cluster=2) is Fault.DEADLOCK


def test_a_misplaced_store_from_afar_is_found():
    body = PEER + "add.u32 %r4, %r4, 2;" + STORE
    assert fault(body, (np.zeros(64, np.uint32), "output"), cluster=2) is Fault.MISALIGNED


REDUCE = """
  cp.reduce.async.bulk.global.shared::cta.bulk_group.{} [%rd1], [0], 512;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
"""
ONE_LANE = "setp.eq.u32 %p1, %r0, 0; fence.proxy.async; bar.sync 0; @!%p1 bra done; {} done:"


@pytest.mark.parametrize(
    ("kind", "dtype", "combine"),
    [
        ("add.f32", np.float32, np.add), ("add.noftz.f16", np.float16, np.add),
        ("min.s32", np.int32, np.minimum), ("xor.b32", np.uint32, np.bitwise_xor),
    ],
)  # fmt: skip
def test_a_bulk_reduction_changes_global_memory_number_by_number(kind, dtype, combine):
    generator = np.random.default_rng(1)
    there, new = (generator.integers(-99, 99, 512 // dtype().itemsize).astype(dtype) for _ in "ab")
    target = np.zeros_like(there)
    body = fill_shared(512, threads=32, source=2)
    body += "mul.wide.u32 %rd9, %r0, 16; add.s64 %rd9, %rd9, %rd1;"
    body += "st.global.v4.u32 [%rd9], {%r291, %r292, %r293, %r294}; bar.sync 0;"
    body += fill_shared(512, threads=32) + ONE_LANE.format(REDUCE.format(kind))
    launch(body, (new, "input"), (target, "output"), (there, "input"))
    np.testing.assert_array_equal(target, combine(there, new))


def test_a_reduction_needs_something_to_reduce_to():
    new, target = np.ones(128, np.float32), np.zeros(128, np.float32)
    body = fill_shared(512, threads=32) + ONE_LANE.format(REDUCE.format("add.f32"))
    assert fault(body, (new, "input"), (target, "output")) is Fault.UNINITIALISED


@pytest.mark.parametrize("reduces", [True, False])
def test_blocks_may_reduce_into_the_same_numbers_and_not_store_there(reduces):
    copy = "cp{}.async.bulk.global.shared::cta.bulk_group{} [%rd1], [0], 512;"
    copy = copy.format(".reduce", ".add.u32") if reduces else copy.format("", "")
    copy += "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    zero = "mul.wide.u32 %rd9, %r0, 16; add.s64 %rd9, %rd9, %rd1; setp.eq.u32 %p3, %r1, 0;"
    zero += "@%p3 st.global.v4.u32 [%rd9], {0, 0, 0, 0}; fence.proxy.async;"
    body = zero + "barrier.cluster.arrive; barrier.cluster.wait;"
    body += fill_shared(512, threads=32) + ONE_LANE.format(copy)
    new, target = np.ones(128, np.uint32), np.zeros(128, np.uint32)
    buffers = (new, "input"), (target, "scratch")
    if reduces:
        launch(body, *buffers, cluster=2)
        assert target.tolist() == [2] * 128
    else:
        assert fault(body, *buffers, cluster=2) is Fault.GLOBAL_RACE


def test_a_bulk_reduction_into_a_peers_shared_memory_completes_on_its_mbarrier():
    out = np.zeros(64, np.uint32)
    own = "st.shared.u32 [%r2+512], %r6; fence.proxy.async; bar.sync 0;"
    send = "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    send += ".add.u32 [%r4], [512], 128, [%r5];"
    launch(PEER + own + send + WAIT + READ, (out, "output"), cluster=2)
    assert out.tolist() == [1100 + i for i in range(32)] + [1000 + i for i in range(32)]
