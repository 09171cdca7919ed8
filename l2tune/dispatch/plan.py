"""What one problem's calls do: a kernel bound to it, and where it may run.

A plan is made once for each problem and process, from the cache; any trouble in making it ends in
`torch.matmul` with one warning.
"""

import functools
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from l2tune import settings
from l2tune.dispatch import native, nearest
from l2tune.dispatch.shapes import Product
from l2tune.dispatch.waiting import recheck_in_background
from l2tune.errors import CacheError, DispatchWarning, InfrastructureError
from l2tune.runtime.device import detect
from l2tune.runtime.driver import LaunchRefusedError
from l2tune.runtime.executable import BoundKernel, Executable, LaunchDescription
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import Dtype, GemmKey
from l2tune.spec.outcome import Admitted, Compiled
from l2tune.store import Artifacts, Registry, judge

_DTYPES: dict[torch.dtype, Dtype] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class NativePlan(NamedTuple):
    """A plan as the native path reads it (`launch.h`), in this order."""

    eager: bool
    graph: bool
    shape: tuple[int, ...]
    workspace_bytes: int
    workspace_zeroed: bool
    launches: tuple[LaunchDescription, ...]
    kernel: BoundKernel


class Plan:
    """A kernel ready to be launched for one problem.

    Attributes:
        eager: Use the kernel in eager calls.
        graph: Use the kernel while a CUDA graph is captured.
        trial: What the kernel must pass before it may serve a call; None where a record says so.
    """

    __slots__ = (
        "_device", "_dtype", "_shape", "bound", "eager", "graph", "trial", "workspace_bytes",
    )  # fmt: skip

    def __init__(
        self, bound: BoundKernel, product: Product, dtype: torch.dtype, device: int,
        *, eager: bool, graph: bool, trial: nearest.Trial | None = None,
    ) -> None:  # fmt: skip
        """Keep what a call needs."""
        self.bound = bound
        self.eager, self.graph, self.trial = eager, graph, trial
        self.workspace_bytes = bound.workspace_bytes
        self._shape, self._dtype = product.shape, dtype
        self._device = torch.device("cuda", device)

    def run(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, stream: int
    ) -> torch.Tensor:
        """Launch on `stream`; allocates the result where none is given."""
        if out is None:
            out = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        else:
            torch.autograd.graph.increment_version(out)
        if not self.workspace_bytes:
            self.bound(a.data_ptr(), b.data_ptr(), out.data_ptr(), 0, stream)
            return out
        # From torch's allocator on the current stream: private to a graph under capture, and safe
        # to release as soon as the launch is queued.
        allocate = torch.zeros if self.bound.workspace_zeroed else torch.empty
        scratch = allocate(self.workspace_bytes, dtype=torch.uint8, device=self._device)
        self.bound(a.data_ptr(), b.data_ptr(), out.data_ptr(), scratch.data_ptr(), stream)
        return out

    def native(self, address: int) -> NativePlan:
        """Describe this plan to the native path; `address` is that of any operand.

        Raises:
            LaunchRefusedError: If the driver refuses a tensor map.
        """
        return NativePlan(
            self.eager, self.graph, self._shape, self.workspace_bytes, self.bound.workspace_zeroed,
            self.bound.describe(address), self.bound,
        )  # fmt: skip


def native_plan(plan: Plan, address: int) -> NativePlan | tuple[()]:
    """`plan` for the native path, or () where torch is to answer."""
    try:
        return plan.native(address)
    except LaunchRefusedError as error:
        _warn("a cached kernel", error)
        return ()


def _warn(what: str, error: Exception) -> None:
    warnings.warn(
        f"{what}: the cached kernel cannot be used ({error}); torch.matmul answers instead;"
        " run `l2tune doctor`",
        DispatchWarning,
        stacklevel=4,
    )


def plan_for(
    product: Product, dtype: torch.dtype, device: int, *, half_sums: bool = False
) -> Plan | None:
    """Make the plan for a problem from the cache, or None where torch is to answer.

    A plan with a trial must pass it first.

    Args:
        product: What is computed.
        dtype: Of the operands.
        device: Where they are.
        half_sums: Whether float16 operands may be summed in float16. Then a record for such sums
            decides; where there is none, one for float32 sums, which are right as well.
    """
    gpu = detect(device)
    if gpu is None or gpu.arch is None or dtype not in _DTYPES:
        return None
    problem = product.problem
    key = GemmKey(
        m=problem.m, n=problem.n, k=problem.k, batch=problem.batch, layout=product.layout,
        shared=product.shared, dtype=_DTYPES[dtype],
        acc="float16" if half_sums and dtype is torch.float16 else "float32",
        align=problem.align,  # type: ignore[arg-type]  # alignment_bytes gives 2, 4, 8 or 16
        gpu=gpu,
    )  # fmt: skip
    root = settings.current().cache_dir
    try:
        record = _registry(root).get(key)
        if record is None and key.acc == "float16":
            record = _registry(root).get(key.model_copy(update={"acc": "float32"}))
        if record is None:
            _registry(root).miss(key)
            recheck_in_background(key, device, root)
            return _plan_from_nearest(key, product, dtype, device, root)
        if not isinstance(record.outcome, Admitted):
            return None
        compiled = record.outcome.timing.verified.compiled
        if judge(record, gpu, tools()) != "use" or not compiled.source.accepts(problem, gpu):
            return None
        if nearest.is_withdrawn(compiled.source):
            return None
        bound = _bound(compiled, product, gpu, device, root)
    except (CacheError, InfrastructureError, LaunchRefusedError, OSError, ValueError) as error:
        _warn(key.label, error)
        return None
    native.build_in_background()
    outcome = record.outcome
    # An eager win was measured with a path's host time; on the slower path it may be none.
    slower = outcome.timing.host_path == "native" and native.loaded is None
    return Plan(
        bound, product, dtype, device,
        eager=outcome.eager == "kernel" and not slower, graph=outcome.graph == "kernel",
    )  # fmt: skip


def _plan_from_nearest(
    key: GemmKey, product: Product, dtype: torch.dtype, device: int, root: Path
) -> Plan | None:
    """The plan where there is no record and the policy has another kernel for it; it needs a trial.

    Nothing says what the call takes on the host, so eager calls need the path that takes less than
    torch's.

    Raises:
        CacheError, LaunchRefusedError, OSError, ValueError: If the cache or the kernel is no good.
    """
    record = nearest.choose(key, product.problem, root)
    if record is None:
        return None
    compiled = record.verified.compiled
    bound = _bound(compiled, product, key.gpu, device, root)
    native.build_in_background()
    return Plan(
        bound, product, dtype, device, eager=native.loaded is not None, graph=True,
        trial=nearest.Trial(key, compiled.source, _registry(root)),
    )  # fmt: skip


def forced_plan(
    compiled: Compiled, product: Product, dtype: torch.dtype, device: int, root: Path
) -> Plan:
    """The plan that runs `compiled`, whatever the cache says; for timing the dispatch path.

    Raises:
        LaunchRefusedError: If it cannot be loaded or bound.
    """
    gpu = detect(device)
    assert gpu is not None  # a caller with a CUDA tensor has a GPU
    bound = _bound(compiled, product, gpu, device, root)
    return Plan(bound, product, dtype, device, eager=True, graph=True)


def _bound(compiled: Compiled, product: Product, gpu: Gpu, device: int, root: Path) -> BoundKernel:
    with torch.cuda.device(device):
        torch.cuda.current_stream().query()  # makes the context current in this thread
        return _executable(compiled, device, root).bind(product.problem, gpu)


_executables: dict[tuple[tuple[str, ...], int], Executable] = {}


def _executable(compiled: Compiled, device: int, root: Path) -> Executable:
    """Load a kernel once for each device; its cubins' hashes say which it is."""
    key = (compiled.source.digest, *compiled.cubins), device
    if key not in _executables:
        _executables[key] = Executable(compiled, Artifacts(root), device=device)
    return _executables[key]


@functools.lru_cache(maxsize=8)
def _registry(root: Path) -> Registry:
    return Registry(root)


def forget_loaded() -> None:
    """Drop what was read from caches; the next call reads again."""
    _executables.clear()
    _registry.cache_clear()
    nearest.forget()
