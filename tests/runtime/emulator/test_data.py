"""Moves, loads, stores, address conversion and atomics; memory's checks are tested with memory."""

import numpy as np
import pytest

from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.runtime.emulator.spaces import CONST, LOCAL, PARAM, RANK_BYTES, SHARED

LANES = np.arange(32)


def test_mov_packs_and_unpacks_the_first_part_lowest(run_one):
    found = run_one(
        "mov.b32 %r1, {%rs1, %rs2}; mov.b32 {%rs3, _}, %r1; mov.b64 %rd1, {%r1, %r2};"
        "mov.b64 {_, %r3}, %rd1; mov.b64 %rd2, {%rs1, %rs2, %rs1, %rs2}; mov.f32 %f1, 0f3F800000;"
        "mov.pred %p1, 1; mov.b32 %r4, %f1; mov.u32 %r5, -1; mov.f64 %fd1, 0d3FF0000000000000;",
        rs1=0x1111, rs2=0x2222, r2=0x33334444,
    )  # fmt: skip
    wanted = {"r1": 0x22221111, "rs3": 0x1111, "rd1": 0x3333444422221111, "r3": 0x33334444,
              "rd2": 0x2222111122221111, "r4": 0x3F800000, "p1": 1, "r5": 0xFFFFFFFF,
              "fd1": 0x3FF0000000000000}  # fmt: skip
    assert {name: int(found[name][7]) for name in wanted} == wanted


def test_mov_reads_special_registers_and_addresses(run_one):
    found = run_one("mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u64 %rd1, tile+8;")
    assert found["r1"].tolist() == LANES.tolist()
    assert (found["r2"][3], found["rd1"][3]) == (64, 72)


def test_parameters_are_read_by_name(run_one):
    found = run_one(
        "ld.param.u64 %rd1, [first]; ld.param.u32 %r1, [first+4]; ld.param.u32 %r2, [second];"
        "ld.param.v2.u32 {%r3, %r4}, [first];"
    )
    wanted = {"rd1": 0x1122334455667788, "r1": 0x11223344, "r2": 77, "r3": 0x55667788,
              "r4": 0x11223344}  # fmt: skip
    assert {name: int(found[name][0]) for name in wanted} == wanted


def test_stores_and_loads_of_every_width_and_vector(lab):
    lab.run(
        "st.global.v4.b32 [%rd1], {%r1, %r1, %r2, %r2}; ld.global.nc.v2.b64 {%rd2, %rd3}, [%rd1];"
        "ld.global.u8 %rs1, [%rd1+1]; ld.global.s8 %rs2, [%rd1+8]; ld.global.s16 %r3, [%rd1+8];"
        "ld.global.L1::evict_last.L2::128B.b16 %rs3, [%rd1]; st.global.u8 [%rd1+32], %rs2;"
        "ld.global.u32 %r4, [%rd1+32];",
        rd1=LANES * 64, r1=0x01020304, r2=0xFFFEFDFC,
    )  # fmt: skip
    wanted = {"rd2": 0x0102030401020304, "rd3": 0xFFFEFDFCFFFEFDFC, "rs1": 3, "rs2": 0xFFFC,
              "r3": 0xFFFFFDFC, "rs3": 0x0304, "r4": 0xFC}  # fmt: skip
    assert {name: int(lab[name][31]) for name in wanted} == wanted
    assert {space for _, space, _ in lab.memory.calls} == {"global"}


def test_strong_accesses_are_passed_on_as_such(lab):
    lab.run(
        "ld.volatile.shared.u32 %r1, [tile]; ld.acquire.gpu.global.u32 %r1, [%rd1];"
        "ld.relaxed.sys.global.u32 %r1, [%rd1]; st.release.gpu.u32 [%rd1], %r1;"
        "ld.weak.global.u32 %r1, [%rd1]; st.shared::cluster.u32 [%r1], %r1;",
        rd1=128,
    )
    assert [call for call in lab.memory.calls] == [
        ("load", "shared", True), ("load", "global", True), ("load", "global", True),
        ("store", "generic", True), ("load", "global", False), ("store", "shared::cluster", False),
    ]  # fmt: skip


def test_32_bytes_a_lane_are_two_accesses(lab):
    lab.run(
        "st.global.v8.b32 [%rd1], {%r1, %r2, %r1, %r2, %r1, %r2, %r1, %r2};"
        "ld.global.v4.b64 {%rd2, _, _, %rd3}, [%rd1];",
        rd1=LANES * 32, r1=1, r2=2,
    )  # fmt: skip
    assert int(lab["rd3"][5]) == 0x200000001
    assert [name for name, *_ in lab.memory.calls] == ["store", "store", "load", "load"]


@pytest.mark.parametrize(
    ("space", "base"),
    [("shared", SHARED + RANK_BYTES), ("local", LOCAL), ("param", PARAM), ("const", CONST),
     ("global", 0), ("shared::cluster", SHARED - RANK_BYTES)],
)  # fmt: skip
def test_generic_addresses_and_back(lab, space, base):
    lab.rank = 1
    lab.run(
        f"cvta.{space}.u64 %rd2, %rd1; cvta.to.{space}.u64 %rd3, %rd2; isspacep.{space} %p1, %rd2;",
        rd1=0x7000_0000_0040 if space == "global" else 2 * RANK_BYTES - 64,
    )
    assert int(lab["rd2"][0]) == int(lab["rd1"][0]) + base
    assert (lab["rd3"] == lab["rd1"]).all()
    assert lab["p1"].all() or space == "shared"


def test_atomics_go_lane_by_lane(lab):
    lab.run(
        "atom.global.add.u32 %r2, [%rd1], %r1; atom.shared.cas.b32 %r3, [256], 0, %r1;"
        "atom.global.max.s32 %r4, [512], %r5; red.global.add.f32 [768], 0f3F000000;"
        "atom.global.exch.b64 %rd2, [1024], %rd3; red.relaxed.gpu.global.inc.u32 [1280], 4;"
        "red.global.add.noftz.f16x2 [1536], %r6; red.global.add.v2.f32 [1792], {%f1, %f1};",
        rd1=0, r1=LANES + 1, r5=LANES - 40, rd3=LANES, r6=0x3C004000, f1=np.float32(2),
    )  # fmt: skip
    words = lab.memory.bytes.view(np.uint32)
    assert lab["r2"].tolist() == [i * (i + 1) // 2 for i in range(32)]
    assert words[0] == 32 * 33 // 2
    assert words[64] == 1, "only the first lane finds 0"
    assert lab["r3"].tolist() == [0] + [1] * 31
    assert words[128] == 0
    assert words[192] == np.float32(16).view(np.uint32)
    assert lab["rd2"].tolist() == [0, *range(31)]
    assert words[320] == 32 % 5
    assert words[384] == 0x50005400
    assert words[448:450].view(np.float32).tolist() == [64, 64]


def test_an_undefined_register_is_found(run_one):
    with pytest.raises(EmulationStopped, match="%r2 is read before it is written") as stopped:
        run_one("add.s32 %r1, %r2, 1;")
    assert stopped.value.finding.fault is Fault.UNINITIALISED


def test_a_trap_is_found(run_one):
    with pytest.raises(EmulationStopped, match="the kernel runs trap"):
        run_one("trap;")


def test_hints_do_nothing(lab):
    lab.run("prefetch.global.L2 [%rd1]; discard.global.L2 [%rd1], 128; pmevent 1;"
            "prefetch.tensormap [%rd1]; applypriority.global.L2::evict_normal [%rd1], 128;"
            "createpolicy.fractional.L2::evict_first.b64 %rd2, 0f3F800000;", rd1=0)  # fmt: skip
    assert lab.memory.calls == []


@pytest.mark.parametrize(
    "text",
    ["tex.2d.v4.f32.s32 %r1, %r2;", "add.s128 %r1, %r2, %r3;", "ld.global.strange.u32 %r1, [%rd1];",
     "cvt.rn.e4m3x2.f32 %rs1, %f1, %f2;", "add.s32 %r1, %r2;"],
)  # fmt: skip
def test_what_is_not_known_is_refused_with_its_line(run_one, text):
    with pytest.raises(UnsupportedInstructionError, match=r"PTX line \d+: '.*' is not known"):
        run_one(text)
