"""The child that compiles Triton: what it refuses to import, and what it answers."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from l2tune.compile import triton_child
from l2tune.compile.divisors import proven_divisors
from l2tune.spec.kernel import KernelSource, instantiate

ROOT = Path(__file__).parents[2]
SEED = (ROOT / "kernels_seed" / "triton" / "matmul.py").read_text()
SETTLED = {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 64, "GROUP_M": 8, "SPLIT": 32, "VECTOR": 8}
SETTLED |= {"PERSISTENT": 0, "EVEN_K": 0, "NUM_WARPS": 4, "NUM_STAGES": 4}
HEAD = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(a):\n    "


def compile_in_child(folder: Path, source: KernelSource, **changes: object) -> dict:
    names = source.tunables
    request = {
        "text": source.text,
        "path": [entry for entry in sys.path if entry],
        "memory_bytes": 4 << 30,
        "cpu_seconds": 60,
        "dtype": "f16",
        "capability": {"sm_90a": 90, "sm_80": 80}[source.arch],
        "constexprs": source.defines,
        "divisible": proven_divisors(source.header.requires, {**names, **source.picks}),
        "launches": [
            {
                "kernel": launch.kernel,
                "args": list(launch.args),
                "num_warps": launch.num_warps(names),
                "num_stages": launch.num_stages(names),
                "pdl": source.is_dependent(launch),
            }
            for launch in source.header.launch
        ],
    }
    child = subprocess.run(
        [sys.executable, "-I", triton_child.__file__],
        input=json.dumps(request | changes),
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return json.loads(child.stdout)


@pytest.mark.parametrize(
    ("arch", "instruction"), [("sm_90a", "wgmma.mma_async"), ("sm_80", "mma.sync.aligned.m16n8k16")]
)
def test_seed_compiles_to_cubins_without_a_gpu(tmp_path, arch, instruction):
    source = KernelSource(text=instantiate(SEED, SETTLED), arch=arch, layout="nt")
    reply = compile_in_child(tmp_path, source)
    assert reply["ok"], reply["log"]
    product, reduction = reply["launches"]
    assert base64.b64decode(product["cubin_b64"]).startswith(b"\x7fELF")
    assert instruction in product["ptx"]
    assert "cp.async.cg" in product["ptx"], "loads are not 16 bytes wide; the divisors got lost"
    assert ("griddepcontrol.wait" in reduction["ptx"]) == (arch == "sm_90a")
    assert (product["block"], product["args_tail"]) == (128, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_contract_that_does_not_fit_the_function_is_refused(tmp_path):
    source = KernelSource(text=instantiate(SEED, SETTLED), arch="sm_90a")
    launch = {"kernel": "reduce", "args": ["c"], "num_warps": 4, "num_stages": 1, "pdl": False}
    reply = compile_in_child(tmp_path, source, launches=[launch])
    assert reply["kind"] == "refused"
    assert "args are ['c']" in reply["log"]


def test_the_seed_passes_the_screen():
    triton_child.screen(SEED)


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "print(1)",
        "x = 1",
        "class A: pass",
        "import triton.language as tl, os",
        "from triton import jit",
        "def f(): pass",
        "@triton.jit\n@triton.jit\ndef f(): pass",
        "@triton.jit\ndef f(a=print(1)): pass",
        "@triton.jit\ndef f(a: print(1)): pass",
        "@triton.jit\ndef f() -> print(1): pass",
        "@triton.jit\ndef tl(): pass",
        "@triton.jit\ndef f(tl): pass",
        "\f@triton.jit\ndef f(): pass",
        *(
            HEAD + body
            for body in (
                "import os",
                "tl.core.os",
                "tl.inline_asm_elementwise('', '', [], 0, True, 1)",
                "tl.extra.cuda.globaltimer()",
                "tl.load.__globals__",
                "x = tl\n    x.core",
                "triton.runtime",
                "a.handle",
                "getattr(tl, 'core')",
                "print(a)",
                "tl.device_print('', a)",
                "[a for a in a]",
                "lambda: a",
                "f'{a}'",
                "def g(): pass",
                "range = a",
                "global tl",
            )
        ),
    ],
)
def test_what_could_run_on_the_host_is_refused(text):
    with pytest.raises(triton_child.Refused, match=r"line \d+|control characters"):
        triton_child.screen(text)
