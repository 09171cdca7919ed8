"""Barriers, fences and registers: one program that misuses each, and one that barely does not."""

import numpy as np
import pytest
from emulation import fault, finding, launch, store_words

from l2tune.runtime.emulator.findings import Fault

WORD = """
  shl.b32 %r2, %r0, 2;
  st.shared.b32 [%r2], %r0;
  {barrier}
  xor.b32 %r3, %r2, 128;
  ld.shared.b32 %r4, [%r3];
"""


def words(count):
    return np.zeros(count, dtype=np.uint32)


def test_bar_sync_shows_what_other_warps_wrote():
    out = words(64)
    body = WORD.format(barrier="bar.sync 0;") + store_words(["%r4"], target=0)
    launch(body, (out, "output"), threads=64)
    np.testing.assert_array_equal(out, np.arange(64) ^ 32)


def test_the_same_without_a_barrier_is_found():
    assert fault(WORD.format(barrier=""), threads=64) in (Fault.SHARED_RACE, Fault.UNINITIALISED)


def test_a_named_barrier_is_passed_by_those_who_sync_when_others_only_arrive():
    body = """
      shr.u32 %r5, %r0, 5;
      setp.eq.u32 %p1, %r5, 0;
      @%p1 bra first;
      bar.sync 3, 64;
      ld.shared.b32 %r4, [0];
      ret;
    first:
      st.shared.b32 [0], 7;
      barrier.cta.arrive.aligned 3, 64;
    """
    launch(body, threads=64)
    late = body.replace("st.shared.b32 [0], 7;", "").replace(
        "arrive.aligned 3, 64;", "arrive.aligned 3, 64; st.shared.b32 [0], 7;"
    )
    assert fault(late, threads=64) in (Fault.SHARED_RACE, Fault.UNINITIALISED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("setp.lt.u32 %p1, %r0, 16; @%p1 bar.sync 0;", Fault.BARRIER_DIVERGENCE),
        ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 0;", Fault.BARRIER_DIVERGENCE),
        ("bar.sync 16;", Fault.INVALID_USE),
        ("bar.sync 1, 40;", Fault.INVALID_USE),
        ("bar.sync 1, 32;", None),
        ("bar.sync 0;", None),
        ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 32;", None),
        ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 2, 64;", Fault.DEADLOCK),
        ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 1, 96;", None),
    ],
)
def test_a_barrier_that_not_all_reach_is_found(text, expected):
    if "96" in text:
        assert fault(text, threads=64) in (Fault.INVALID_USE, Fault.BARRIER_DIVERGENCE)
    elif expected is None:
        launch(text, threads=64)
    else:
        assert fault(text, threads=64) is expected


def test_lanes_may_come_one_by_one_to_a_barrier_that_is_not_aligned():
    body = """
      setp.lt.u32 %p1, %r0, 5;
      @%p1 bra few;
      barrier.cta.sync 1, 32;
      ret;
    few:
      barrier.cta.sync 1, 32;
    """
    launch(body)
    assert fault(body.replace("sync 1, 32", "sync.aligned 1, 32")) is Fault.BARRIER_DIVERGENCE


@pytest.mark.parametrize(("kind", "expected"), [("popc", 10), ("and", 0), ("or", 1)])
def test_bar_red_reduces_over_the_threads(kind, expected):
    out = words(64)
    read = (
        "bar.red.popc.u32 %r5, 0, %p1;" if kind == "popc"
        else f"bar.red.{kind}.pred %p2, 0, %p1; selp.u32 %r5, 1, 0, %p2;"
    )  # fmt: skip
    body = f"setp.lt.u32 %p1, %r0, 10; {read}" + store_words(["%r5"], target=0)
    launch(body, (out, "output"), threads=64)
    assert set(out.tolist()) == {expected}


def test_bar_warp_sync_must_name_who_executes_it():
    launch("bar.warp.sync 0xffffffff;")
    body = "setp.lt.u32 %p1, %r0, 4; @%p1 bar.warp.sync 0x3;"
    assert fault(body) is Fault.BARRIER_DIVERGENCE


def test_a_cluster_barrier_shows_another_blocks_memory():
    out = words(64)
    body = """
      shl.b32 %r2, %r0, 2;
      add.u32 %r3, %r0, %r1;
      st.shared.b32 [%r2], %r3;
      %s
      xor.b32 %r4, %r1, 1;
      mapa.shared::cluster.u32 %r5, %r2, %r4;
      ld.shared::cluster.b32 %r6, [%r5];
      shl.b32 %r7, %r1, 5;
      add.u32 %r0, %r0, %r7;
      barrier.cluster.arrive; barrier.cluster.wait;
    """ + store_words(["%r6"], target=0)
    both = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    launch(body.replace("%s", both), (out, "output"), cluster=2)
    np.testing.assert_array_equal(out, [*np.arange(32) + 1, *np.arange(32)])
    lost = body.replace("%s", both.replace("arrive.release", "arrive.relaxed"))
    assert fault(lost, (words(64), "output"), cluster=2) is Fault.SHARED_RACE
    twice = "barrier.cluster.arrive; barrier.cluster.arrive;"
    assert fault(twice, cluster=2) is Fault.INVALID_USE


def test_mapa_and_getctarank_undo_each_other():
    out = words(64)
    body = """
      mov.u64 %rd20, 0x010000000000;
      mapa.u64 %rd21, %rd20, 1;
      getctarank.u64 %r5, %rd21;
      mapa.shared::cluster.u32 %r6, %r0, %r1;
      getctarank.shared::cluster.u32 %r7, %r6;
      shl.b32 %r8, %r5, 4;
      or.b32 %r8, %r8, %r7;
      shl.b32 %r7, %r1, 5;
      add.u32 %r0, %r0, %r7;
    """ + store_words(["%r8"], target=0)
    launch(body, (out, "output"), cluster=2)
    assert out.tolist() == [0x10] * 32 + [0x11] * 32
    assert fault("mapa.u64 %rd21, %rd0, 2;", (out, "output"), cluster=2) is Fault.INVALID_USE


@pytest.mark.parametrize(
    ("count", "expected"),
    [(232, None), (236, Fault.RESOURCES), (16, Fault.RESOURCES), (240, Fault.DEADLOCK)],
)
def test_setmaxnreg_moves_registers_that_are_there(count, expected):
    body = f"""
      setp.lt.u32 %p1, %r0, 128;
      @%p1 bra gives;
      setmaxnreg.inc.sync.aligned.u32 {count};
      ret;
    gives:
      setmaxnreg.dec.sync.aligned.u32 40;
    """
    if expected is None:
        launch(body, threads=384)
    else:
        assert fault(body, threads=384) is expected


def test_a_message_says_who_is_missing():
    found = finding("setp.lt.u32 %p1, %r0, 16; @%p1 bar.sync 0;")
    assert "32 lanes of the warp run, 16 are at the barrier" in found.message
    assert found.thread == 16


def test_fences_and_grid_dependencies_are_known():
    launch("membar.gl; fence.acq_rel.gpu; fence.sc.sys; fence.proxy.async; fence.proxy.alias;"
           "griddepcontrol.wait; griddepcontrol.launch_dependents;")  # fmt: skip
