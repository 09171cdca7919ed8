"""Host time of one launch of a 64x64x64 product, not synchronised, and of loading its module.

python scripts/gpu/launch_cost.py RESULT.json

`l2tune.matmul` is timed as the Python function and as the native one, which is built for it.
"""

import importlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cupy
import torch
from cuda.bindings import driver

from l2tune import dispatch, generate, settings, stages
from l2tune.dispatch import native
from l2tune.runtime import driver as ours
from l2tune.runtime.device import detect
from l2tune.runtime.executable import Executable
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts

CALLS, ROUNDS = 1000, 25
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def host_us(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Of each, the median over rounds of the mean time of a call, microseconds.

    Rounds take them in random order, since a machine's speed changes from second to second.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name in random.sample(list(functions), len(functions)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                functions[name]()
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in samples.items()}


def main(result: Path) -> None:
    gpu = detect()
    assert gpu is not None
    key = GemmKey.dense(64, 64, 64, gpu=gpu)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        artifacts = Artifacts(root)
        source = stages.source_for(generate.seed_text("sm80/naive"), key)
        compiled = compile.compile_kernel(source, artifacts)
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

        python = importlib.import_module("l2tune.dispatch.matmul").matmul
        a_torch, b_torch = a[:, :48], b[:48]  # another problem, which the cache knows nothing of
        with torch.no_grad(), settings.override(cache_dir=root, native="auto"):
            native_matmul = built_natively()
            dispatch.Pinned(compiled, root)(a, b)
            rows = host_us(
                {
                    "torch.matmul": lambda: torch.matmul(a, b),
                    "torch.matmul, out=": lambda: torch.matmul(a, b, out=c),
                    "torch.empty": lambda: torch.empty((64, 64), dtype=a.dtype, device="cuda"),
                    "cupy Function launch": launch_by_cupy,
                    "cuLaunchKernelEx, prepared block": lambda: bound(
                        a.data_ptr(), b.data_ptr(), c.data_ptr(), 0, stream
                    ),
                    "l2tune.matmul, Python": lambda: python(a, b),
                    "l2tune.matmul, native": lambda: native_matmul(a, b),
                    "verdict torch: torch.matmul": lambda: torch.matmul(a_torch, b_torch),
                    "verdict torch, Python": lambda: python(a_torch, b_torch),
                    "verdict torch, native": lambda: native_matmul(a_torch, b_torch),
                }
            )
        rows["load a module by cupy"] = host_load_us(lambda: ours.load_module(cubin))
        rows["load a module by the driver"] = host_load_us(lambda: driver.cuModuleLoadData(cubin))
    result.write_text(
        json.dumps({"gpu": str(gpu), "torch": torch.__version__, "us": rows}, indent=1)
    )
    for name, us in rows.items():
        print(f"{name:34} {us:8.2f} us")


def built_natively() -> Product:
    """The native `matmul`, built into the cache of the settings."""
    native.build()
    module = importlib.import_module("l2tune.dispatch.matmul")
    native.loaded = None
    function: Product = module.serve_natively(module.matmul)
    assert native.loaded is not None
    return function


def host_load_us(function: Callable[[], object]) -> float:
    samples = []
    for _ in range(20):
        start = time.perf_counter()
        function()
        samples.append((time.perf_counter() - start) * 1e6)
    return statistics.median(samples)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
