"""Bits, comparisons, choices and exchanges between lanes, as the PTX manual defines them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2tune.runtime.emulator.findings import EmulationStopped, Fault

words = st.lists(
    st.sampled_from([0, 1, 0x80000000, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF),
    min_size=32, max_size=32,
)  # fmt: skip
small = st.lists(st.integers(0, 80), min_size=32, max_size=32)
ALL = 0xFFFFFFFF


@given(a=words, b=words, c=words, table=st.integers(0, 255))
def test_lop3_looks_up_every_bit(run_one, a, b, c, table):
    inputs = {f"r{i}": np.array(v, "u4") for i, v in enumerate((a, b, c), 1)}
    found = run_one(f"lop3.b32 %r4, %r1, %r2, %r3, {table};", **inputs)["r4"]
    for x, y, z, d in zip(a, b, c, found.tolist(), strict=True):
        for bit in range(32):
            row = (x >> bit & 1) << 2 | (y >> bit & 1) << 1 | z >> bit & 1
            assert d >> bit & 1 == table >> row & 1


@given(a=words, n=small)
def test_shifts_past_the_width_shift_everything_out(run_one, a, n):
    found = run_one(
        "shl.b32 %r3, %r1, %r2; shr.u32 %r4, %r1, %r2; shr.s32 %r5, %r1, %r2;"
        "shf.l.clamp.b32 %r6, %r1, %r1, %r2; shf.r.wrap.b32 %r7, %r1, %r1, %r2;",
        r1=np.array(a, "u4"), r2=np.array(n, "u4"),
    )  # fmt: skip
    for i, (x, s) in enumerate(zip(a, n, strict=True)):
        signed = x - (1 << 32) if x >> 31 else x
        both = x << 32 | x
        assert int(found["r3"][i]) == x << s & ALL
        assert int(found["r4"][i]) == x >> s
        assert int(found["r5"][i]) == signed >> s & ALL
        assert int(found["r6"][i]) == both << min(s, 32) >> 32 & ALL
        assert int(found["r7"][i]) == both >> (s & 31) & ALL


def bfe(a, start, length, width, *, is_signed):
    """The manual's loop."""
    sign = a >> min(start + length - 1, width - 1) & 1 if is_signed and length else 0
    bits = [a >> start + i & 1 if i < length and start + i < width else sign for i in range(width)]
    return sum(bit << i for i, bit in enumerate(bits))


@given(a=words, start=small, length=small)
def test_fields_are_taken_out_and_put_in_bit_by_bit(run_one, a, start, length):
    found = run_one(
        "bfe.u32 %r4, %r1, %r2, %r3; bfe.s32 %r5, %r1, %r2, %r3; bfi.b32 %r6, %r1, %r7, %r2, %r3;"
        "cvt.u64.u32 %rd1, %r1; shl.b64 %rd1, %rd1, 20; bfe.s64 %rd2, %rd1, %r2, %r3;",
        r1=np.array(a, "u4"), r2=np.array(start, "u4"), r3=np.array(length, "u4"), r7=0x5A5A5A5A,
    )  # fmt: skip
    for i, (x, s, n) in enumerate(zip(a, start, length, strict=True)):
        assert int(found["r4"][i]) == bfe(x, s, n, 32, is_signed=False)
        assert int(found["r5"][i]) == bfe(x, s, n, 32, is_signed=True), (hex(x), s, n)
        assert int(found["rd2"][i]) == bfe(x << 20, s, n, 64, is_signed=True)
        field = ((1 << n) - 1) << s & ALL
        assert int(found["r6"][i]) == 0x5A5A5A5A & ~field | x << s & field


@given(a=words)
def test_counts(run_one, a):
    found = run_one(
        "clz.b32 %r2, %r1; popc.b32 %r3, %r1; brev.b32 %r4, %r1; bfind.u32 %r5, %r1;"
        "bfind.shiftamt.s32 %r6, %r1; cnot.b32 %r7, %r1;"
        "cvt.u64.u32 %rd1, %r1; shl.b64 %rd1, %rd1, 31; clz.b64 %r8, %rd1; bfind.u64 %r9, %rd1;",
        r1=np.array(a, "u4"),
    )
    for i, x in enumerate(a):
        places = x if not x >> 31 else ~x & ALL
        wanted = (
            32 - x.bit_length(), x.bit_count(), int(f"{x:032b}"[::-1], 2), x.bit_length() - 1 & ALL,
            32 - places.bit_length() if places else ALL, int(x == 0),
            64 - (x << 31).bit_length(), (x << 31).bit_length() - 1 & ALL,
        )  # fmt: skip
        assert tuple(int(found[f"r{n}"][i]) for n in range(2, 10)) == wanted, hex(x)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("prmt.b32 %r3, %r1, %r2, 0x5410;", 0x77883344),
        ("prmt.b32 %r3, %r1, %r2, 0x0123;", 0x44332211),
        ("prmt.b32 %r3, %r1, %r2, 0xC8F0;", 0xFF000044),
        ("prmt.b32.f4e %r3, %r1, %r2, 1;", 0x88112233),
        ("prmt.b32.rc16 %r3, %r1, %r2, 1;", 0x11221122),
        ("prmt.b32.b4e %r3, %r1, %r2, 0;", 0x77665544),
        ("bmsk.clamp.b32 %r3, 4, 8;", 0xFF0),
        ("bfe.u32 %r3, %r1, 8, 12;", 0x233),
        ("bfe.s32 %r3, 0xF80, 8, 4;", 0xFFFFFFFF),
        ("bfe.s32 %r3, 0x80000000, 24, 20;", 0xFFFFFF80),
        ("shl.b32 %r3, %r1, 33;", 0),
        ("shr.s32 %r3, 0x80000000, 40;", 0xFFFFFFFF),
        ("bmsk.wrap.b32 %r3, 36, 40;", 0xFF0),
        ("szext.clamp.s32 %r3, 0xF8, 4;", 0xFFFFFFF8),
        ("szext.clamp.u32 %r3, 0xF8, 4;", 8),
        ("not.b32 %r3, %r1;", 0xEEDDCCBB),
        ("selp.b32 %r3, %r1, %r2, %p1;", 0x11223344),
        ("selp.b32 %r3, %r1, %r2, !%p1;", 0x55667788),
        ("slct.u32.s32 %r3, %r1, %r2, -1;", 0x55667788),
        ("set.lt.u32.u32 %r3, %r1, %r2;", 0xFFFFFFFF),
        ("set.gt.f32.u32 %r3, %r2, %r1;", 0x3F800000),
    ],
)
def test_single_forms(run_one, text, wanted):
    found = run_one(text, r1=0x11223344, r2=0x55667788, p1=True)["r3"]
    assert hex(int(found[0])) == hex(wanted)


def test_unordered_comparisons_differ_only_at_nan(run_one):
    a = np.array([1, 2, np.nan, 1] * 8, np.float32)
    b = np.array([2, 2, 1, np.nan] * 8, np.float32)
    wanted = {
        "eq": [0, 1, 0, 0], "ne": [1, 0, 0, 0], "lt": [1, 0, 0, 0], "ge": [0, 1, 0, 0],
        "equ": [0, 1, 1, 1], "neu": [1, 0, 1, 1], "ltu": [1, 0, 1, 1], "geu": [0, 1, 1, 1],
        "num": [1, 1, 0, 0], "nan": [0, 0, 1, 1],
    }  # fmt: skip
    for name, expected in wanted.items():
        found = run_one(f"setp.{name}.f32 %p1, %f1, %f2;", f1=a, f2=b)["p1"]
        assert found[:4].astype(int).tolist() == expected, name


def test_setp_joins_both_results_with_a_predicate(run_one):
    third = np.arange(32) % 2 == 0
    found = run_one("setp.lt.and.s32 %p1|%p2, %r1, 0, !%p3;", r1=np.arange(32) - 16, p3=third)
    less = np.arange(32) < 16
    assert (found["p1"] == (less & ~third)).all()
    assert (found["p2"] == (~less & ~third)).all()


def test_signed_and_unsigned_comparisons(run_one):
    found = run_one("setp.lt.s32 %p1, %r1, 1; setp.lt.u32 %p2, %r1, 1; setp.hi.u32 %p3, %r1, 1;",
                    r1=ALL)  # fmt: skip
    assert [bool(found[name][0]) for name in ("p1", "p2", "p3")] == [True, False, True]


def test_halves_compare_each_to_its_predicate(run_one):
    found = run_one("setp.gt.f16x2 %p1|%p2, %r1, %r2;", r1=0x3C004000, r2=0x40003C00)
    assert (bool(found["p1"][0]), bool(found["p2"][0])) == (True, False)


@pytest.mark.parametrize(
    ("mode", "offset", "bounds", "source"),
    [
        ("idx", 3, 31, lambda i: 3),
        ("bfly", 1, 31, lambda i: i ^ 1),
        ("up", 1, 0, lambda i: max(i - 1, 0)),
        ("down", 2, 31, lambda i: i + 2 if i + 2 <= 31 else i),
        ("idx", 1, 0x181F, lambda i: (i & 24) | 1),
        ("down", 1, 0x181F, lambda i: i + 1 if i % 8 < 7 else i),
        ("up", 1, 0x1800, lambda i: i - 1 if i % 8 else i),
    ],
)
def test_shuffles(run_one, mode, offset, bounds, source):
    found = run_one(f"shfl.sync.{mode}.b32 %r2|%p1, %r1, {offset}, {bounds}, -1;", r1=np.arange(32))
    assert found["r2"].tolist() == [source(i) for i in range(32)]
    in_range = [mode in ("idx", "bfly") or source(i) != i for i in range(32)]
    assert found["p1"].tolist() == in_range


def test_votes_matches_and_reductions(run_one):
    found = run_one(
        "vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;"
        "vote.sync.all.pred %p3, !%p1, -1; vote.sync.uni.pred %p4, %p1, -1;"
        "match.any.sync.b32 %r3, %r1, -1; match.all.sync.b32 %r4|%p5, %r2, -1;"
        "redux.sync.add.u32 %r5, %r1, -1; redux.sync.min.s32 %r6, %r1, -1; activemask.b32 %r7;"
        "elect.sync %r8|%p6, -1;",
        p1=np.arange(32) < 3, r1=np.arange(32) % 4 - 1,
    )  # fmt: skip
    assert found["r2"][0] == 7
    assert [bool(found[p][0]) for p in ("p2", "p3", "p4", "p5")] == [True, False, False, True]
    assert found["r3"][5] == 0x22222222
    assert [int(found[r][0]) for r in ("r4", "r5", "r6", "r7")] == [ALL, 16, ALL, ALL]
    assert found["p6"].nonzero()[0].tolist() == [0]


def test_a_member_mask_that_leaves_out_an_executing_lane_is_found(run_one):
    with pytest.raises(EmulationStopped) as stopped:
        run_one("shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xFFFF;", r1=1)
    assert stopped.value.finding.fault is Fault.INVALID_USE
    assert stopped.value.finding.thread == 0
