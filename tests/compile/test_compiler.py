"""Kernels compile without a GPU or driver, and a bad one costs itself alone."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from samples import BODY, CONTRACT, cuda_file

from l2tune import settings
from l2tune.compile import compiler
from l2tune.compile.compiler import compile_kernel
from l2tune.errors import InfrastructureError
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled, CompileFailed
from l2tune.store import Artifacts

KERNEL = 'extern "C" __global__ void gemm(short* c, int m) {{ {} }}\n'
ENDLESS_TEMPLATES = (
    "template <int N, int M> struct F {\n"
    "  static constexpr long v = F<N - 1, M * 2>::v + F<N - 1, M * 2 + 1>::v; };\n"
    "template <int M> struct F<0, M> { static constexpr long v = M; };\n"
) + KERNEL.format("c[0] = F<26, 1>::v;")
ENDLESS_UNROLLING = KERNEL.format(
    "float s = m;\n#pragma unroll\nfor (int i = 0; i < 1024; ++i)\n#pragma unroll\n"
    "for (int j = 0; j < 1024; ++j) s = s * c[i * j] + c[i ^ j];\nc[1] = s;"
)


@pytest.fixture
def artifacts(cache_dir):
    return Artifacts(cache_dir)


def compiled(artifacts, body, arch="sm_80"):
    return compile_kernel(KernelSource(text=cuda_file(body=body), arch=arch), artifacts)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_compiles_to_a_cubin_for_its_target_and_its_resources_are_read(artifacts, arch):
    body = "__shared__ int s[64]; s[threadIdx.x] = m; __syncthreads(); c[threadIdx.x] = s[m];"
    found = compiled(artifacts, KERNEL.format(body), arch)
    assert isinstance(found, Compiled), found
    assert artifacts.get(found.cubins[0])[:4] == b"\x7fELF"
    assert f".target {arch}".encode() in artifacts.get(found.ptx[0])
    assert found.resources["gemm"].smem_static_bytes == 256
    assert found.resources["gemm"].registers > 0
    assert found.resources["gemm"].spill_bytes == 0
    assert found.writable_globals == ()


def test_spills_and_the_stack_are_seen(artifacts):
    stack = "int x[64]; for (int i = 0; i < 64; ++i) x[i] = c[i] * i; x[m] = 3; c[0] = x[c[1]];"
    assert compiled(artifacts, KERNEL.format(stack)).resources["gemm"].stack_bytes == 256
    spill = (
        "float x[64];\n#pragma unroll\nfor (int i = 0; i < 64; ++i) x[i] = c[i * m];\n"
        "__syncthreads();\n#pragma unroll\nfor (int i = 0; i < 64; ++i) c[i] = x[i] * x[63 - i];"
    )
    text = cuda_file(CONTRACT + 'flags = ["--maxrregcount=24"]\n', body=KERNEL.format(spill))
    found = compile_kernel(KernelSource(text=text, arch="sm_80"), artifacts)
    assert found.resources["gemm"].spill_bytes > 0


def test_the_pick_and_the_tunables_are_compiled_in(artifacts):
    text = cuda_file(
        body=KERNEL.format("c[0] = L2_DTYPE_BF16 + 2 * L2_A_T + 4 * L2_B_T + 8 * TILE;")
    ).replace("[[launch]]", "[tune]\nTILE = 5\n[[launch]]", 1)
    source = KernelSource(text=text, arch="sm_80", dtype="bfloat16", layout="nt")
    found = compile_kernel(source, artifacts)
    assert "45;" in artifacts.get(found.ptx[0]).decode()


def test_a_mistake_is_a_value_with_the_compilers_words_and_no_path_of_this_machine(artifacts):
    found = compiled(artifacts, "#include <cuda_fp16.h>\n" + KERNEL.format("half x = nothing;"))
    assert isinstance(found, CompileFailed)
    assert found.kind == "error"
    assert 'identifier "nothing" is undefined' in found.log
    assert "site-packages" not in found.log


@pytest.mark.parametrize("body", [ENDLESS_TEMPLATES, ENDLESS_UNROLLING], ids=["front", "back"])
def test_a_compile_bomb_costs_one_candidate_its_time_limit(artifacts, body):
    before = time.monotonic()
    with settings.override(compile_timeout_s=3):
        found = compiled(artifacts, body)
    assert isinstance(found, CompileFailed)
    assert found.kind == "time_limit"
    assert time.monotonic() - before < 6
    assert isinstance(compiled(artifacts, BODY), Compiled)


def test_a_compile_bomb_costs_one_candidate_its_memory_limit(artifacts):
    with settings.override(compile_memory_mb=500):
        found = compiled(artifacts, ENDLESS_TEMPLATES)
        assert isinstance(found, CompileFailed)
        assert found.kind == "memory_limit"
        assert isinstance(compiled(artifacts, BODY), Compiled), "the limit stops honest files"


def test_what_a_compiler_started_ends_with_it_at_the_time_limit(tmp_path):
    script = (
        "import pathlib, subprocess, time; grandchild = subprocess.Popen(['sleep', '60']);"
        "pathlib.Path('pid').write_text(str(grandchild.pid)); time.sleep(60)"
    )
    before = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        compiler.run_in_group(
            [sys.executable, "-c", script], b"", timeout_s=1.5, folder=str(tmp_path)
        )
    assert time.monotonic() - before < 5
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    while time.monotonic() - before < 5 and _is_running(status):
        time.sleep(0.05)  # killed, but not yet gone
    assert not _is_running(status)


def _is_running(status: Path) -> bool:
    try:
        return "Z (zombie)" not in status.read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("globals_", "use", "names"),
    [
        ("__device__ int counter;", "c[0] = counter++;", ("counter",)),
        ("__device__ int counter = 7;", "c[0] = counter++;", ("counter",)),
        ("static __device__ int counter[9];", "c[0] = counter[m]++;", None),
        ("namespace x { __managed__ int counter; }", "c[0] = x::counter++;", None),
        ("", "static __device__ int counter; c[0] = counter++;", None),
        ("#include <cuda/barrier>", "", ()),
        ("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>", "", ()),
        (
            "constexpr int kTile = 16; __constant__ int table[3] = {1, 2, 3};",
            "c[0] = table[m];",
            (),
        ),
        ("__device__ const int table[3] = {1, 2, 3};", "c[0] = table[m];", None),
    ],
)
def test_state_at_file_scope_is_seen_and_what_headers_define_is_not(
    artifacts, globals_, use, names
):
    found = compiled(artifacts, f"{globals_}\n" + KERNEL.format(use))
    assert isinstance(found, Compiled), found
    if names is None:
        assert len(found.writable_globals) == 1
    else:
        assert found.writable_globals == names


def test_a_second_compilation_is_recalled_whole(artifacts, monkeypatch):
    first = compiled(artifacts, BODY)
    monkeypatch.setattr(compiler, "_run_child", lambda *_: pytest.fail("compiled twice"))
    assert compiled(artifacts, BODY) == first


@pytest.mark.parametrize("part", ["cubins", "ptx", "result", "pointer"])
def test_a_flipped_byte_in_any_kept_part_is_noticed_and_compiled_again(artifacts, cache_dir, part):
    first = compiled(artifacts, BODY)
    files = {path.name: path for path in cache_dir.rglob("*") if path.is_file()}
    (pointer,) = (path for path in files.values() if path.parent.name == "compiled")
    path = {
        "result": files[pointer.read_text()], "pointer": pointer,
    }.get(part) or files[getattr(first, part)[0]]  # fmt: skip
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = compiled(artifacts, BODY)
    assert again.cubins == first.cubins
    assert artifacts.get(again.cubins[0]) is not None
    assert artifacts.get(again.ptx[0]) is not None


def test_another_compiler_does_not_recall_what_this_one_made(artifacts, monkeypatch):
    first = compiled(artifacts, BODY)
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "nvidia-cuda-nvrtc 99")
    assert (compiled(artifacts, BODY).compiler, first.compiler[:18]) == (
        "nvidia-cuda-nvrtc 99", "nvidia-cuda-nvrtc ",
    )  # fmt: skip


def test_a_missing_compiler_is_the_machines_fault_and_says_what_to_install(artifacts, monkeypatch):
    def missing(_: str) -> str:
        raise compiler.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(compiler.importlib.metadata, "version", missing)
    with pytest.raises(InfrastructureError, match="pip install"):
        compiled(artifacts, BODY)


def test_missing_headers_are_the_machines_fault(artifacts, monkeypatch):
    monkeypatch.setattr(compiler, "compiler_version", lambda _: "nvidia-cuda-nvrtc 99")
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(InfrastructureError, match=r"no cuda_fp16.h found.*pip install"):
        compiled(artifacts, BODY)


def test_a_kernel_for_hopper_compiles_only_with_its_architecture_specific_target(artifacts):
    body = KERNEL.format('asm volatile("wgmma.fence.sync.aligned;");')
    assert isinstance(compiled(artifacts, body, "sm_90a"), Compiled)
    failed = compiled(artifacts, body, "sm_80")
    assert isinstance(failed, CompileFailed)
    assert failed.kind == "error"


@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME", "CPATH", "NVCC_APPEND_FLAGS"])
def test_the_users_environment_does_not_change_the_cubin(artifacts, monkeypatch, variable):
    first = compiled(artifacts, BODY + "// first")
    monkeypatch.setenv(variable, "/nowhere")
    second = compiled(artifacts, BODY + "// other")
    assert second.cubins == first.cubins
