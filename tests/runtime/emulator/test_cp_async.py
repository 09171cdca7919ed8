"""`cp.async`: what arrives, when, and what happens to those who do not wait."""

import numpy as np
import pytest
from emulation import fault, launch, store_words
from hypothesis import given, settings
from hypothesis import strategies as st

from l2tune.runtime.emulator.findings import Fault

SOURCE = np.arange(32 * 16, dtype=np.uint8) + 1
ADDRESS = (
    "mul.wide.u32 %rd20, %r0, {width}; add.s64 %rd20, %rd20, %rd0; mul.lo.u32 %r2, %r0, {width};\n"
)
WORDS = ["%r10", "%r11", "%r12", "%r13"]


def copied(text, width, wait="cp.async.wait_all;"):
    out = np.zeros(32 * 16, dtype=np.uint8)
    body = ADDRESS.format(width=width) + text + wait + "bar.sync 0; shl.b32 %r3, %r0, 4;"
    body += f"ld.shared.v4.b32 {{{', '.join(WORDS)}}}, [%r3];" + store_words(WORDS)
    filling = "shl.b32 %r3, %r0, 4; st.shared.v4.b32 [%r3], {-1, -1, -1, -1}; bar.sync 0;"
    launch(filling + body, (SOURCE, "input"), (out, "output"), target="sm_80")
    return out


@pytest.mark.parametrize(("cache", "width"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
def test_every_size_arrives(cache, width):
    out = copied(f"cp.async.{cache}.shared.global [%r2], [%rd20], {width};", width)
    np.testing.assert_array_equal(out[: 32 * width], SOURCE[: 32 * width])
    assert (out[32 * width :] == 255).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 16))
def test_bytes_past_the_source_size_are_zero(size):
    out = copied(f"cp.async.cg.shared.global [%r2], [%rd20], 16, {size};", 16).reshape(32, 16)
    np.testing.assert_array_equal(out[:, :size], SOURCE.reshape(32, 16)[:, :size])
    assert not out[:, size:].any()


def test_an_ignored_source_is_zero_and_not_read():
    text = """setp.ge.u32 %p1, %r0, 8;
      @%p1 mov.u64 %rd20, 0;
      cp.async.cg.shared.global [%r2], [%rd20], 16, %p1;"""
    out = copied(text, 16).reshape(32, 16)
    np.testing.assert_array_equal(out[:8], SOURCE.reshape(32, 16)[:8])
    assert not out[8:].any()


TWO = """cp.async.cg.shared.global [%r2], [%rd20], 16;
  cp.async.commit_group;
  cp.async.cg.shared.global [%r2+512], [%rd20], 16;
  cp.async.commit_group;
  cp.async.wait_group {pending};
  ld.shared.b32 %r10, [%r2+{offset}];
  {rest}"""


def groups(pending, offset, rest="cp.async.wait_all;"):
    return ADDRESS.format(width=16) + TWO.format(pending=pending, offset=offset, rest=rest)


def test_wait_group_leaves_the_newest_groups_under_way():
    launch(groups(1, 0), (SOURCE, "input"))
    launch(groups(0, 512), (SOURCE, "input"))
    assert fault(groups(1, 512), (SOURCE, "input")) is Fault.SHARED_RACE
    assert fault(groups(2, 0), (SOURCE, "input")) is Fault.SHARED_RACE


def test_a_copy_under_way_when_the_kernel_ends_harms_nobody():
    launch(groups(1, 0, rest=""), (SOURCE, "input"))


def test_another_warp_needs_a_barrier_after_the_wait():
    body = (
        ADDRESS.format(width=16)
        + """cp.async.cg.shared.global [%r2], [%rd20], 16;
      cp.async.wait_all;
      {barrier}
      xor.b32 %r3, %r2, 512;
      ld.shared.b32 %r10, [%r3];"""
    )
    twice = np.concatenate([SOURCE, SOURCE])
    launch(body.format(barrier="bar.sync 0;"), (twice, "input"), threads=64)
    early = fault(body.format(barrier=""), (twice, "input"), threads=64)
    assert early in (Fault.SHARED_RACE, Fault.UNINITIALISED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.u32 %r2, %r2, 8; cp.async.cg.shared.global [%r2], [%rd20], 16;", Fault.MISALIGNED),
        ("add.s64 %rd20, %rd20, 8; cp.async.cg.shared.global [%r2], [%rd20], 16;",
         Fault.MISALIGNED),
        ("add.s64 %rd20, %rd20, 16; cp.async.cg.shared.global [%r2], [%rd20], 16;",
         Fault.OUT_OF_BOUNDS),
        ("cp.async.cg.shared.global [%r2+3600], [%rd20], 16; cp.async.wait_all;",
         Fault.OUT_OF_BOUNDS),
        ("cp.async.cg.shared.global [%r2], [%rd20], 16, 17;", Fault.INVALID_USE),
    ],
)  # fmt: skip
def test_a_bad_address_is_found(text, expected):
    assert fault(ADDRESS.format(width=16) + text, (SOURCE, "input")) is expected


def test_an_mbarrier_can_stand_for_the_wait():
    out = np.zeros(32, dtype=np.uint32)
    body = (
        ADDRESS.format(width=16)
        + """
      setp.eq.u32 %p1, %r0, 0;
      @%p1 mbarrier.init.shared::cta.b64 [2048], 32;
      bar.sync 0;
      cp.async.cg.shared.global [%r2], [%rd20], 16;
      cp.async.mbarrier.arrive.noinc.shared::cta.b64 [2048];
    wait:
      mbarrier.try_wait.parity.shared::cta.b64 %p2, [2048], 0;
      @!%p2 bra wait;
      xor.b32 %r3, %r2, 16;
      ld.shared.b32 %r10, [%r3];
    """
        + store_words(["%r10"])
    )
    launch(body, (SOURCE, "input"), (out, "output"))
    np.testing.assert_array_equal(
        out, SOURCE.view(np.uint32)[::4].reshape(-1, 2)[:, ::-1].reshape(-1)
    )
