"""`matmul`, the drop-in: one table look-up and a launch, or `torch.matmul`.

The table is a dict keyed by a plain tuple of what decides the plan; it lives in the process. The
cache directory is read once for each new problem, never in a repeated call. `native.cpp` does the
same with less host time, where it is built: what changes here changes there.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from l2tune import settings
from l2tune.dispatch import native, nearest
from l2tune.dispatch import plan as plans
from l2tune.dispatch.native import Matmul
from l2tune.dispatch.nearest import Trial
from l2tune.dispatch.plan import NativePlan, Plan
from l2tune.dispatch.shapes import Product, product
from l2tune.spec.outcome import Compiled, HostPath

_Key = tuple[object, ...]
_table: dict[_Key, Plan | None] = {}
_MAX_ENTRIES = 1 << 16
_pinned: object = None

# Looked up once: attribute chains cost more than the calls. The private ones are those that
# torch.compile's own generated code calls, and have been stable since torch 2.0.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
_capturing = torch.cuda.is_current_stream_capturing
_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_compiling
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
# `torch.backends.cuda.matmul.allow_fp16_accumulation`
_half_sums: Callable[[], bool] = torch._C._get_cublas_allow_fp16_accumulation


def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Matrix product of two tensors, as `torch.matmul`.

    CUDA products in float16 and bfloat16 for which the cache holds a kernel that was proven correct
    and measured to be faster run that kernel, on the caller's current stream. Everything else is
    `torch.matmul`: other dtypes and devices, 1-D and empty operands, tensors that need gradients,
    tensor subclasses, autocast, tracing.

    Args:
        a: ``[..., m, k]``, or 1-D.
        b: ``[..., k, n]``, or 1-D; batch dimensions broadcast.
        out: Where to write the result.

    Returns:
        What `torch.matmul(a, b, out=out)` returns, up to rounding: sums are in float32, but for
        float16 operands under `torch.backends.cuda.matmul.allow_fp16_accumulation`.

    Raises:
        RuntimeError: Whatever `torch.matmul` raises for the same arguments.
    """
    if out is not None and _is_operand_memory(a, b, out):
        return _through_temporary(a, b, out)
    if not (_is_dense(a) and _is_dense(b) and a.is_cuda) or _compiling():
        return torch.matmul(a, b, out=out)
    if ((a.requires_grad or b.requires_grad) and _grad_enabled()) or not _is_plain(a, b):
        return torch.matmul(a, b, out=out)
    key: _Key
    try:
        addresses = a.data_ptr() | b.data_ptr()
        if out is None:
            key = (a.dtype, a.shape, a.stride(), b.dtype, b.shape, b.stride(), a.get_device(),
                   b.get_device(), addresses & 15, _half_sums())  # fmt: skip
        else:
            if type(out) is not Tensor or not _is_plain_out(out):
                return torch.matmul(a, b, out=out)
            addresses |= out.data_ptr()
            key = (a.dtype, a.shape, a.stride(), b.dtype, b.shape, b.stride(), a.get_device(),
                   b.get_device(), addresses & 15, _half_sums(), out.dtype, out.shape,
                   out.stride(), out.get_device())  # fmt: skip
    except RuntimeError:  # no memory of its own: sparse, nested, or inside vmap and torch.func.grad
        return torch.matmul(a, b, out=out)
    try:
        found = _table[key]
    except KeyError:
        found = _make(key, a, b, out, addresses)
    if found is None or torch.is_autocast_enabled("cuda"):
        return torch.matmul(a, b, out=out)
    if found.eager is not found.graph and not (found.graph if _capturing() else found.eager):
        return torch.matmul(a, b, out=out)
    device = a.get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return found.run(a, b, out, _raw_stream(device))
    return found.run(a, b, out, _raw_stream(device))


_served: Matmul = matmul


def _is_dense(x: Tensor) -> bool:
    """Whether `x` is torch's own tensor; a weight is one, any other subclass may mean anything."""
    return type(x) is Tensor or type(x) is Parameter


def _is_plain(a: Tensor, b: Tensor) -> bool:
    """Whether the operands' memory holds their values, and a launch is all that is to happen.

    Not so with a lazy negation, with forward-mode gradients, or where a mode such as
    FakeTensorMode watches every operator.
    """
    return not (
        a.is_neg() or b.is_neg() or forward_ad._current_level >= 0 or _dispatch_modes()
    )  # fmt: skip


def _is_plain_out(out: Tensor) -> bool:
    """Whether `out` can be written directly."""
    sealed = out.is_inference() and not torch.is_inference_mode_enabled()
    return not (out.requires_grad or out.is_neg() or sealed)


def _is_operand_memory(a: Tensor, b: Tensor, out: Tensor) -> bool:
    """Whether `out` shares memory with an operand: writing may destroy what is still read."""
    if not (_is_dense(a) and _is_dense(b) and type(out) is Tensor) or _compiling():
        return False
    try:
        storage = out.untyped_storage().data_ptr()
        shared = (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())
    except RuntimeError:  # no memory of its own: sparse, or inside vmap
        return False
    return storage in shared and storage != 0


def _through_temporary(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write the product of the operands' old values, where torch 2.13 on a CPU writes zeros.

    What `torch.matmul` refuses, it is given.
    """
    needs_grad = out.requires_grad or a.requires_grad or b.requires_grad
    if out.dtype != a.dtype or (needs_grad and _grad_enabled()):
        return torch.matmul(a, b, out=out)
    result = matmul(a, b)
    return out.copy_(result) if result.shape == out.shape else torch.matmul(a, b, out=out)


def _make(key: _Key, a: Tensor, b: Tensor, out: Tensor | None, addresses: int) -> Plan | None:
    """Make and keep the plan of a new problem.

    While a graph is captured nothing may be loaded, so torch answers and nothing is kept.
    """
    if _capturing():
        return None
    if len(_table) >= _MAX_ENTRIES:
        _table.clear()
    _table[key] = found = _plan(a, b, out, addresses)
    return found


def _make_native(
    a: Tensor, b: Tensor, out: Tensor | None, addresses: int
) -> NativePlan | tuple[()] | None:
    """The plan of a problem that is new to the native path, for its own table; None is not kept."""
    key = _key(a, b, out, addresses)
    found = _table[key] if key in _table else _make(key, a, b, out, addresses)
    if key not in _table:
        return None
    return () if found is None else plans.native_plan(found, a.data_ptr())


def _key(a: Tensor, b: Tensor, out: Tensor | None, addresses: int) -> _Key:
    """As `matmul` makes it in line."""
    key = (a.dtype, a.shape, a.stride(), b.dtype, b.shape, b.stride(), a.get_device(),
           b.get_device(), addresses & 15, _half_sums())  # fmt: skip
    return key if out is None else (*key, out.dtype, out.shape, out.stride(), out.get_device())


def _plan(a: Tensor, b: Tensor, out: Tensor | None, addresses: int) -> Plan | None:
    if settings.current().disable:
        return None
    wanted = _product(a, b, out, addresses)
    found = None
    if wanted is not None:
        found = plans.plan_for(wanted, a.dtype, a.get_device(), half_sums=_half_sums())
    if found is None or found.trial is None:
        return found
    return found if _passes_trial(found, found.trial, a, b, out) else None


def _passes_trial(plan: Plan, trial: Trial, a: Tensor, b: Tensor, out: Tensor | None) -> bool:
    """Try a kernel that was tuned for another problem on this call's operands."""
    device = a.get_device()

    def run(a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
        return plan.run(a, b, out, _raw_stream(device))

    with torch.cuda.device(device):
        passed = trial.passes(run, a, b, out)
    if nearest.is_withdrawn(trial.source):  # plans of other problems may have it too
        _forget_plans()
    return passed


def _product(a: Tensor, b: Tensor, out: Tensor | None, addresses: int) -> Product | None:
    same = a.dtype == b.dtype and a.device == b.device and a.layout == b.layout == torch.strided
    if not same:
        return None
    if out is not None and (out.dtype != a.dtype or out.device != a.device):
        return None
    wanted = product(
        a.shape, a.stride(), b.shape, b.stride(), address_bits=addresses,
        c_stride=None if out is None or out.dim() != max(a.dim(), b.dim()) else out.stride(),
    )  # fmt: skip
    if wanted is not None and out is not None and tuple(out.shape) != wanted.shape:
        return None
    return wanted


def serve_natively(in_python: Matmul) -> Matmul:
    """The function that users call: the native one where it is built, else `in_python`."""
    global _served
    _served = native.serve(in_python, _make_native) or in_python
    return _served


class Pinned:
    """`matmul` with one kernel as its table's answer; for timing the dispatch path itself.

    Every call must bring operands of the same sizes, strides and alignment.

    Attributes:
        host_path: Which of the two paths it takes.
    """

    def __init__(self, compiled: Compiled, cache_dir: Path) -> None:
        """Run `compiled`, whose cubins are in `cache_dir`."""
        self.host_path: HostPath = "python" if native.loaded is None else "native"
        self._compiled, self._cache_dir = compiled, cache_dir

    def __call__(self, a: Tensor, b: Tensor, /) -> Tensor:
        """Multiply two CUDA tensors."""
        if _pinned is not self:
            self._install(a, b)
        return _served(a, b)

    def _install(self, a: Tensor, b: Tensor) -> None:
        global _pinned
        addresses = a.data_ptr() | b.data_ptr()
        wanted = _product(a, b, None, addresses)
        assert wanted is not None  # the caller passes what the contract admits
        key = _key(a, b, None, addresses)
        _table[key] = plans.forced_plan(
            self._compiled, wanted, a.dtype, a.get_device(), self._cache_dir
        )
        if native.loaded is not None:
            native.loaded.clear()  # it asks again, and finds this plan
        _pinned = self


def reset() -> None:
    """Forget all plans of this process; the next call reads the cache again."""
    _forget_plans()
    plans.forget_loaded()


def _forget_plans() -> None:
    global _pinned
    _pinned = None
    _table.clear()
    if native.loaded is not None:
        native.loaded.clear()
