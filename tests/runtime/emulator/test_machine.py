"""How warps run: divergence and reconvergence, exits, waves, clusters, and launches that hang."""

import numpy as np
import pytest
from ptx import execute, fault, machine

from l2tune.runtime.emulator.findings import EmulationStopped, Fault

STORE = "mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; st.global.u32 [%d1], %r1;"
GLOBAL_INDEX = "mov.u32 %r9, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r0, %r9, %r8, %r0;"


def lanes(body: str, **options) -> list[int]:
    """What each of 32 threads leaves in `%r1`, plus one so that nothing stays zero."""
    target = np.zeros(32, np.uint32)
    execute(body + "add.u32 %r1, %r1, 1;" + STORE, target, **options)
    return (target - 1).tolist()


def test_lanes_that_part_meet_again():
    body = """
      setp.lt.u32 %p0, %r0, 8;
      @%p0 bra low;
      mov.u32 %r1, 100;
      bra join;
    low:
      mov.u32 %r1, 200;
    join:
      vote.sync.ballot.b32 %r2, 1, 0xffffffff;
      popc.b32 %r2, %r2;
      add.u32 %r1, %r1, %r2;
    """
    assert lanes(body) == [232] * 8 + [132] * 24


def test_each_lane_goes_round_a_loop_as_often_as_it_wants():
    body = """
      mov.u32 %r1, 0;
    again:
      add.u32 %r1, %r1, 1;
      setp.le.u32 %p0, %r1, %r0;
      @%p0 bra again;
      vote.sync.ballot.b32 %r2, 1, 0xffffffff;
    """
    assert lanes(body) == [i + 1 for i in range(32)]


def test_a_branch_inside_a_branch_joins_from_the_inside_out():
    body = """
      and.b32 %r2, %r0, 1;
      setp.eq.u32 %p0, %r2, 1;
      setp.lt.u32 %p1, %r0, 16;
      mov.u32 %r1, 0;
      @!%p0 bra join;
      @!%p1 bra inner;
      add.u32 %r1, %r1, 10;
    inner:
      add.u32 %r1, %r1, 1;
    join:
      add.u32 %r1, %r1, 100;
    """
    assert lanes(body) == [(111 if i < 16 else 101) if i % 2 else 100 for i in range(32)]


def test_lanes_that_exit_leave_the_others_running():
    target = np.zeros(32, np.uint32)
    body = "mov.u32 %r1, 5; setp.ge.u32 %p0, %r0, 10; @%p0 exit;" + STORE
    execute(body, target)
    assert target.tolist() == [5] * 10 + [0] * 22


def test_an_indexed_branch_takes_each_lane_to_its_label():
    body = """
      and.b32 %r2, %r0, 1;
      targets: .branchtargets even, odd;
      brx.idx %r2, targets;
    even:
      mov.u32 %r1, 2; bra join;
    odd:
      mov.u32 %r1, 3;
    join:
    """
    assert lanes(body) == [2 + i % 2 for i in range(32)]


def test_a_trap_is_a_finding():
    assert fault("setp.eq.u32 %p0, %r0, 3; @%p0 trap;").fault is Fault.TRAP


@pytest.mark.parametrize("threads", [1, 31, 33, 100])
def test_a_block_may_end_within_a_warp(threads):
    target = np.zeros(threads, np.uint32)
    execute("add.u32 %r1, %r0, 1;" + STORE, target, block=(threads, 1, 1))
    assert target.tolist() == list(range(1, threads + 1))


@pytest.mark.parametrize("sms", [1, 2, 7])
def test_blocks_run_in_waves_and_each_runs_once(sms):
    target = np.ones(5 * 64, np.uint32)
    body = GLOBAL_INDEX + "mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0;"
    body += "ld.global.u32 %r1, [%d1]; add.u32 %r1, %r1, %r0; st.global.u32 [%d1], %r1;"
    launched = execute(body, target, grid=(5, 1, 1), block=(64, 1, 1), sms=sms)
    assert target.tolist() == list(range(1, 5 * 64 + 1))
    assert launched.statistics.blocks == 5


def test_a_random_order_of_warps_changes_no_result():
    results = []
    for seed in (None, 1, 2):
        target = np.zeros(256, np.uint32)
        body = "add.u32 %r1, %r0, 1; bar.sync 0;" + STORE
        execute(body, target, block=(256, 1, 1), seed=seed)
        results.append(target.tolist())
    assert results[0] == results[1] == results[2] == list(range(1, 257))


def test_a_block_knows_its_place_in_its_cluster():
    target = np.zeros(8, np.uint32)
    body = """
      mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %clusterid.x; mov.u32 %r3, %cluster_nctarank;
      mad.lo.u32 %r1, %r2, 100, %r1; mad.lo.u32 %r1, %r3, 1000, %r1; mov.u32 %r0, %ctaid.x;
    """
    execute(body + STORE, target, grid=(8, 1, 1), block=(1, 1, 1), cluster=(4, 1, 1), sms=4)
    assert target.tolist() == [4000, 4001, 4002, 4003, 4100, 4101, 4102, 4103]


def test_special_registers_of_a_three_dimensional_launch():
    target = np.zeros(32, np.uint32)
    body = """
      mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
      mad.lo.u32 %r1, %r2, 10, %r1; mad.lo.u32 %r1, %r3, 100, %r1; mov.u32 %r0, %laneid;
      add.u32 %r1, %r1, 1;
    """
    execute(body + STORE, target, block=(4, 2, 4))
    assert target.tolist() == [
        100 * z + 10 * y + x + 1 for z in range(4) for y in range(2) for x in range(4)
    ]


def test_warps_that_wait_for_each_other_for_ever_are_a_deadlock():
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 bra first; bar.sync 1, 64; bra done;"
    body += "first: bar.sync 2, 64; done:"
    found = fault(body, block=(64, 1, 1))
    assert found.fault is Fault.DEADLOCK
    assert "2 warps" in found.message


def test_an_endless_loop_spends_the_budget():
    body = "again: add.u32 %r0, %r0, 1; bra again;"
    assert fault(body, step_budget=10_000).fault is Fault.STEP_BUDGET
    execute("add.u32 %r0, %r0, 1;" * 50, step_budget=60)


SPINS = ["ld.volatile.global.u32 %r1, [%a0];", "atom.global.cas.b32 %r1, [%a0], 7, 8;"]


@pytest.mark.parametrize("look", SPINS)
@pytest.mark.parametrize("seed", [None, 1])
def test_warps_that_look_for_ever_at_what_nobody_changes_are_stopped_soon(look, seed):
    flag = np.full(1, 5, np.uint32)
    body = "setp.lt.u32 %p0, %r0, 32; @!%p0 bra join; again: nanosleep.u32 20;" + look
    body += "setp.eq.u32 %p1, %r1, 5; @%p1 bra again; join: bar.sync 0;"
    launched = machine(body, flag, block=(64, 1, 1), seed=seed)
    with pytest.raises(EmulationStopped) as stopped:
        launched.run()
    assert stopped.value.finding.fault is Fault.STEP_BUDGET
    assert "1 warps go round for ever" in stopped.value.finding.message
    assert launched.statistics.steps < 100_000


@pytest.mark.parametrize("look", SPINS)
@pytest.mark.parametrize(
    "last", ["atom.global.exch.b32 %r3, [%a0], 1;", "st.volatile.global.u32 [%a0], 1;"]
)
def test_a_warp_may_look_long_at_what_another_changes_late(look, last):
    flag = np.full(1, 5, np.uint32)
    body = "setp.eq.u32 %p0, %r0, 32; @%p0 bra other; setp.ne.u32 %p0, %r0, 0; @%p0 bra join;"
    body += "again:" + look + "setp.eq.u32 %p1, %r1, 5; @%p1 bra again; bra join;"
    body += "other: mov.u32 %r2, 0; count: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 2000;"
    body += "@%p2 bra count;" + last + "join: bar.sync 0;"
    execute(body, flag, block=(64, 1, 1))
    assert flag[0] == 1


def test_a_warp_that_sleeps_between_looks_gives_way():
    flag = np.full(1, 5, np.uint32)
    body = "setp.eq.u32 %p0, %r0, 32; @%p0 bra other; setp.ne.u32 %p0, %r0, 0; @%p0 bra join;"
    body += "again: nanosleep.u32 20;" + SPINS[0] + "setp.eq.u32 %p1, %r1, 5; @%p1 bra again;"
    body += "bra join; other: mov.u32 %r2, 0; count: add.u32 %r2, %r2, 1;"
    body += "setp.lt.u32 %p2, %r2, 600; @%p2 bra count; st.volatile.global.u32 [%a0], 1;"
    steps = execute(body + "join: bar.sync 0;", flag, block=(64, 1, 1)).statistics.steps
    assert flag[0] == 1
    assert 3 * 600 < steps < 3 * 600 + 200  # of which the counting alone is the most


def test_a_loop_that_watches_the_clock_is_not_called_endless():
    body = "mov.u32 %r1, %clock; again: mov.u32 %r2, %clock; sub.u32 %r3, %r2, %r1;"
    execute(body + "setp.lt.u32 %p0, %r3, 20000; mov.u32 %r2, 0; mov.u32 %r3, 0; @%p0 bra again;")


@pytest.mark.parametrize(
    "asked",
    [{"block": (1025, 1, 1)}, {"smem_bytes": 232449}, {"grid": (3, 1, 1), "cluster": (2, 1, 1)}],
)
def test_a_launch_beyond_the_limits_is_refused(asked):
    with pytest.raises(EmulationStopped) as stopped:
        machine("", **asked)
    assert stopped.value.finding.fault is Fault.RESOURCES


def test_the_mix_counts_warps_and_names_every_instruction():
    target = np.zeros(64, np.uint32)
    launched = execute("add.u32 %r1, %r0, 1;" + STORE, target, block=(64, 1, 1))
    assert launched.statistics.mix["st.global.u32"] == 2
    assert launched.statistics.steps == sum(launched.statistics.mix.values())


@pytest.mark.parametrize(("stride", "passes"), [(4, 1), (8, 2), (128, 32), (132, 1)])
def test_bank_conflicts_are_counted_by_the_instruction(stride, passes):
    body = f"mul.lo.u32 %r1, %r0, {stride}; mov.u32 %r2, tile; add.u32 %r1, %r1, %r2;"
    body += "st.shared.u32 [%r1], %r0;"
    launched = execute(body, variables=".shared .align 4 .b8 tile[4224];")
    (count,) = launched.statistics.accesses.values()
    assert (count.taken, count.ideal) == (passes, 1)


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (32, 32), (0, 1)])
def test_coalescing_is_counted_in_sectors(stride, sectors):
    source = np.ones(32 * 8, np.uint32)
    source.setflags(write=False)
    body = f"mul.wide.u32 %d0, %r0, {stride}; add.s64 %d1, %a0, %d0; ld.global.u32 %r1, [%d1];"
    (count,) = execute(body, source).statistics.accesses.values()
    assert count.taken == sectors
