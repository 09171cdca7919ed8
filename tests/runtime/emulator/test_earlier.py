"""A launch that may start before the launch ahead of it has ended must wait before it touches."""

import numpy as np
import pytest
from emulated_seeds import compiled, is_right, run
from ptx import execute, fault
from seeds import MMA, TRITON, WGMMA

from l2tune import compile, generate  # noqa: A004
from l2tune.runtime.emulator.earlier import Earlier
from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.races import Accessor, Clocks, Shadow
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts

WAIT = "griddepcontrol.wait;"
LOAD, STORE = "ld.global.u32 %r1, [%a0];", "st.global.u32 [%a0], %r0;"
SECOND_WARP = "setp.ge.u32 %p2, %r0, 32;"


def found(body: str, buffer: np.ndarray, **options) -> Fault | None:
    """The kind of finding of a launch that overlaps the one before it, or None."""
    try:
        execute(body, buffer, **{"overlaps": True, **options})
    except EmulationStopped as stopped:
        return stopped.finding.fault
    return None


def operand() -> np.ndarray:
    array = np.arange(1, 65, dtype=np.uint32)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("access", [LOAD, STORE, "red.global.add.u32 [%a0], 1;"])
def test_an_access_before_the_wait_ignores_the_dependency(access):
    buffer = operand() if access == LOAD else np.ones(64, np.uint32)
    assert found(access + WAIT, buffer) is Fault.IGNORES_DEPENDENCY
    assert found(WAIT + access, buffer) is None
    assert found(access + WAIT, buffer, overlaps=False) is None


def test_a_warps_wait_holds_for_another_after_a_barrier():
    body = SECOND_WARP + "@!%p2 griddepcontrol.wait; {} @%p2 ld.global.u32 %r1, [%a0];"
    two = {"block": (64, 1, 1)}
    assert found(body.format("bar.sync 0;"), operand(), **two) is None
    assert found(body.format(""), operand(), **two) is Fault.IGNORES_DEPENDENCY


@pytest.mark.parametrize("waits", [False, True])
def test_an_asynchronous_copy_is_held_to_it_too(waits):
    variables = ".shared .align 128 .b8 tile[256];"
    body = "mov.u32 %r2, tile; mad.lo.u32 %r2, %r0, 4, %r2; mul.wide.u32 %d0, %r0, 4;"
    body += "add.s64 %d1, %a0, %d0;" + (WAIT if waits else "")
    body += "cp.async.ca.shared.global [%r2], [%d1], 4; cp.async.wait_all;"
    expected = None if waits else Fault.IGNORES_DEPENDENCY
    assert found(body + WAIT, operand(), variables=variables) is expected


def test_the_finding_says_what_and_where():
    body = "add.s64 %d1, %a0, 8; ld.global.u32 %r1, [%d1];"
    said = fault(body, operand(), overlaps=True)
    assert "byte 8 of buffer 0" in said.message
    assert "griddepcontrol.wait" in said.message


def test_what_one_launch_read_may_be_read_and_not_written_by_the_next():
    clocks, shadow = Clocks(1), Shadow(16, range(5))
    clocks.start(0, (0, 0, 0), 0)
    known = clocks.known[0][0]
    by = Accessor(0, int(known[0]), known, known)
    shadow.read(np.array([0]), 4, by)
    shadow.write(np.array([1]), 4, by)
    earlier = Earlier.nothing(16).joined(shadow)
    assert earlier.conflict(np.array([0]), 4, "read") is None
    assert earlier.conflict(np.array([0]), 4, "write") == 0
    assert earlier.conflict(np.array([1, 0]), 4, "read") == 4
    assert earlier.conflict(np.array([2, 3]), 4, "write") is None


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return folder


def changed(seed, values, cache, old, new, *, arch="sm_90a"):
    """A seed's instance with `old`, where it last stands, made `new`; and its PTX by launch."""
    before, found, after = instantiate(generate.seed_text(seed), values).rpartition(old)
    assert found
    text = compile.flatten(before + new + after, generate.include_dir())
    artifacts = Artifacts(cache)
    built = compile.compile_kernel(KernelSource(text=text, arch=arch), artifacts)
    assert isinstance(built, Compiled), built
    return built, {i: artifacts.get(digest).decode() for i, digest in enumerate(built.ptx)}


SPLIT = {**MMA, "TILE_M": 32, "TILE_N": 32, "TILE_K": 32, "STAGES": 3, "SPLIT": 2}
SPLIT_TRITON = {**TRITON, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "SPLIT": 2}
TWO_LAUNCHES = [("sm80/mma_multistage", SPLIT), ("triton/matmul", SPLIT_TRITON)]


@pytest.mark.parametrize(("seed", "values"), TWO_LAUNCHES)
def test_a_second_launch_that_waits_is_clean(seed, values, cache):
    result = run(compiled(seed, values, cache), m=40, n=48, k=128, align=16)
    assert len(result.emulated.statistics) == 2
    assert is_right(result)


@pytest.mark.parametrize(
    ("seed", "values", "wait", "nothing"),
    [
        (*TWO_LAUNCHES[0], "  grid_dependency_wait();\n", ""),
        (*TWO_LAUNCHES[1], "tl.extra.cuda.gdc_wait()", "pass"),
    ],
)
def test_a_second_launch_that_does_not_wait_is_found(seed, values, wait, nothing, cache):
    built = changed(seed, values, cache, wait, nothing)
    with pytest.raises(EmulationStopped) as stopped:
        run(built, m=40, n=48, k=128, align=16)
    assert stopped.value.finding.fault is Fault.IGNORES_DEPENDENCY
    assert "workspace" in stopped.value.finding.message
    first, second = stopped.value.statistics
    assert first.steps > second.steps > 0
    assert sum(second.mix.values()) <= second.steps


def test_before_sm_90_launches_never_overlap(cache):
    built = changed(*TWO_LAUNCHES[0], cache, "  grid_dependency_wait();\n", "", arch="sm_80")
    assert is_right(run(built, m=40, n=48, k=128, align=16))


def test_seeds_wait_where_their_first_launch_may_start_early(cache):
    hopper = changed("sm90a/wgmma_persistent", {**WGMMA, "CLUSTER": 1}, cache,
                     "\nargs ", "\npdl = true\nargs ")  # fmt: skip
    assert is_right(run(hopper, m=136, n=72, k=136, align=16))
    one = {**SPLIT, "SPLIT": 1}
    early = changed("sm80/mma_multistage", one, cache, '"SPLIT > 1"', "true")
    assert is_right(run(early, m=40, n=48, k=128, align=16))
