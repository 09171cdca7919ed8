"""PTX of this project's seeds, and the corners of the language that CUDA C++ can reach."""

import pytest
from seeds import MMA, TRITON, WGMMA

from l2tune import compile, generate  # noqa: A004
from l2tune.runtime.emulator import parser
from l2tune.runtime.emulator.operand_syntax import SINK
from l2tune.runtime.emulator.program import (
    Address,
    Immediate,
    Label,
    Negated,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.outcome import Compiled
from l2tune.store.artifacts import Artifacts

SEEDS = [
    ("sm80/naive", {}, "sm_80"),
    ("sm80/tiled", {}, "sm_80"),
    ("sm80/mma_multistage", {**MMA, "SPLIT": 2}, "sm_80"),
    ("sm90a/wgmma_persistent", {**WGMMA, "CLUSTER": 2}, "sm_90a"),
    ("triton/matmul", TRITON, "sm_90a"),
]


def kernel(body, head="", params=""):
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n{head}\n"
    text += f".visible .entry k({params})\n{{\n{body}\n}}\n"
    return parser.parse(text).kernels["k"]


@pytest.mark.parametrize(("seed", "values", "arch"), SEEDS)
def test_every_instruction_of_a_seed_keeps_its_text_and_line(tmp_path, seed, values, arch):
    text = compile.flatten(instantiate(generate.seed_text(seed), values), generate.include_dir())
    artifacts = Artifacts(tmp_path)
    built = compile.compile_kernel(KernelSource(text=text, arch=arch), artifacts)
    assert isinstance(built, Compiled), built
    for digest in built.ptx:
        ptx = artifacts.get(digest).decode()
        module = parser.parse(ptx)
        assert module.target in (arch, "sm_90a")
        lines = ptx.splitlines()
        for one in module.kernels.values():
            assert one.max_threads > 0
            assert all(i.opcode in lines[i.line - 1] for i in one.instructions)
            assert all(0 <= at <= len(one.instructions) for at in one.labels.values())
    assert {launch.kernel for launch in built.launches} <= {
        name
        for digest in built.ptx
        for name in parser.parse(artifacts.get(digest).decode()).kernels
    }


def test_operands_of_every_shape():
    body = """
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .f32 %f1;
    .shared .align 8 .b8 tile[64];
    ld.global.v2.u32 {%r1, _}, [%rd1+-16];
    st.shared.u32 [tile+8], 0xFFFFFFFFU;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];
    setp.lt.s32 %p1|%p2, %r1, -5;
    selp.f32 %f1, 0f3F800000, 0f00000000, !%p1;
    mov.u32 %r1, %ctaid.y;
    mov.u64 %rd1, tile+4;
    shfl.sync.idx.b32 %r1|_, %r2, 0, 31, -1;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    """
    found = [i.operands for i in kernel(body).instructions]
    r1, r2, r3 = (register(found, name) for name in ("%r1", "%r2", "%r3"))
    rd1, p1, p2 = (register(found, name) for name in ("%rd1", "%p1", "%p2"))
    assert found[0] == (Vector((r1, None)), Address(rd1, -16))
    assert found[1] == (Address(Symbol("tile"), 8), Immediate(0xFFFFFFFF))
    assert found[2] == (Address(rd1, 0, (r1, r2)), Address(r3))
    assert found[3] == (Pair(p1, p2), r1, Immediate(-5))
    assert found[4][1:] == (Immediate(0x3F800000, True, 32), Immediate(0, True, 32), Negated(p1))
    assert found[5] == (r1, Special("%ctaid.y"))
    assert found[6] == (rd1, Symbol("tile", 4))
    assert (found[7][0], found[8]) == (Pair(r1, None), (SINK, Address(r1)))


def register(found, name):
    """The register of that name, wherever it stands."""

    def inside(operand):
        if isinstance(operand, Register):
            yield operand
        for part in ("items", "extra"):
            for item in getattr(operand, part, ()):
                yield from inside(item)
        for part in ("base", "first", "second", "register"):
            if (item := getattr(operand, part, None)) is not None:
                yield from inside(item)

    return next(r for line in found for o in line for r in inside(o) if r.name == name)


def test_names_of_inline_assembly_stay_in_their_braces():
    block = "{.reg.pred p; again: setp.ne.b32 p, %r1, 0; @!p bra again; bra done; done: }"
    found = kernel(f".reg .b32 %r<2>;\n{block}\n{block}\nret;")
    first, second = (found.instructions[i] for i in (0, 3))
    assert first.operands[0].name == second.operands[0].name == "p"
    assert first.operands[0].slot != second.operands[0].slot
    assert found.instructions[4].guard == (second.operands[0], True)
    targets = [found.labels[found.instructions[i].operands[0].name] for i in (1, 2, 4, 5)]
    assert targets == [0, 3, 3, 6]


def test_branch_lists_stand_for_their_labels():
    found = kernel(
        ".reg .b32 %r1;\ntable: .branchtargets one, two;\nbrx.idx %r1, table;\none: ret;\ntwo: ret;"
    )
    assert found.instructions[0].operands[1] == Vector((Label("one"), Label("two")))
    assert (found.labels["one"], found.labels["two"]) == (1, 2)


def test_variables_have_sizes_alignments_and_first_values():
    module = parser.parse(
        ".version 9.0\n.target sm_90a\n.address_size 64\n"
        ".global .align 4 .u32 count = 7;\n.const .align 8 .f32 table[3] = {0f3F800000, -2};\n"
        ".extern .shared .align 16 .b8 dynamic[];\n.global .align 2 .b16 grid[2][3];\n"
        ".visible .entry k(.param .align 64 .b8 map[128], .param .u64 .ptr .global .align 1 a)\n"
        ".maxntid 64, 2, 1\n.minnctapersm 1\n.reqnctapercluster 2, 1, 1\n.explicitcluster\n"
        "{ .local .align 16 .b8 depot[48]; ret; }\n"
    )
    found = {v.name: (v.space, v.size_bytes, v.align_bytes) for v in module.variables.values()}
    assert found == {"count": ("global", 4, 4), "table": ("const", 12, 8),
                     "dynamic": ("shared", 0, 16), "grid": ("global", 12, 2)}  # fmt: skip
    assert module.variables["count"].initial == b"\7\0\0\0"
    one = module.kernels["k"]
    assert [(p.name, p.size_bytes, p.align_bytes) for p in one.params] == [
        ("map", 128, 64), ("a", 8, 8),
    ]  # fmt: skip
    assert (one.max_threads, one.cluster) == (128, (2, 1, 1))
    assert one.variables[0].size_bytes == 48


def test_source_lines_follow_loc_and_debug_sections_are_passed_over():
    text = (
        ".version 9.0\n.target sm_90a, debug\n.address_size 64\n"
        ".visible .entry k()\n{ // a comment; with { braces\n.reg .b32 %r1;\n"
        ".loc 1 20 3\nmov.u32 %r1, 1;\n.loc 1 22 3, function_name $L__info, inlined_at 1 5 1\n"
        '.pragma "nounroll";\nret; /* two\nlines */ }\n.func helper() { ret; }\n'
        '.file 1 "gemm.cu"\n.section .debug_str { $L__info: .b8 95, 0 }\n'
    )
    first, second = parser.parse(text).kernels["k"].instructions
    assert (first.line, first.source_line) == (8, ("gemm.cu", 20))
    assert (second.line, second.source_line, second.text) == (11, ("gemm.cu", 22), "ret;")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %r1, 1;", "PTX line 7: %r1 is no register declared"),
        (".reg .b32 %r1;\nmov.u32 %r1, #;", "PTX line 8: '#' starts no token"),
        (".reg .b32 %r1;\nmov.u32 %r1, 1", "PTX line 9: found '}', expected ';'"),
        (".reg .b99x %r1;", "PTX line 7: "),
        (".reg .b32 %r1;\n@%p1 bra x;", "PTX line 8: the guard is no predicate register"),
        (".strange 1;", "PTX line 7: '.strange' is no directive"),
    ],
)
def test_errors_name_the_line(body, message):
    with pytest.raises(parser.PtxSyntaxError, match=message.replace("(", "[(]")):
        kernel(body)


def test_a_text_that_ends_early_is_an_error():
    with pytest.raises(parser.PtxSyntaxError, match="PTX line 4: "):
        parser.parse(".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k() {")
