"""The Triton seed, launched by its own contract in Triton's interpreter, against float64.

float16 only: the interpreter multiplies the bit patterns of bfloat16 (Triton issue 11584).
"""

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.problem import aligned_problem

SEED = Path(__file__).parents[2] / "kernels_seed" / "triton" / "matmul.py"
FEW_SMS = Gpu(name="NVIDIA H200", capability=(9, 0), sms=3)  # so that persistent programs loop
SMALL = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT": 1, "PERSISTENT": 0}
SMALL |= {"VECTOR": 1, "EVEN_K": 0, "NUM_WARPS": 4, "NUM_STAGES": 2}
CASES = [  # m, n, k, batch, align in bytes, is b batched, tunables
    (1, 1, 1, 1, 2, True, {}),
    (64, 32, 64, 2, 16, False, {"VECTOR": 8, "EVEN_K": 1}),
    (70, 33, 65, 2, 2, True, {"PERSISTENT": 1}),
    (45, 37, 131, 3, 16, False, {"SPLIT": 4, "GROUP_M": 1}),
    (80, 40, 64, 1, 16, True, {"VECTOR": 8, "EVEN_K": 1, "SPLIT": 2, "BLOCK_N": 64}),
    (33, 20, 0, 1, 2, True, {"PERSISTENT": 2}),
]


def worst_ratio(case: tuple, layout: str) -> float:
    """Largest error over its bound; runs in a process that has TRITON_INTERPRET set."""
    m, n, k, batch, align, b_batched, tunables = case
    source = KernelSource(
        text=instantiate(SEED.read_text(), SMALL | tunables), arch="sm_90a", layout=layout
    )
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    problem = aligned_problem(**sizes, layout=layout, align=align, b_batched=b_batched)
    assert source.accepts(problem, FEW_SMS), f"{source.name} does not serve {problem}"
    names = source.names(problem, FEW_SMS)
    stored = {"a": (m, k), "b": (k, n), "c": (m, n)}
    for operand, letter in zip("ab", layout, strict=True):
        stored[operand] = stored[operand] if letter == "n" else stored[operand][::-1]
    held = {}
    for operand, (rows, inner) in stored.items():  # what lies between the rows is NaN
        ld, stride = names["ld" + operand], names["stride_" + operand]
        memory = torch.full((stride * (batch - 1) + rows * ld,), torch.nan).half()
        held[operand] = memory.as_strided((batch if stride else 1, rows, inner), (stride, ld, 1))
    a, b = (held[x].copy_(torch.randn(held[x].shape)) for x in "ab")
    held["workspace"] = torch.full((source.header.workspace(names) // 4 + 1,), torch.nan)
    launch_interpreted(source, names, {**names, **source.defines, "L2_PDL": 0, **held})
    left, right = (a.mT if layout[0] == "t" else a), (b.mT if layout[1] == "t" else b)
    exact, size = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    error = torch.where(held["c"].isnan(), torch.inf, (held["c"].double() - exact).abs())
    return (error / (2**-10 * exact.abs() + 2**-22 * (k + 1) * size + 2**-24)).max().item()


def launch_interpreted(source: KernelSource, names: dict, values: dict) -> None:
    import triton.runtime.interpreter as interpreter

    patch = interpreter._patch_lang_tensor  # makes int(array), which NumPy 2.4 refuses
    interpreter._patch_lang_tensor = lambda tensor, scope: (
        patch(tensor, scope),
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item()),
    )
    spec = importlib.util.spec_from_file_location("seed", SEED)
    seed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seed)
    for launch in source.header.launch:
        grid = tuple(side(names) for side in launch.grid)
        function = getattr(seed, launch.kernel)
        if 0 not in grid:
            function[grid](**{name: values[name] for name in function.arg_names})


@pytest.fixture(scope="module")
def interpreter_process():
    """Whether Triton interprets is settled when it is imported, so it gets its own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case[:4])))
def test_triton_seed_is_right_for_every_layout(interpreter_process, case, layout):
    ratio = interpreter_process.submit(worst_ratio, case, layout).result()
    assert ratio <= 1, f"worst error is {ratio:.3g} of its bound"
