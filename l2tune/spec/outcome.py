"""What each stage answers. A kernel's fault is a value here, never an exception.

The types carry the proof: only the gate makes a `Verified`, measuring takes only a `Verified`, and
admission only the `Timing` of one.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey


class Finding(StrEnum):
    """What is wrong with a refused kernel; docs/gate.md describes each."""

    REQUIRES_REFUSED = "requires_refused"
    MALFORMED = "malformed"
    HOST_CODE = "host_code"
    INCLUDE = "include"
    SIZE = "size"
    WRITABLE_GLOBAL = "writable_global"
    RESOURCES = "resources"
    LAUNCH_REFUSED = "launch_refused"
    OUT_OF_MEMORY = "out_of_memory"
    FAULT = "fault"
    HANG = "hang"
    GUARD_OVERWRITTEN = "guard_overwritten"
    INPUT_MODIFIED = "input_modified"
    UNWRITTEN_OUTPUT = "unwritten_output"
    READS_OUT_OF_BOUNDS = "reads_out_of_bounds"
    WRONG_VALUE = "wrong_value"
    WRONG_NONFINITE = "wrong_nonfinite"
    STALE_OUTPUT = "stale_output"
    HALF_ACCUMULATION = "half_accumulation"
    NOT_REPRODUCIBLE = "not_reproducible"
    IGNORES_DEPENDENCY = "ignores_dependency"
    IMPOSSIBLE_TIME = "impossible_time"
    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised"
    SHARED_RACE = "shared_race"
    GLOBAL_RACE = "global_race"
    MISSING_PROXY_FENCE = "missing_proxy_fence"
    ACCUMULATOR_IN_FLIGHT = "accumulator_in_flight"
    BARRIER_DIVERGENCE = "barrier_divergence"
    DEADLOCK = "deadlock"
    UNFINISHED_ASYNC = "unfinished_async"
    INVALID_USE = "invalid_use"


Stage = Literal[
    "contract", "screen", "compile", "emulator", "sandbox", "properties", "repeat", "time"
]


HostPath = Literal["native", "python"]
"""How `l2tune.matmul` reaches a kernel: the C++ extension, or Python with more host time."""


class Frozen(BaseModel):
    """Immutable, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Refuted(Frozen):
    """The first failure of a kernel in the gate.

    Attributes:
        stage: Stage of the gate.
        check: Which of the stage's checks.
        finding: What kind of fault it is.
        detail: One sentence for a person, or a language model's next prompt.
        case: The smallest case found that shows it: sizes, strides, value class, seed.
    """

    stage: Stage
    check: str
    finding: Finding
    detail: str
    case: dict[str, Any] = {}


class CompileFailed(Frozen):
    """The compiler refused the file, or ran into its limits."""

    kind: Literal["error", "time_limit", "memory_limit", "crash"]
    log: str


class KernelResources(Frozen):
    """What the compiler says one `__global__` function uses, for each thread or block."""

    registers: int
    smem_static_bytes: int
    spill_bytes: int
    stack_bytes: int


class LaunchData(Frozen):
    """What a compiler decided about one launch, where the contract leaves it open (Triton)."""

    kernel: str
    block: tuple[int, int, int] | None = None
    smem_bytes: int | None = None
    extra_pointers: int = 0


class Compiled(Frozen):
    """A kernel's machine code, with what can be read from it.

    Attributes:
        source: What was compiled.
        cubins: SHA-256 of each launch's cubin in the artifact store; CUDA files have one for all.
        ptx: SHA-256 of each cubin's PTX, returned by the same compilation.
        launches: One entry for each launch of the contract.
        resources: By entry name.
        writable_globals: Names of mutable file-scope variables found in the cubin.
        compiler: Name and version.
        log: The compiler's remarks.
    """

    source: KernelSource
    cubins: tuple[str, ...]
    ptx: tuple[str, ...] = ()
    launches: tuple[LaunchData, ...]
    resources: dict[str, KernelResources]
    writable_globals: tuple[str, ...] = ()
    compiler: str
    log: str = ""


KEY_CHECKS = ("smoke", "key_values", "metamorphic", "key_repeat")
"""Checks of the gate that are for one key, its exact shape; the others are for a kernel."""


class CheckPassed(Frozen):
    """One check of the gate that a kernel passed.

    Attributes:
        check: Its name.
        examples: Cases tried.
        seed: What the cases were drawn from.
        worst_ratio: Largest error over its bound, where the check compares values.
        note: What the check could not do, where it could not do all.
    """

    check: str
    examples: int
    seed: int
    worst_ratio: float = 0.0
    note: str = ""


class Verified(Frozen):
    """Proof that a kernel passed the gate for its contract and for one key."""

    key: GemmKey
    compiled: Compiled
    checks: tuple[CheckPassed, ...]

    @property
    def examples(self) -> int:
        """Cases tried in all."""
        return sum(check.examples for check in self.checks)


class Interval(Frozen):
    """A median with its bootstrap 95 % interval, in microseconds."""

    us: float
    lo: float
    hi: float

    def beats(self, other: "Interval") -> bool:
        """Whether this is faster by more than both intervals."""
        return self.hi < other.lo


class Times(Frozen):
    """What a kernel and the baselines took, all in the same run.

    Attributes:
        gpu: Device time by graph replay, cold operands.
        host: Host-inclusive time of one synchronised `l2tune.matmul` call.
        host_path: Which of `l2tune.matmul`'s two paths that call took.
        baselines: Device time of each library, by name; `torch` is always there.
        missing_baselines: Those asked for that this machine cannot run.
        torch_host: Host-inclusive time of one synchronised `torch.matmul` call.
        server: Device time of single calls at random gaps, by name: `kernel` and some baselines.
        floor_us: What a very good kernel may reach (`l2tune.spec.roofline`); 0 if unknown.
        clock_mhz: Median multiprocessor clock while timing.
        power_w: Median board power while timing.
        samples: Timed rounds.
        run_id: Identifies the process that timed.
        method: `offline`: back to back, operands rotated beyond the L2.
    """

    gpu: Interval
    host: Interval
    host_path: HostPath
    baselines: dict[str, Interval]
    missing_baselines: tuple[str, ...] = ()
    torch_host: Interval
    server: dict[str, Interval] = {}
    floor_us: float
    clock_mhz: float = 0.0
    power_w: float = 0.0
    samples: int
    run_id: str
    method: Literal["offline"] = "offline"

    @property
    def speedup(self) -> float:
        """`torch.matmul`'s device time over the kernel's."""
        return self.baselines["torch"].us / self.gpu.us


class Timing(Times):
    """One kernel timed beside the baselines.

    Attributes:
        verified: What was timed.
    """

    verified: Verified


class Admitted(Frozen):
    """The kernel wins somewhere; what runs in eager calls and inside graphs is decided apart."""

    timing: Timing
    eager: Literal["kernel", "torch"]
    graph: Literal["kernel", "torch"]


class Declined(Frozen):
    """Right, but not faster than `torch.matmul` beyond the noise."""

    timing: Timing
    reason: str


class Estimated(Frozen):
    """A kernel proven on the emulator, and a model's guess at its time; nothing was timed.

    It is no `Timing` and no `Admitted`: nothing that serves users takes one.

    Attributes:
        verified: The proof.
        estimate_us: What the model says (docs/measuring.md).
        terms_us: What the estimate is made of, by name.
        floor_us: What a very good kernel may reach (`l2tune.spec.roofline`).
    """

    verified: Verified
    estimate_us: float
    terms_us: dict[str, float]
    floor_us: float
