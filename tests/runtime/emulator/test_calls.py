"""Functions that are not inlined: parameters, results, frames, recursion, and lanes that part."""

import numpy as np
import pytest
from ptx import execute, fault
from samples import CONTRACT, cuda_file

from l2tune import compile  # noqa: A004
from l2tune.runtime.emulator.findings import EmulationStopped, Fault
from l2tune.runtime.emulator.launch import emulate
from l2tune.runtime.emulator.parser import parse
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.spec.gpu import H200
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled
from l2tune.spec.problem import aligned_problem
from l2tune.store import Artifacts

FUNCTION = """
.func (.param .b32 out) {name} (.param .b32 in)
{{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  ld.param.u32 %r1, [in];
{body}
  st.param.b32 [out], %r1;
  ret;
}}
"""
STORE = "mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; st.global.u32 [%d1], %r1;"


def function(name: str, body: str) -> str:
    return FUNCTION.format(name=name, body=body)


def call(name: str, argument: str = "%r0", result: str = "%r1", guard: str = "") -> str:
    return f"""{{
  .param .b32 to; st.param.b32 [to], {argument};
  .param .b32 from; {guard} call.uni (from), {name}, (to);
  {guard} ld.param.b32 {result}, [from];
}}"""


def lanes(body: str, functions: str, **options) -> list[int]:
    target = np.zeros(32, np.uint32)
    execute(body + STORE, target, variables=functions, **options)
    return target.tolist()


def test_a_result_comes_back_to_each_place_that_called():
    body = call("twice") + call("twice", "%r1", "%r2") + "add.u32 %r1, %r1, %r2;"
    functions = function("twice", "add.u32 %r1, %r1, %r1; add.u32 %r1, %r1, 1;")
    assert lanes(body, functions) == [2 * i + 1 + 2 * (2 * i + 1) + 1 for i in range(32)]


def test_a_function_calls_another_that_is_defined_after_it():
    outer = function("outer", call("inner", "%r1", "%r2") + "add.u32 %r1, %r1, %r2;")
    functions = ".func (.param .b32 out) inner (.param .b32 in);" + outer
    functions += function("inner", "mul.lo.u32 %r1, %r1, 10; add.u32 %r1, %r1, 3;")
    assert lanes(call("outer"), functions) == [11 * i + 3 for i in range(32)]


FACTORIAL = """
  setp.lt.u32 %p1, %r1, 2;
  mov.u32 %r3, 1;
  @%p1 bra end;
  sub.u32 %r2, %r1, 1;
  {}
  mul.lo.u32 %r3, %r1, %r3;
end:
  mov.u32 %r1, %r3;
"""


def test_a_function_may_call_itself_and_keeps_its_registers():
    functions = function("factorial", FACTORIAL.format(call("factorial", "%r2", "%r3")))
    body = "and.b32 %r0, %r0, 7;" + call("factorial") + "mov.u32 %r0, %tid.x;"
    expected = [1, 1, 2, 6, 24, 120, 720, 5040] * 4
    assert lanes(body, functions) == expected


def test_calls_without_end_are_stopped():
    functions = function("again", call("again", "%r1", "%r1"))
    said = fault(call("again"), variables=functions)
    assert said.fault is Fault.RESOURCES
    assert "64 calls within each other" in said.message


@pytest.mark.parametrize("guard", ["", "@%p0"])
@pytest.mark.parametrize("seed", [None, 1])
def test_lanes_that_call_are_back_before_the_others_go_on(seed, guard):
    functions = function("plus", "add.u32 %r1, %r1, 100;")
    branch = "" if guard else "@!%p0 bra join;"
    body = "mov.u32 %r1, 1; setp.lt.u32 %p0, %r0, 5;" + branch + call("plus", guard=guard)
    body += "join: bar.sync 0; vote.sync.ballot.b32 %r3, 1, 0xffffffff; popc.b32 %r3, %r3;"
    body += "add.u32 %r1, %r1, %r3;"
    expected = [132 + i for i in range(5)] + [33] * 27
    assert lanes(body, functions, seed=seed) == expected


def test_lanes_come_to_one_function_from_two_places():
    functions = function("wide", "vote.sync.ballot.b32 %r2, 1, 0xffffffff; popc.b32 %r2, %r2;"
                                 "add.u32 %r1, %r1, %r2;")  # fmt: skip
    body = "setp.lt.u32 %p0, %r0, 5; @%p0 bra low;" + call("wide") + "add.u32 %r1, %r1, 1000;"
    body += "bra join; low:" + call("wide") + "join:"
    assert lanes(body, functions) == [i + 32 if i < 5 else i + 1032 for i in range(32)]


@pytest.mark.parametrize("reads", [False, True])
def test_a_function_does_not_see_what_an_earlier_call_left(reads):
    text = "setp.eq.u32 %p1, %r1, 7; @%p1 mov.u32 %r5, 1;"
    text += "@!%p1 add.u32 %r1, %r1, %r5;" if reads else ""
    body, functions = call("first", "7") + call("first", "8"), function("first", text)
    if reads:
        assert fault(body, variables=functions).fault is Fault.UNINITIALISED
    else:
        execute(body, variables=functions)


def test_a_frame_holds_no_value_before_it_is_written():
    text = ".local .align 4 .b8 depot[8]; {} ld.local.u32 %r1, [depot+4];"
    written = function("framed", text.format("st.local.u32 [depot+4], %r1;"))
    assert lanes(call("framed"), written) == list(range(32))
    unwritten = function("framed", text.format("st.local.u32 [depot], %r1;"))
    assert fault(call("framed"), variables=unwritten).fault is Fault.UNINITIALISED
    no_argument = ".param .b32 to; .param .b32 from; call.uni (from), framed, (to);"
    assert fault(no_argument, variables=written).fault is Fault.UNINITIALISED


def test_what_is_not_in_the_module_is_refused():
    for text in ("call.uni (from), malloc, (to);", "call (from), %d1, (to);"):
        with pytest.raises(UnsupportedInstructionError):
            execute(".param .b32 to; .param .b32 from;" + text)
    parse(function("alone", ""))


def test_printing_does_nothing_and_returns_zero():
    body = ".param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], 0;"
    body += "st.param.b64 [p1], 0; call.uni (r0), vprintf, (p0, p1); ld.param.b32 %r1, [r0];"
    assert lanes(body, "") == [0] * 32


CUDA = """#include <cuda_fp16.h>
struct Pair { int x; float y[3]; char z; };
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ __noinline__ Pair change(Pair p, int i) { p.y[i % 3] += 2.f; p.z = i; return p; }
__device__ __noinline__ void put(half* c, int i, half v) { c[i] = v; __syncthreads(); }
extern "C" __global__ void gemm(half* c, int m) {
  const int i = threadIdx.x;
  Pair p{i, {1.f, 2.f, 3.f}, 3};
  p = change(p, m + i);
  float sum = p.x + p.y[0] + p.y[1] + p.y[2] + p.z;
  if (i % 2) sum += fib(i % 7);
  if (i > 300) printf("%d %f", i, sum);
  put(c, i, __float2half(sum));
}
"""
FIB = [0, 1, 1, 2, 3, 5, 8]


def test_functions_as_the_compiler_makes_them(tmp_path):
    artifacts = Artifacts(tmp_path)
    source = KernelSource(text=cuda_file(CONTRACT, body=CUDA), arch="sm_90a")
    built = compile.compile_kernel(source, artifacts)
    assert isinstance(built, Compiled), built
    problem = aligned_problem(m=1, n=256, k=1, batch=1, layout="nn", align=16)
    c = np.zeros(256, np.uint16)
    operands = {"a": np.zeros(8, np.uint16), "b": np.zeros(256, np.uint16), "c": c}
    ptx = artifacts.get(built.ptx[0]).decode()
    assert ".func" in ptx
    assert ptx.count("call.uni") >= 5
    emulate(built, {0: ptx}, problem, H200, operands)
    chars = np.arange(1, 257).astype(np.int8).astype(int)
    expected = [i + 8 + chars[i] + (FIB[i % 7] if i % 2 else 0) for i in range(256)]
    assert c.view(np.float16).tolist() == expected


def test_a_finding_in_a_function_names_its_line():
    functions = function("bad", "st.shared.u32 [%r1], %r1;")
    with pytest.raises(EmulationStopped) as stopped:
        execute(call("bad"), variables=functions)
    assert stopped.value.finding.instruction == "st.shared.u32 [%r1], %r1;"
