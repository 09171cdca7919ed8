"""One line of a pack's `records.jsonl`: what was found of a key where the pack was made."""

import math
from typing import Any, Literal

from pydantic import ValidationInfo, field_serializer, field_validator, model_validator

from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import KEY_CHECKS, Admitted, HostPath, Times
from l2tune.spec.record import Record
from l2tune.store.lines import Line, ShortCheck, ShortInterval, rounded


class ShortTimes(Times):
    """Times as a line has them: intervals are lists, and what most keys have is left out."""

    gpu: ShortInterval
    host: ShortInterval
    host_path: HostPath = "native"
    baselines: dict[str, ShortInterval]
    torch_host: ShortInterval
    server: dict[str, ShortInterval] = {}


class Entry(Line):
    """What a pack says of one key, where the pack was made: claims, until the gate was run here.

    Attributes:
        key: The product; a line leaves out its GPU, which is the pack's.
        kernel: Which of the pack's kernels, by id.
        serves: Which calls run the kernel; `torch.matmul` runs the others.
        reason: Why none do, where `torch.matmul` was the best choice.
        times: As measured.
        checks: Those of the gate that are for the key, passed.
        created: When.
    """

    key: GemmKey
    kernel: str
    serves: Literal["both", "eager", "graph", "neither"] = "neither"
    reason: str = ""
    times: ShortTimes
    checks: tuple[ShortCheck, ...]
    created: str

    @field_validator("key", mode="before")
    @classmethod
    def _parse_key(cls, value: Any, info: ValidationInfo) -> Any:
        return GemmKey.parse(f"{value}/{info.context}") if isinstance(value, str) else value

    @field_serializer("key")
    def _write_key(self, key: GemmKey) -> str:
        return str(key).removesuffix(f"/{key.gpu}")

    @model_validator(mode="after")
    def _possible_times(self) -> "Entry":
        times = self.times
        if "torch" not in times.baselines:
            raise ValueError("times lack torch.matmul's")
        measured = [times.gpu, times.host, times.torch_host]
        for found in (*measured, *times.baselines.values(), *times.server.values()):
            if not 0 < found.lo <= found.hi < math.inf or not 0 < found.us < math.inf:
                raise ValueError(f"{found} is no time")
        return self

    @classmethod
    def of(cls, record: Record, kernel: str) -> "Entry":
        """What a pack keeps of a record for its key; floats are rounded.

        Args:
            record: What was found.
            kernel: The id of its kernel.

        Raises:
            ValidationError: If it holds what a pack may not.
        """
        outcome = record.outcome
        if isinstance(outcome, Admitted):
            verdict = {"serves": _SERVES[outcome.eager, outcome.graph]}
        else:
            verdict = {"reason": outcome.reason}
        times = outcome.timing.model_dump(mode="json", exclude={"verified"})
        checks = [c.model_dump() for c in record.verified.checks if c.check in KEY_CHECKS]
        return cls.model_validate({
            "key": record.key,
            "kernel": kernel,
            **verdict,
            "times": rounded(times),
            "checks": rounded(checks),
            "created": record.created,
        })  # fmt: skip


_SERVES = {
    ("kernel", "kernel"): "both",
    ("kernel", "torch"): "eager",
    ("torch", "kernel"): "graph",
    ("torch", "torch"): "neither",
}
