"""mbarriers: phases and counts, and each way of getting them wrong."""

import numpy as np
import pytest
from emulation import fault, finding, launch, store_words
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.runtime.emulator.findings import Fault

INIT = """
  setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [0], {count};
  {fence}
  bar.sync 0;
"""


def init(count, fence="@%p1 fence.mbarrier_init.release.cluster;"):
    return INIT.format(count=count, fence=fence)


def parity_test(parity, result="%p3"):
    return f"mbarrier.test_wait.parity.shared::cta.b64 {result}, [0], {parity};\n"


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 12))
def test_a_phase_completes_with_its_last_arrival(count, arrivals):
    out = np.zeros(2 * 32, dtype=np.uint32)
    arrive = "@%p1 mbarrier.arrive.shared::cta.b64 %rd20, [0];\n" * arrivals
    body = init(count) + arrive + "bar.sync 0;\n" + parity_test(0) + parity_test(1, "%p4")
    body += "selp.u32 %r5, 1, 0, %p3; selp.u32 %r6, 1, 0, %p4;" + store_words(
        ["%r5", "%r6"], target=0
    )
    launch(body, (out, "output"))
    phase = arrivals // count
    assert out[:2].tolist() == [phase % 2, 1 - phase % 2]


def test_the_state_of_an_arrival_names_the_phase_to_wait_for():
    out = np.zeros(96, dtype=np.uint32)
    body = (
        init(2)
        + """
      @!%p1 bra others;
      mbarrier.arrive.shared::cta.b64 %rd20, [0];
      mbarrier.pending_count.b64 %r7, %rd20;
      mbarrier.test_wait.shared::cta.b64 %p3, [0], %rd20;
      mbarrier.arrive.shared::cta.b64 %rd21, [0];
      mbarrier.test_wait.shared::cta.b64 %p4, [0], %rd20;
      selp.u32 %r5, 1, 0, %p3; selp.u32 %r6, 1, 0, %p4;
    """
        + store_words(["%r5", "%r6", "%r7"], target=0)
        + "others:"
    )
    launch(body, (out, "output"))
    assert out[:3].tolist() == [0, 1, 2]


def test_announced_bytes_keep_the_phase_open():
    out = np.zeros(64, dtype=np.uint32)
    body = (
        init(1)
        + """
      @!%p1 bra others;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [0], 64;
    """
        + parity_test(0)
        + """
      mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [0], 64;
    """
        + parity_test(0, "%p4")
        + """
      selp.u32 %r5, 1, 0, %p3; selp.u32 %r6, 1, 0, %p4;
    """
        + store_words(["%r5", "%r6"], target=0)
        + "others:"
    )
    launch(body, (out, "output"))
    assert out[:2].tolist() == [0, 1]


def test_a_dropped_arrival_is_missing_from_the_next_phase():
    out = np.zeros(32, dtype=np.uint32)
    body = (
        init(2)
        + """
      @!%p1 bra others;
      mbarrier.arrive_drop.shared::cta.b64 %rd20, [0];
      mbarrier.arrive.shared::cta.b64 %rd20, [0];
      mbarrier.arrive.shared::cta.b64 %rd20, [0];
    """
        + parity_test(1)
        + "selp.u32 %r5, 1, 0, %p3;"
        + store_words(["%r5"], target=0)
        + "others:"
    )
    launch(body, (out, "output"))
    assert out[0] == 1


RELEASE = """
  shr.u32 %r5, %r0, 5;
  setp.eq.u32 %p5, %r5, 0;
  @%p5 bra first;
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [0], {parity};
  @!%p3 bra wait;
  ld.shared.b32 %r6, [64];
  ret;
first:
  @%p1 st.shared.b32 [64], 5;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [0];
"""


def test_a_completed_phase_publishes_what_came_before_the_arrivals():
    launch(init(1) + RELEASE.format(parity=0), threads=64)


def test_the_wrong_parity_passes_at_once_and_reads_too_early():
    found = fault(init(1) + RELEASE.format(parity=1), threads=64)
    assert found in (Fault.UNINITIALISED, Fault.SHARED_RACE)


def test_an_arrival_that_never_comes_is_a_deadlock_that_says_what_is_owed():
    found = finding(init(2) + RELEASE.format(parity=0), threads=64)
    assert found.fault is Fault.DEADLOCK
    assert "still needs 1 arrivals and 0 bytes" in found.message


ONE = "@%p1 mbarrier.arrive.shared::cta.b64 _, [0], {count};\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (init(2) + ONE.format(count=3), Fault.INVALID_USE),
        (init(3) + ONE.format(count=3), None),
        (init(0), Fault.INVALID_USE),
        (init(1 << 20), Fault.INVALID_USE),
        (init((1 << 20) - 1), None),
        ("mbarrier.arrive.shared::cta.b64 _, [8];", Fault.INVALID_USE),
        (init(1) + "mbarrier.arrive.shared::cta.b64 _, [4];", Fault.INVALID_USE),
        ("mbarrier.init.shared::cta.b64 [4], 1;", Fault.MISALIGNED),
        (init(1) + "@%p1 mbarrier.inval.shared::cta.b64 [0]; " + ONE.format(count=1),
         Fault.INVALID_USE),
        (init(2) + "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [0], 0x100000;",
         Fault.INVALID_USE),
        (init(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [0], 32;"
         "@%p1 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [0], 64;",
         Fault.INVALID_USE),
        (init(1) + parity_test(2), Fault.INVALID_USE),
        (init(1) + "@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd20, [0], 1;",
         Fault.INVALID_USE),
        (init(2) + "@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd20, [0], 1;", None),
        (init(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [0], 32;",
         Fault.UNFINISHED_ASYNC),
    ],
)  # fmt: skip
def test_misuse_is_found(text, expected):
    if expected is None:
        launch(text)
    else:
        assert fault(text) is expected


def test_an_init_that_no_barrier_orders_before_its_use_is_a_race():
    use = """
      mbarrier.arrive.shared::cta.b64 _, [0];
    """
    launch(init(64) + use, threads=64)
    found = fault(init(64).replace("bar.sync 0;", "") + use, threads=64)
    assert found in (Fault.SHARED_RACE, Fault.INVALID_USE)


REMOTE = """
  barrier.cluster.arrive{kind}; barrier.cluster.wait;
  xor.b32 %r4, %r1, 1;
  mov.u32 %r5, 0;
  mapa.shared::cluster.u32 %r6, %r5, %r4;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
wait:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [0], 0;
  @!%p3 bra wait;
  barrier.cluster.arrive; barrier.cluster.wait;
"""


@pytest.mark.parametrize(
    ("fence", "kind", "expected"),
    [
        ("@%p1 fence.mbarrier_init.release.cluster;", ".relaxed", None),
        ("", ".release", None),
        ("", ".relaxed", Fault.SHARED_RACE),
    ],
)
def test_a_remote_arrival_counts_in_the_other_block_if_its_init_is_known(fence, kind, expected):
    body = init(32, fence=fence) + REMOTE.format(kind=kind)
    if expected is None:
        launch(body, cluster=2)
    else:
        assert fault(body, cluster=2) is expected
