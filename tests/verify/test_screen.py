"""What a kernel file's text may not hold; and every file that ships passes."""

import pytest

from l2tune import compile, generate  # noqa: A004
from l2tune.spec.header import parse
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.outcome import Finding
from l2tune.verify import screen

CUDA = """/*---l2tune
id     = "test/screen"
arch   = ["sm_80"]
dtype  = ["f16"]
layout = ["nn"]
[[launch]]
kernel = "gemm"
grid   = [1, 1, 1]
args   = ["c"]
---*/
"""
KERNEL = 'extern "C" __global__ void gemm(short* c) { c[0] = 1; }\n'
TRITON = """# /// l2tune
# id     = "test/screen"
# arch   = ["sm_80"]
# dtype  = ["f16"]
# layout = ["nn"]
# [[launch]]
# kernel = "gemm"
# grid   = [1, 1, 1]
# args   = ["c"]
# ///
import triton
import triton.language as tl
"""


def verdict(text: str) -> Finding | None:
    refused = screen(KernelSource(text=text, arch="sm_80"))
    return None if refused is None else refused.finding


REFUSED = {
    "another header": ('#include "secret.h"', Finding.INCLUDE),
    "a file of the machine": ("#include </etc/hostname>", Finding.INCLUDE),
    "a path out of CUDA's headers": ("#include <cuda/../../secret>", Finding.INCLUDE),
    "an include behind a comment": ("/**/#include </etc/hostname>", Finding.INCLUDE),
    "an include with a comment inside": ("#/**/include </etc/hostname>", Finding.INCLUDE),
    "an include over two lines": ("#inc\\\nlude </etc/hostname>", Finding.INCLUDE),
    "an include by digraph": ("%:include </etc/hostname>", Finding.INCLUDE),
    "an include by macro": ("#define F </etc/hostname>\n#include F", Finding.INCLUDE),
    "an include behind a quote character": (
        "constexpr char q = '\"';\n'\"'; '/*'; '\"';\n#include </etc/hostname>\n// */",
        Finding.INCLUDE,
    ),
    "an include behind a digit separator": (
        "constexpr int n = 1'000; // '\n#include </etc/hostname>", Finding.INCLUDE,
    ),
    "embed": ("#embed </etc/hostname>", Finding.INCLUDE),
    "include_next": ("#include_next <cuda_fp16.h>", Finding.INCLUDE),
    "line": ("#line 1", Finding.INCLUDE),
    "a raw string": ('const char* s = R"(")";', Finding.HOST_CODE),
    "a look at what exists": ("#if __has_include(<x>)\n#endif", Finding.HOST_CODE),
    "a host function": ("__host__ void f() {}", Finding.HOST_CODE),
    "a host function over two lines": ("__ho\\\nst__ void f() {}", Finding.HOST_CODE),
    "std": ("std::vector<int> v;", Finding.HOST_CODE),
    "printf": ('__device__ void f() { printf("x"); }', Finding.HOST_CODE),
    "malloc": ("__device__ void f() { malloc(1); }", Finding.HOST_CODE),
    "new": ("__device__ void f() { new int; }", Finding.HOST_CODE),
    "a launch": ("__device__ void f() { gemm<<<1, 1>>>(0); }", Finding.HOST_CODE),
    "the runtime": ("void f() { cudaMemcpy(0, 0, 0); }", Finding.HOST_CODE),
    "main": ("int main() {}", Finding.HOST_CODE),
    "the date": ("const char* d = __DATE__;", Finding.HOST_CODE),
    "an external variable": ("extern int secret;", Finding.HOST_CODE),
    "a global in assembly": ('__device__ void f() { asm(".global .u32 x;"); }', Finding.HOST_CODE),
    "a global in pieces": ('__device__ void f() { asm(".glo" "bal .u32 x;"); }', Finding.HOST_CODE),
    "a global in escapes": (r'__device__ void f() { asm("\x2eglobal"); }', Finding.HOST_CODE),
    "a file in assembly": ('__device__ void f() { asm(".incbin \\"x\\""); }', Finding.HOST_CODE),
    "too many bytes": ("// " + "x" * 400_000, Finding.SIZE),
    "too many lines": ("\n" * 6001, Finding.SIZE),
}  # fmt: skip
ACCEPTED = {
    "plain": "",
    "CUDA's own headers": "#include <cuda_fp16.h>\n#include <mma.h> // a\n#include <cuda/barrier>",
    "forbidden words in comments": "// std::vector, printf(), #include <x>\n/* main() malloc() */",
    "shared memory": '__device__ void f() { extern __shared__ int s[]; (void)s; }',
    "a digit separator": "constexpr int n = 1'000'000;  // it's a number",
    "a long macro": "#define F(x) \\\n  (x)\n#pragma unroll",
    "assembly": '__device__ void f() { asm volatile("mov.u32 %0, %%laneid;\\n\\t" ::: "memory"); }',
}  # fmt: skip
TRITON_REFUSED = {
    "os": "import os",
    "from": "from pathlib import Path",
    "eval": "@triton.jit\ndef gemm(c):\n    eval('1')",
    "dunder": "x = ().__class__",
    "open": "x = open('/etc/hostname')",
}


@pytest.mark.parametrize(("body", "finding"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_plain_device_code_is_refused(body, finding):
    assert verdict(CUDA + body + "\n" + KERNEL) is finding


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_what_device_code_needs_is_accepted(body):
    assert verdict(CUDA + body + "\n" + KERNEL) is None


@pytest.mark.parametrize("body", TRITON_REFUSED.values(), ids=TRITON_REFUSED)
def test_a_triton_file_with_host_code_is_refused(body):
    assert verdict(TRITON + body + "\n") in (Finding.HOST_CODE, Finding.INCLUDE)


@pytest.mark.parametrize("name", sorted(p.name for p in generate.include_dir().glob("l2/*.cuh")))
def test_every_header_of_ours_is_accepted(name):
    text = compile.flatten(f'{CUDA}#include "l2/{name}"\n{KERNEL}', generate.include_dir())
    assert verdict(text) is None


@pytest.mark.parametrize("seed_id", generate.seed_texts())
def test_every_seed_is_accepted(seed_id):
    text = generate.seed_text(seed_id)
    header = parse(text)[1]
    settled = instantiate(text, {n: v[0] for n, v in header.tune.items() if isinstance(v, tuple)})
    flat = compile.flatten(settled, generate.include_dir())
    assert screen(KernelSource(text=flat, arch=header.arch[0])) is None
