"""One line of a pack: what was found of a key where the pack was made."""

import hashlib
import json
import math
import re
from typing import Any, Literal

from pydantic import ValidationError, field_serializer, field_validator, model_validator

from l2tune.errors import PackError
from l2tune.spec.header import Origin, sentence
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, CheckPassed, Frozen, Times
from l2tune.spec.record import Record, Tools

SUFFIX = {"cuda": ".cu", "triton": ".py"}
KERNEL_NAME = re.compile(r"[0-9a-f]{16}\.(cu|py)")
"""Of a kernel's file: the start of the SHA-256 of its text."""
_DIGITS = 6
"""Significant digits of a float in a pack; no time is known to more."""


class Entry(Frozen):
    """What a pack says of one key, where the pack was made: claims, until the gate was run here.

    Attributes:
        key: The product; its dtype, layout and GPU's target are the kernel's.
        kernel: File name in `kernels/`.
        eager: What ran eager calls.
        graph: What ran in CUDA graphs.
        reason: Why neither ran the kernel, where `torch.matmul` was the best choice.
        times: As measured.
        checks: Of the gate, passed.
        cubins: SHA-256 of the machine code that was proven and timed.
        origin: Who wrote the kernel.
        tools: What all this was done with.
        created: When.
    """

    key: GemmKey
    kernel: str
    eager: Literal["kernel", "torch"] = "torch"
    graph: Literal["kernel", "torch"] = "torch"
    reason: str = ""
    times: Times
    checks: tuple[CheckPassed, ...]
    cubins: tuple[str, ...]
    origin: Origin
    tools: Tools
    created: str

    @field_validator("key", mode="before")
    @classmethod
    def _parse_key(cls, value: Any) -> Any:
        return GemmKey.parse(value) if isinstance(value, str) else value

    @field_serializer("key")
    def _write_key(self, key: GemmKey) -> str:
        return str(key)

    @field_validator("kernel")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not KERNEL_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no kernel's file name")
        return name

    @model_validator(mode="after")
    def _possible_times(self) -> "Entry":
        measured = [self.times.gpu, self.times.host, self.times.torch_host]
        if "torch" not in self.times.baselines:
            raise ValueError("times lack torch.matmul's")
        for found in (*measured, *self.times.baselines.values()):
            if not 0 < found.lo <= found.hi < math.inf or not 0 < found.us < math.inf:
                raise ValueError(f"{found} is no time")
        return self

    @classmethod
    def of(cls, record: Record) -> "Entry":
        """What a pack keeps of a record; floats are rounded."""
        outcome, compiled = record.outcome, record.verified.compiled
        verdict: dict[str, str]
        if isinstance(outcome, Admitted):
            verdict = {"eager": outcome.eager, "graph": outcome.graph}
        else:
            verdict = {"reason": outcome.reason}
        times = outcome.timing.model_dump(mode="json", exclude={"verified"})
        checks = [check.model_dump(mode="json") for check in record.verified.checks]
        return cls.model_validate({
            "key": record.key,
            "kernel": kernel_name(compiled.source),
            **verdict,
            "times": _rounded(times),
            "checks": _rounded(checks),
            "cubins": compiled.cubins,
            "origin": record.origin,
            "tools": record.tools,
            "created": record.created,
        })  # fmt: skip

    @property
    def line(self) -> str:
        """Its line of `records.jsonl`."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def line_of(record: Record) -> str:
    """The line of `records.jsonl` for a record.

    Raises:
        PackError: If it holds what a pack may not.
    """
    try:
        return Entry.of(record).line
    except ValidationError as error:
        said = "; ".join(map(sentence, error.errors()))
    except ValueError as error:  # a number that JSON has no form for
        said = str(error)
    raise PackError(f"{record.key.label}: {said}")


def read_line(line: str, where: str) -> Entry:
    """The entry of a line, which must be what we would write, so nothing is read in two ways.

    Raises:
        PackError: If it is anything else; `where` says which line it is.
    """
    try:
        entry = Entry.model_validate_json(line)
        same = entry.line == line
    except ValidationError as error:
        raise PackError(f"{where}: {'; '.join(map(sentence, error.errors()))[:500]}") from None
    except ValueError as error:  # a key that does not parse, a number that is none
        raise PackError(f"{where}: {str(error)[:500]}") from None
    if not same:
        raise PackError(f"{where}: not written as l2tune writes it; build the pack again")
    return entry


def kernel_name(source: KernelSource) -> str:
    """What a kernel's file is called in a pack."""
    return hashlib.sha256(source.text.encode()).hexdigest()[:16] + SUFFIX[source.backend]


def _rounded(data: Any) -> Any:
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}")
    if isinstance(data, dict):
        return {name: _rounded(value) for name, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list) else data
