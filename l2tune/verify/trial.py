"""Runs a kernel on one case and judges what it left behind."""

import dataclasses
import math
import time

import torch

from l2tune.errors import UnsupportedProblemError
from l2tune.runtime.driver import LaunchRefusedError
from l2tune.runtime.processor import Bound, Processor, current_stream
from l2tune.runtime.reference import error_ratio
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Finding
from l2tune.spec.problem import Problem
from l2tune.verify import arena
from l2tune.verify.admitted import repair
from l2tune.verify.arena import POISON, Arena
from l2tune.verify.case import Case
from l2tune.verify.values import is_exact

_SLOWEST_TFLOPS = 0.05
"""A kernel slower than this on large problems counts as hung: 1/10,000 of the GPU's rate."""


class KernelFailed(Exception):  # noqa: N818  # a verdict that travels through Hypothesis
    """A case shows that the kernel is wrong.

    Attributes:
        finding: What kind of fault.
        case: The case, for the counterexample.
    """

    def __init__(self, finding: Finding, detail: str, case: Case) -> None:
        super().__init__(detail)
        self.finding = finding
        self.case = case


@dataclasses.dataclass
class Bench:
    """A kernel under test.

    Attributes:
        processor: What runs it.
        gpu: What it is compiled for.
        launch_timeout_s: A launch that takes longer is a hang.
        most_products: Cases of more multiplications are scaled down; None for no limit.
        deadline: Of the monotonic clock; no further case of a check is begun after it.
        worst_ratio: Largest error over its bound so far.
        examples: Cases tried so far.
        cut_short: Whether a check left out cases for lack of time.
        case: The case being tried, for a fault that ends the process.
    """

    processor: Processor
    gpu: Gpu
    launch_timeout_s: float
    most_products: int | None = None
    deadline: float = math.inf
    worst_ratio: float = 0.0
    examples: int = 0
    cut_short: bool = False
    case: Case | None = None

    @property
    def source(self) -> KernelSource:
        """The kernel."""
        return self.processor.compiled.source

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the operands."""
        found: torch.dtype = getattr(torch, self.source.dtype)
        return found

    def accepts(self, problem: Problem) -> bool:
        """Whether the contract admits `problem`."""
        return self.source.accepts(problem, self.gpu)

    def begin_check(self, *, deadline: float) -> None:
        """Count and time from here on."""
        self.examples, self.worst_ratio = 0, 0.0
        self.cut_short, self.deadline = False, deadline

    def has_time(self) -> bool:
        """Whether another case may be begun; the first of a check always may."""
        late = self.examples > 0 and time.monotonic() > self.deadline
        self.cut_short = self.cut_short or late
        return not late

    def admit(self, case: Case) -> Case | None:
        """The nearest case that the contract admits and that is small enough; None without one."""
        return repair(case, self.source, self.gpu, most_products=self.most_products)

    def build(self, case: Case) -> Arena:
        """Make the case's operands.

        Raises:
            UnsupportedProblemError: If the contract does not admit the case.
        """
        problem = case.problem(self.source.layout)
        if not self.accepts(problem):
            raise UnsupportedProblemError(f"{self.source.name} does not admit {problem}")
        return arena.build(case, self.source.layout, dtype=self.dtype, device=self.processor.device)

    def bind(self, case: Case) -> Bound:
        """Evaluate the contract for the case.

        Raises:
            KernelFailed: If the launch data is impossible.
        """
        try:
            return self.processor.bind(case.problem(self.source.layout), self.gpu)
        except (LaunchRefusedError, ValueError) as error:
            raise KernelFailed(Finding.LAUNCH_REFUSED, str(error), case) from error

    def workspace(self, bound: Bound, case: Case) -> torch.Tensor | None:
        """Allocate what the contract asks for; NaN-like garbage unless it asks for zeros.

        Raises:
            KernelFailed: If it is more than the GPU has.
        """
        if not bound.workspace_bytes:
            return None
        try:
            scratch = torch.empty(
                bound.workspace_bytes, dtype=torch.uint8, device=self.processor.device
            )
        except torch.OutOfMemoryError:
            detail = f"workspace of {bound.workspace_bytes} bytes"
            raise KernelFailed(Finding.OUT_OF_MEMORY, detail, case) from None
        return scratch.zero_() if bound.workspace_zeroed else scratch.fill_(0xFF)

    def launch(
        self,
        bound: Bound,
        operands: Arena,
        scratch: torch.Tensor | None,
        case: Case,
        *,
        behind: bool = False,
    ) -> None:
        """Launch once and wait.

        Args:
            bound: The kernel, bound to the case.
            operands: The case's operands.
            scratch: The workspace.
            case: What is tried.
            behind: Do not wait first: the kernel is to run right behind what the stream holds.

        Raises:
            KernelFailed: If the driver refuses the launch.
            KernelDied: If the kernel faults or hangs.
        """
        self.case = case
        stream = current_stream(self.processor)
        if not behind:
            self.processor.wait(timeout_s=60.0, what="preparing operands")
        pointers = (operands.a.address, operands.b.address, operands.c.address)
        try:
            bound(*pointers, 0 if scratch is None else scratch.data_ptr(), stream)
        except LaunchRefusedError as error:
            raise KernelFailed(Finding.LAUNCH_REFUSED, str(error), case) from error
        limit = self.launch_timeout_s + 2.0 * case.products / (_SLOWEST_TFLOPS * 1e12)
        self.processor.wait(timeout_s=limit, what=self.source.name)

    def run(
        self, bound: Bound, operands: Arena, scratch: torch.Tensor | None, case: Case
    ) -> torch.Tensor:
        """Launch once more on operands that are there, and return the result."""
        if scratch is not None and bound.workspace_zeroed:
            scratch.zero_()
        operands.poison()
        self.launch(bound, operands, scratch, case)
        self.examples += 1
        return operands.take_result()[0]

    def attempt(self, case: Case) -> None:
        """Run the kernel on fresh operands and judge the result.

        Raises:
            KernelFailed: On the first thing that is wrong.
            UnsupportedProblemError: If the contract does not admit the case.
        """
        operands = self.build(case)
        bound = self.bind(case)
        before = (operands.a.buffer.clone(), operands.b.buffer.clone())
        scratch = self.workspace(bound, case)
        self.launch(bound, operands, scratch, case)
        self.judge(operands, before, case, bound, scratch)

    def judge(
        self,
        operands: Arena,
        before: tuple[torch.Tensor, torch.Tensor],
        case: Case,
        bound: Bound,
        scratch: torch.Tensor | None,
    ) -> None:
        """Check guards, inputs and values after a launch.

        Raises:
            KernelFailed: On the first thing that is wrong.
        """
        self.examples += 1
        result, intact = operands.take_result()
        if not intact:
            detail = "wrote outside the result: before it, after it, or between its rows"
            raise KernelFailed(Finding.GUARD_OVERWRITTEN, detail, case)
        for name, now, was in zip("ab", (operands.a, operands.b), before, strict=True):
            if not torch.equal(now.buffer, was):
                raise KernelFailed(Finding.INPUT_MODIFIED, f"changed operand {name}", case)
        unwritten = int((result.view(torch.int16) == POISON).sum())
        if unwritten:
            detail = f"left {unwritten} of {result.numel()} elements unwritten"
            raise KernelFailed(Finding.UNWRITTEN_OUTPUT, detail, case)
        ratio = self.ratio(operands, result, case)
        if ratio > 1.0:
            self._explain(operands, result, ratio, case, bound, scratch)
        self.worst_ratio = max(self.worst_ratio, ratio)

    def ratio(self, operands: Arena, result: torch.Tensor, case: Case) -> float:
        """Largest error of `result` over its bound."""
        a, b = operands.logical_a, operands.logical_b
        exact = is_exact(case.values)
        return error_ratio(a, b, result, acc=self.source.acc, exact=exact).item()

    def _explain(
        self,
        operands: Arena,
        result: torch.Tensor,
        ratio: float,
        case: Case,
        bound: Bound,
        scratch: torch.Tensor | None,
    ) -> None:
        """Name the fault behind a wrong value; a NaN that goes away with the guards is a read."""
        detail = f"error is {ratio:.3g} times its bound at {_where(operands, result)}"
        if case.values == "nonfinite":
            raise KernelFailed(Finding.WRONG_NONFINITE, detail, case)
        if bool(result.isnan().any()):
            operands.fill(case, guard=0)
            operands.poison()
            self.launch(bound, operands, scratch, case)
            again, _ = operands.take_result()
            if not bool(again.isnan().any()):
                detail = "NaN placed outside an operand, or between its rows, reached the result"
                raise KernelFailed(Finding.READS_OUT_OF_BOUNDS, detail, case)
        if case.values == "accumulator":
            detail = f"sums lose terms beside a large one, as float16 accumulation does: {detail}"
            raise KernelFailed(Finding.HALF_ACCUMULATION, detail, case)
        raise KernelFailed(Finding.WRONG_VALUE, detail, case)


def _where(operands: Arena, result: torch.Tensor) -> str:
    """The element that is furthest off, in words; float32 is precise enough to find it."""
    reference = operands.logical_a.float() @ operands.logical_b.float()
    same = (result == reference) | (result.isnan() & reference.isnan())
    difference = (result.float() - reference).abs().nan_to_num(nan=torch.inf)
    index = int(difference.where(~same, 0.0).argmax())
    rows, columns = result.shape[-2:]
    item, row, column = index // (rows * columns), index // columns % rows, index % columns
    got, needed = result[item, row, column].item(), reference.expand_as(result)[item, row, column]
    return f"[{item}, {row}, {column}]: got {got:.6g}, needed {needed.item():.6g}"
