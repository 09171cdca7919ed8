"""What the native path asks of the driver; a stand-in for libcuda records it, on CPU tensors."""

import ctypes
import shutil
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda.bindings import driver as cuda

import l2tune
from l2tune.dispatch import native
from l2tune.dispatch.plan import NativePlan
from l2tune.runtime import driver
from l2tune.runtime.executable import LaunchDescription, Parameter
from l2tune.settings import override
from l2tune.spec.geometry import LaunchGeometry

M, N, K = 4, 6, 5
A, B, C, WORKSPACE = (Parameter(kind, b"", 0) for kind in range(4))
NUMBER = Parameter(4, struct.pack("<q", -7), 0)
GEOMETRY = LaunchGeometry(
    index=0, kernel="gemm", grid=(4, 3, 2), block=(128, 2, 1), cluster=(2, 1, 1), smem_bytes=50000,
    pdl=True, args=(), extra_pointers=0,
)  # fmt: skip


class Recorded(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_uint64), ("stream", ctypes.c_uint64),
        ("attribute_count", ctypes.c_uint64), ("config", ctypes.c_ubyte * 56),
        ("attributes", ctypes.c_ubyte * 144), ("map", ctypes.c_ubyte * 128),
        ("parameters", ctypes.c_uint64 * 8),
    ]  # fmt: skip


class Bench:
    """The native `matmul` for CPU tensors, its driver, and the plan that it is given."""

    def __init__(self, library: Any, driver_path: Path) -> None:
        self.driver = ctypes.CDLL(str(driver_path))
        self.plan: tuple[Any, ...] | None = ()
        self.asked = 0
        self.library = library
        self.matmul = library.init(
            l2tune.matmul, torch.matmul, self._make, "doc", "cpu", str(driver_path)
        )  # fmt: skip

    def _make(self, *_: Any) -> tuple[Any, ...] | None:
        self.asked += 1
        return self.plan

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self.driver, name).value = value

    def count(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.driver, name).value

    @property
    def launches(self) -> Any:
        return (Recorded * 16).in_dll(self.driver, "launches")


@pytest.fixture(scope="module")
def opened(native_cache, tmp_path_factory) -> Bench:
    """On a copy of the library: each file that is loaded has a state of its own."""
    folder = tmp_path_factory.mktemp("native")
    with override(cache_dir=native_cache):
        shutil.copy(native.library_path(), folder / "l2tune_native.so")
    source, made = Path(__file__).with_name("recording_driver.cpp"), folder / "libdriver.so"
    command = [native.compiler(), "-shared", "-fPIC", "-O1", source, "-o", made]
    subprocess.run(command, check=True, timeout=60)
    return Bench(native.open_library(folder / "l2tune_native.so"), made)


@pytest.fixture
def bench(opened: Bench) -> Bench:
    opened.library.clear()
    opened.set(
        launch_count=0, moved_count=0, capturing=0, fail_with=0, contexts_set=0, has_context=1
    )
    opened.asked, opened.plan = 0, ()
    return opened


def plan(*parameters: Parameter, function: int | None = None, **changes: Any) -> NativePlan:
    config, attributes = driver.launch_bytes(GEOMETRY)
    handle = len(parameters) if function is None else function
    launch = LaunchDescription(handle, config, attributes, parameters)
    values = {"eager": True, "graph": True, "shape": (M, N), "workspace_bytes": 0,
              "workspace_zeroed": False, "launches": (launch,), "kernel": object()}  # fmt: skip
    return NativePlan(**values | changes)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(M, K).half(), torch.randn(K, N).half()


def test_a_launch_gets_addresses_numbers_geometry_and_attributes(bench):
    bench.plan = plan(C, A, NUMBER, B)
    a, b = operands()
    c = bench.matmul(a, b)
    assert (c.shape, c.dtype, c.stride()) == ((M, N), torch.float16, (N, 1))
    found = bench.launches[0]
    assert list(found.parameters)[:4] == [c.data_ptr(), a.data_ptr(), 2**64 - 7, b.data_ptr()]
    assert struct.unpack_from("<7I", bytes(found.config)) == (4, 3, 2, 128, 2, 1, 50000)
    ids = cuda.CUlaunchAttributeID
    assert found.attribute_count == 2
    assert struct.unpack_from("<I4x3I", bytes(found.attributes)) == (
        ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 1, 1)  # fmt: skip
    assert struct.unpack_from("<I4xI", bytes(found.attributes), 72) == (
        ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1)  # fmt: skip


def test_a_problem_is_asked_about_once_and_others_apart(bench):
    bench.plan = plan(A, B, C)
    a, b = operands()
    before = bench.library.served()
    for _ in range(3):
        bench.matmul(a, b)
        bench.matmul(a, b, out=torch.empty(M, N).half())
        bench.matmul(a.t().contiguous().t(), b)
        bench.matmul(torch.randn(M + 1, K).half(), b)
    assert (bench.asked, bench.count("launch_count")) == (4, 12)
    assert bench.library.served() == before + 12


def test_a_problem_is_another_where_half_precision_sums_are_allowed(bench, allow_half_sums):
    bench.plan = plan(A, B, C)
    a, b = operands()
    for allowed in (False, True, False, True):
        allow_half_sums(allowed)
        bench.matmul(a, b)
    assert (bench.asked, bench.count("launch_count")) == (2, 4)


def test_what_is_not_kept_is_asked_about_again_and_torch_is_kept(bench):
    a, b = operands()
    bench.plan = None
    assert torch.equal(bench.matmul(a, b), a @ b)
    bench.plan = ()
    assert torch.equal(bench.matmul(a, b), a @ b)
    assert torch.equal(bench.matmul(a, b), a @ b)
    assert (bench.asked, bench.count("launch_count")) == (2, 0)


@pytest.mark.parametrize(("eager", "graph"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("capturing", [0, 1])
def test_the_verdict_is_that_of_the_streams_state(bench, eager, graph, capturing):
    bench.plan = plan(A, B, C, eager=eager, graph=graph)
    bench.set(capturing=capturing)
    bench.matmul(*operands())
    assert bench.count("launch_count") == (graph if capturing else eager)


def test_a_given_result_is_written_returned_and_known_to_autograd_as_changed(bench):
    bench.plan = plan(A, B, C)
    out = torch.empty(M, 2 * N).half()[:, :N]
    version = out._version
    assert bench.matmul(*operands(), out=out) is out
    assert bench.launches[0].parameters[2] == out.data_ptr()
    assert out._version == version + 1


def test_a_workspace_is_private_and_zeroed_where_asked(bench):
    bench.plan = plan(A, WORKSPACE, C, workspace_bytes=4096, workspace_zeroed=True)
    bench.matmul(*operands())
    assert ctypes.c_uint64.in_dll(bench.driver, "cleared_bytes").value == 4096
    assert bench.launches[0].parameters[1] not in (0, *list(bench.launches[0].parameters)[::2])


def test_a_tensor_map_is_moved_only_when_its_operand_is_elsewhere(bench):
    a, b = operands()
    tail = bytes(range(8, 128))
    described = Parameter(5, struct.pack("<Q", a.data_ptr()) + tail, a.data_ptr())
    bench.plan = plan(described, C, function=2 | 1 << 8)
    other = torch.randn(M, K).half()
    moves = []
    for operand in (a, a, other, other, a):
        bench.matmul(operand, b)
        moves.append(bench.count("moved_count"))
        found = bytes(bench.launches[len(moves) - 1].map)
        assert found == struct.pack("<Q", operand.data_ptr()) + tail
    assert moves == [0, 0, 1, 1, 2]


def test_a_thread_without_a_context_gets_one(bench):
    bench.plan = plan(A, B, C)
    bench.set(has_context=0)
    bench.matmul(*operands())
    assert (bench.count("contexts_set"), bench.count("launch_count")) == (1, 1)


def test_a_refused_launch_is_named(bench):
    bench.plan = plan(A, B, C)
    bench.set(fail_with=701)
    with pytest.raises(RuntimeError, match=r"cuLaunchKernelEx failed with CUDA_ERROR_OF_THE_TEST"):
        bench.matmul(*operands())


def test_an_error_while_a_plan_is_made_is_the_callers(bench):
    bench.plan = ("no plan",)
    with pytest.raises(TypeError):
        bench.matmul(*operands())


def test_threads_that_share_a_plan_never_mix_their_operands(bench):
    bench.plan = plan(A, B, C)
    bench.matmul(*operands())

    def call() -> None:
        for _ in range(2000):
            bench.matmul(*operands())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.count("launch_count") == 8001


def left_to_torch(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    plain = torch.empty(M, N).half()
    return {
        "needs grad": lambda matmul: matmul(a.clone().requires_grad_(), b),
        "out needs grad": lambda matmul: matmul(a, b, out=plain.clone().requires_grad_()),
        "autocast": lambda matmul: autocast(matmul, a, b),
        "forward mode": lambda matmul: dual(matmul, a, b),
        "vmap": lambda matmul: torch.vmap(matmul, (0, None))(a.expand(2, M, K), b),
        "functionalised": lambda matmul: torch.func.functionalize(matmul)(a, b),
        "traced": lambda matmul: torch.jit.trace(matmul, (a, b), check_trace=False),
        "sealed": lambda matmul: matmul(a, b, out=sealed(plain)),
    }


def autocast(matmul: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return matmul(a, b)


def dual(matmul: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return matmul(torch.autograd.forward_ad.make_dual(a, a.clone()), b)


def sealed(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def said(call: Any, matmul: Any) -> tuple[Any, ...] | None:
    """The type and message of what `call` raises, if it does."""
    try:
        call(matmul)
    except RuntimeError as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", left_to_torch(torch.empty(0), torch.empty(0)))
def test_what_a_launch_would_miss_is_left_to_torch(bench, name):
    bench.plan = plan(A, B, C)
    call = left_to_torch(*operands())[name]
    assert said(call, bench.matmul) == said(call, torch.matmul)
    assert bench.count("launch_count") == 0


def test_no_gradient_is_wanted_of_a_weight_under_no_grad(bench):
    bench.plan = plan(A, B, C)
    a, b = operands()
    with torch.no_grad():
        bench.matmul(a, torch.nn.Parameter(b))
    with torch.inference_mode():
        assert bench.matmul(a, b).is_inference()
    assert bench.count("launch_count") == 2
