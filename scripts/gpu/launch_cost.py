"""Host time of one launch of a 64x64x64 product, not synchronised, and of loading its module.

python scripts/gpu/launch_cost.py RESULT.json

`l2tune.matmul` is timed as the Python function and as the native one, which is built for it.
"""

import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cupy
import torch
from cuda.bindings import driver

from l2tune import dispatch, generate, pipeline, settings
from l2tune.dispatch import native
from l2tune.runtime import driver as ours
from l2tune.runtime.device import detect
from l2tune.runtime.executable import Executable
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts

CALLS, ROUNDS = 2000, 15
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def host_us(function: Callable[[], object]) -> float:
    """Median over rounds of the mean time of a call, microseconds."""
    samples = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        samples.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def main(result: Path) -> None:
    gpu = detect()
    assert gpu is not None
    key = GemmKey.dense(64, 64, 64, gpu=gpu)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        artifacts = Artifacts(root)
        source = pipeline.source_for(generate.seed_text("sm80/naive"), key)
        compiled = pipeline.compile.compile_kernel(source, artifacts)
        assert isinstance(compiled, Compiled)
        a, b = (torch.randn(64, 64, device="cuda").half() for _ in range(2))
        c = torch.empty_like(a)
        bound = Executable(compiled, artifacts).bind(key.problem(), gpu)
        stream = torch.cuda.current_stream().cuda_stream
        cubin = artifacts.get(compiled.cubins[0])
        assert cubin is not None
        function = ours.load_module(cubin).get_function("gemm")
        numbers = (64, 64, 64, 1, 64, 64, 64)
        problem = key.problem()
        values = [a.data_ptr(), b.data_ptr(), c.data_ptr(), *map(cupy.int32, numbers),
                  problem.stride_a, problem.stride_b, problem.stride_c]  # fmt: skip
        by_cupy = cupy.cuda.ExternalStream(stream)

        def launch_by_cupy() -> None:
            function((1, 1, 1), (256, 1, 1), values, stream=by_cupy)

        python, serve_natively = python_path()
        with torch.no_grad(), settings.override(cache_dir=root, native="auto"):
            rows = {
                "torch.matmul": host_us(lambda: torch.matmul(a, b)),
                "torch.matmul, out=": host_us(lambda: torch.matmul(a, b, out=c)),
                "torch.empty": host_us(lambda: torch.empty((64, 64), dtype=a.dtype, device="cuda")),
                "cupy Function launch": host_us(launch_by_cupy),
                "cuLaunchKernelEx, prepared block": host_us(
                    lambda: bound(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, stream)
                ),
                **matmul_us("Python", python, compiled, root, a, b),
                **matmul_us("native", serve_natively(), compiled, root, a, b),
                "load a module by cupy": host_load_us(lambda: ours.load_module(cubin)),
                "load a module by the driver": host_load_us(lambda: driver.cuModuleLoadData(cubin)),
            }
    result.write_text(
        json.dumps({"gpu": str(gpu), "torch": torch.__version__, "us": rows}, indent=1)
    )
    for name, us in rows.items():
        print(f"{name:34} {us:8.2f} us")


def python_path() -> tuple[Product, Callable[[], Product]]:
    """The Python `matmul`, in force until the function beside it is called: it builds the other."""
    module = importlib.import_module("l2tune.dispatch.matmul")
    native.loaded, module._served = None, module.matmul

    def serve_natively() -> Product:
        native.build()
        function = module.serve_natively(module.matmul)
        assert native.loaded is not None
        return function

    return module.matmul, serve_natively


def matmul_us(
    path: str, matmul: Product, compiled: Compiled, root: Path, a: torch.Tensor, b: torch.Tensor
) -> dict[str, float]:
    """Of a call that runs the kernel, and of one that finds that torch is to answer."""
    dispatch.reset()
    dispatch.pinned(compiled, root)(a, b)
    by_kernel = host_us(lambda: matmul(a, b))
    dispatch.reset()  # the cache holds no record
    by_torch = host_us(lambda: matmul(a, b))
    return {f"l2tune.matmul, {path}": by_kernel, f"the same, verdict torch, {path}": by_torch}


def host_load_us(function: Callable[[], object]) -> float:
    samples = []
    for _ in range(20):
        start = time.perf_counter()
        function()
        samples.append((time.perf_counter() - start) * 1e6)
    return statistics.median(samples)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
