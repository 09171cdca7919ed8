"""Relations between results that hold whatever the operands are, at the key's full size."""

import dataclasses

import torch

from l2tune.runtime.processor import Bound
from l2tune.runtime.reference import split_ratio
from l2tune.spec.outcome import Finding
from l2tune.verify.arena import Arena
from l2tune.verify.case import Case
from l2tune.verify.plan import Plan
from l2tune.verify.trial import Bench, KernelFailed


@dataclasses.dataclass
class _Trial:
    """A kernel on the operands of one case."""

    bench: Bench
    case: Case
    bound: Bound
    operands: Arena
    scratch: torch.Tensor | None

    def run(self) -> torch.Tensor:
        return self.bench.run(self.bound, self.operands, self.scratch, self.case)

    def wrong(self, detail: str) -> KernelFailed:
        return KernelFailed(Finding.WRONG_VALUE, detail, self.case)


def metamorphic(bench: Bench, plan: Plan) -> None:
    """Doubling, permuting rows, splitting the sum over k.

    Of float16 sums all with few terms, which are exact however long k is: others may be subnormal
    on their way, and then do not double.
    """
    values = "normal" if bench.source.acc == "float32" else "magnitudes"
    case = dataclasses.replace(plan.key_case, values=values, seed=plan.seed + 77)
    bound = bench.bind(case)
    trial = _Trial(bench, case, bound, bench.build(case), bench.workspace(bound, case))
    _doubled(trial)
    _permuted(trial)
    _split(trial)


def _doubled(trial: _Trial) -> None:
    """Doubling a doubles the result exactly, but for what becomes subnormal or infinite."""
    a = trial.operands.a.view
    plain = trial.run()
    a.mul_(2)
    doubled = trial.run()
    a.mul_(0.5)
    safe = doubled.isfinite() & (plain.abs() > torch.finfo(plain.dtype).smallest_normal)
    deterministic = trial.bench.source.header.deterministic
    if deterministic and not torch.equal((2 * plain)[safe], doubled[safe]):
        raise trial.wrong("doubling a did not double the result exactly")


def _permuted(trial: _Trial) -> None:
    """Permuting the rows of a permutes those of the result."""
    a = trial.operands.logical_a
    order = torch.randperm(a.shape[-2], device=a.device)
    a.copy_(a[..., order, :].clone())
    ratio = trial.bench.ratio(trial.operands, trial.run(), trial.case)
    trial.bench.worst_ratio = max(trial.bench.worst_ratio, ratio)
    if not ratio <= 1.0:
        raise trial.wrong(f"permuted rows: error is {ratio:.3g} times its bound")


def _split(trial: _Trial) -> None:
    """The products with either half of a's k set to zero add up to the whole one.

    The sums are exact, so that nothing but the rounding of the three results may differ.
    """
    operands, acc = trial.operands, trial.bench.source.acc
    exact = "integers" if acc == "float32" else "magnitudes"
    trial.case = dataclasses.replace(trial.case, values=exact)
    operands.fill(trial.case)
    a, b = operands.logical_a, operands.logical_b
    whole, values, half = trial.run(), a.clone(), a.shape[-1] // 2
    a[..., half:] = 0
    first = trial.run()
    a.copy_(values)
    a[..., :half] = 0
    parts = first, trial.run()
    ratio = split_ratio(values, b, whole, parts, acc=acc, exact=True).item()
    trial.bench.worst_ratio = max(trial.bench.worst_ratio, ratio)
    if not ratio <= 1.0:
        raise trial.wrong(
            f"the halves of the sum over k add up to the whole only within {ratio:.3g} times what"
            " rounding allows"
        )
