"""A kernel: one file with its contract, and the target it is compiled for."""

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from l2tune.errors import HeaderError
from l2tune.spec import header as header_format
from l2tune.spec.gpu import Arch, Gpu
from l2tune.spec.header import Backend, Header, Launch
from l2tune.spec.key import Acc, Dtype, GemmKey, Layout
from l2tune.spec.problem import Problem

SHORT_DTYPE = {"float16": "f16", "bfloat16": "bf16"}
LONG_ACC: dict[str, Acc] = {"f32": "float32", "f16": "float16"}


class KernelSource(BaseModel):
    """A whole kernel file, every tunable settled, and the pick that is compiled in.

    Attributes:
        text: The file, with the headers it includes flattened into it.
        arch: Compiler target.
        dtype: Element type of the operands.
        layout: Storage order of a and b.

    Raises:
        HeaderError: If the contract is malformed, or lacks the target, dtype or layout.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    arch: Arch
    dtype: Dtype = "float16"
    layout: Layout = "nn"

    if not TYPE_CHECKING:  # a checker goes on seeing the fields' own signature

        def __init__(self, **fields: object) -> None:
            """Build from fields; pydantic alone would hide a HeaderError in its own exception."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                said = "; ".join(map(header_format.sentence, error.errors()))
                raise HeaderError(f"kernel file: {said}") from None

    def model_post_init(self, _: object) -> None:
        """Refuse a pick that the contract does not offer."""
        offered = self.header
        for name, pick, choices in (
            ("arch", self.arch, offered.arch),
            ("dtype", SHORT_DTYPE[self.dtype], offered.dtype),
            ("layout", self.layout, offered.layout),
        ):
            if pick not in choices:
                raise HeaderError(f"{offered.id}: {name} {pick} is not among {list(choices)}")
        if offered.open_tunables:
            raise HeaderError(
                f"{offered.id}: tunables {list(offered.open_tunables)} are not settled;"
                " instantiate it"
            )

    @cached_property
    def _parsed(self) -> tuple[Backend, Header]:
        return _parse(self.text)

    @property
    def backend(self) -> Backend:
        """`cuda` or `triton`."""
        return self._parsed[0]

    @property
    def header(self) -> Header:
        """The contract."""
        return self._parsed[1]

    @property
    def acc(self) -> Acc:
        """What products are summed in, as the contract declares."""
        return LONG_ACC[self.header.acc]

    @property
    def tunables(self) -> dict[str, int]:
        """Each tunable's settled value."""
        return {name: value for name, value in self.header.tune.items() if isinstance(value, int)}

    @property
    def picks(self) -> dict[str, int]:
        """The compiled-in layout, as contracts and kernels name it."""
        return {"a_t": int(self.layout[0] == "t"), "b_t": int(self.layout[1] == "t")}

    @property
    def defines(self) -> dict[str, int]:
        """Macros the compiler sees."""
        dtype = "L2_DTYPE_F16" if self.dtype == "float16" else "L2_DTYPE_BF16"
        return {dtype: 1, "L2_A_T": self.picks["a_t"], "L2_B_T": self.picks["b_t"], **self.tunables}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides the machine code; the contract is part of the text."""
        parts = [self.backend, self.text, self.arch, self.defines, sorted(self.header.flags)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def name(self) -> str:
        """A readable name: the file's id and its tunables' values."""
        values = ",".join(f"{name}={value}" for name, value in self.tunables.items())
        return f"{self.header.id}[{values}]" if values else self.header.id

    def is_dependent(self, launch: Launch) -> bool:
        """Whether a launch of this file may start before the one ahead of it ends."""
        return bool(launch.pdl({**self.tunables, **self.picks}))

    def names(self, problem: Problem, gpu: Gpu) -> dict[str, int]:
        """Everything an expression of the contract may read."""
        limits = {"sms": gpu.sms, "smem_limit": gpu.smem_limit_bytes}
        return {**problem.names(), **limits, **self.picks, **self.tunables}

    def accepts(self, problem: Problem, gpu: Gpu) -> bool:
        """Whether `requires` admits the problem on this GPU."""
        names = self.names(problem, gpu)
        return all(condition(names) for condition in self.header.requires)

    def serves(self, key: GemmKey) -> bool:
        """Whether this kernel computes `key`: same pick, same sum, and `requires` holds."""
        same = (self.arch, self.dtype, self.layout, self.acc) == (
            key.gpu.arch, key.dtype, key.layout, key.acc,
        )  # fmt: skip
        return same and self.accepts(key.problem(), key.gpu)


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> tuple[Backend, Header]:
    """Many records of a cache share few files, and to parse one takes longer than to read a row."""
    return header_format.parse(text)


def instantiate(text: str, values: Mapping[str, int]) -> str:
    """Settle the tunables of a kernel file; the result is again a whole file.

    Raises:
        HeaderError: If a name is not a tunable, or its value is not among those allowed.
    """
    _, found = header_format.parse(text)
    for name, value in values.items():
        allowed = found.tune.get(name)
        if allowed is None or value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
            raise HeaderError(f"{found.id}: {name}={value} is not allowed; [tune] has {allowed}")
    body_start = len(text) - len(header_format.split(text)[2])
    head, body = text[:body_start], text[body_start:]
    for name, value in values.items():
        head = re.sub(
            rf"^((?:# )?{name}\s*=\s*)(?:\[[^\]]*\]|\d+)",
            rf"\g<1>{value}",
            head,
            count=1,
            flags=re.M,
        )
    settled = head + body
    if header_format.parse(settled)[1].tune != {**found.tune, **values}:
        raise HeaderError(f"{found.id}: each tunable must stand at the start of a line of [tune]")
    return settled


def instances(text: str, gpu: Gpu) -> Iterator[dict[str, int]]:
    """All settings of a file's tunables that its `where` constraints admit on `gpu`."""
    _, found = header_format.parse(text)
    names = list(found.tune)
    choices = [v if isinstance(v, tuple) else (v,) for v in found.tune.values()]
    limits = {"smem_limit": gpu.smem_limit_bytes, "sms": gpu.sms}
    for combination in itertools.product(*choices):
        values = dict(zip(names, combination, strict=True))
        if all(condition({**values, **limits}) for condition in found.where):
            yield values
