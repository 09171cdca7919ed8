"""The launch contract at the head of a kernel file, parsed strictly.

The format is documented in docs/kernel-format.md. Nothing here reads files or compiles.
"""

import functools
import re
import tomllib
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from l2tune.errors import ExpressionError, HeaderError
from l2tune.spec.expr import Expr, Expression
from l2tune.spec.gpu import Arch

Backend = Literal["cuda", "triton"]
ShortDtype = Literal["f16", "bf16"]

ARGUMENTS = (
    "a", "b", "c", "m", "n", "k", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c",
    "a_batched", "b_batched", "workspace",
)  # fmt: skip
PROBLEM_NAMES = frozenset(ARGUMENTS[3:-1]) | {
    "a_t",
    "b_t",
    "align",
    "contiguous",
    "sms",
    "smem_limit",
}

_CUDA = re.compile(r"\A\s*/\*---l2tune\n(.*?)^---\*/\n?", re.DOTALL | re.MULTILINE)
_TRITON = re.compile(r"\A\s*# /// l2tune\n((?:#.*\n)*?)# ///\n?")
_TUNABLE = re.compile(r"(?!L2_)[A-Za-z_][A-Za-z0-9_]*")
_FLAGS = re.compile(r"-O[0-3]|--use_fast_math|--maxrregcount=\d+|--fmad=(true|false)")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(_Table):
    """Who wrote the file."""

    kind: Literal["seed", "search", "llm", "user"] = "user"
    source: str = ""
    model: str = ""
    prompt_sha256: str = ""


class TensorMap(_Table):
    """A TMA descriptor that the host builds for one operand."""

    operand: Literal["a", "b", "c"] | None = None
    box: tuple[Expr, Expr]
    swizzle: Literal[0, 32, 64, 128] = 0
    l2_promotion: Literal[0, 64, 128, 256] = 128


class Launch(_Table):
    """One kernel launch."""

    kernel: str = Field(pattern=r"^[A-Za-z_]\w*$")
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr] = (Expression("1"), Expression("1"), Expression("1"))
    cluster: tuple[Expr, Expr, Expr] = (Expression("1"), Expression("1"), Expression("1"))
    smem: Expr = Expression("0")
    pdl: Expr = Expression("0")
    args: tuple[str, ...]
    num_warps: Expr = Expression("4")
    num_stages: Expr = Expression("3")

    @field_validator("pdl", mode="before")
    @classmethod
    def _bool_is_a_number(cls, value: Any) -> Any:
        return int(value) if isinstance(value, bool) else value


class Expect(_Table):
    """How an exploit of the test suite must be refused.

    Attributes:
        stage: Stage of the gate on a GPU; empty where a GPU may forgive the fault.
        check: Which of the stage's checks; likewise.
        finding: What that check must find; likewise.
        emulator: What the emulator must find; empty where it cannot see the fault.
        shape: The m, n and k it is tried on.
    """

    stage: str = ""
    check: str = ""
    finding: str = ""
    emulator: str = ""
    shape: tuple[int, int, int]

    @model_validator(mode="after")
    def _somebody_sees_it(self) -> "Expect":
        if bool(self.stage) != bool(self.finding) or bool(self.check) != bool(self.finding):
            raise ValueError("stage, check and finding belong together; give all or none")
        if not (self.finding or self.emulator):
            raise ValueError("nobody refuses it; give stage, check and finding, or emulator")
        return self


class Header(_Table):
    """A kernel file's contract."""

    id: str = Field(pattern=r"^[A-Za-z0-9_./-]+$")
    summary: str = ""
    arch: tuple[Arch, ...] = Field(min_length=1)
    dtype: tuple[ShortDtype, ...] = Field(min_length=1)
    acc: Literal["f32", "f16"] = "f32"
    layout: tuple[Literal["nn", "nt", "tn", "tt"], ...] = Field(min_length=1)
    requires: tuple[Expr, ...] = ()
    deterministic: bool = True
    workspace: Expr = Expression("0")
    workspace_zeroed: bool = False
    flags: tuple[str, ...] = ()
    origin: Origin = Origin()
    tune: dict[str, int | tuple[int, ...]] = {}
    where: tuple[Expr, ...] = ()
    tma: dict[str, TensorMap] = {}
    launch: tuple[Launch, ...] = Field(min_length=1)
    expect: Expect | None = None
    verified: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lift_where(cls, data: Any) -> Any:
        """`where` is written inside [tune] beside the tunables it constrains."""
        if isinstance(data, dict) and isinstance(data.get("tune"), dict):
            tune = dict(data["tune"])
            data = {**data, "tune": tune, "where": tune.pop("where", ())}
        return data

    @model_validator(mode="after")
    def _check_names(self) -> "Header":
        for flag in self.flags:
            if not _FLAGS.fullmatch(flag):
                raise ValueError(f"flag {flag!r} is not allowed")
        tunables = frozenset(self.tune)
        for name in tunables:
            if not _TUNABLE.fullmatch(name):
                raise ValueError(f"tunable {name!r} must be an identifier without the prefix L2_")
        if clash := tunables & PROBLEM_NAMES:
            raise ValueError(f"tunables {sorted(clash)} are names of the problem")
        for expression in self._expressions():
            if unknown := expression.names - tunables - PROBLEM_NAMES:
                raise ValueError(
                    f"expression {expression.text!r} uses unknown names {sorted(unknown)}"
                )
        for launch in self.launch:
            for arg in launch.args:
                if arg not in ARGUMENTS and arg not in {f"tma.{name}" for name in self.tma}:
                    raise ValueError(f"launch {launch.kernel!r} has unknown argument {arg!r}")
        for name, table in self.tma.items():
            if (table.operand or name) not in ("a", "b", "c"):
                raise ValueError(f'[tma.{name}] names no operand; add operand = "a", "b" or "c"')
        return self

    @property
    def open_tunables(self) -> tuple[str, ...]:
        """Tunables that have a list of values, not one."""
        return tuple(name for name, value in self.tune.items() if not isinstance(value, int))

    def _expressions(self) -> list[Expression]:
        found = [self.workspace, *self.requires, *self.where]
        for table in self.tma.values():
            found += table.box
        for launch in self.launch:
            found += [*launch.grid, *launch.block, *launch.cluster, launch.smem]
            found += [launch.num_warps, launch.num_stages]
        return found


def split(text: str) -> tuple[Backend, str, str]:
    """Split a kernel file into backend, TOML text and body.

    Raises:
        HeaderError: If the file does not start with a contract.
    """
    if match := _CUDA.match(text):
        return "cuda", match[1], text[match.end() :]
    if match := _TRITON.match(text):
        lines = [line[1:].removeprefix(" ") for line in match[1].splitlines()]
        return "triton", "\n".join(lines) + "\n", text[match.end() :]
    raise HeaderError(
        "kernel file: found no contract, needed one between /*---l2tune and ---*/ (or in a"
        " `# /// l2tune` block for Triton) as its first lines; see docs/kernel-format.md"
    )


@functools.lru_cache(maxsize=256)
def parse(text: str) -> tuple[Backend, Header]:
    """Parse the contract of a kernel file; the last few hundred files are remembered.

    Raises:
        HeaderError: One sentence on what is wrong and where.
    """
    backend, toml, _ = split(text)
    try:
        table = tomllib.loads(toml)
    except ValueError as error:  # tomllib lets an integer of over 4300 digits be Python's own error
        raise HeaderError(f"contract is not TOML: {error}") from None
    try:
        return backend, Header.model_validate(table)
    except ExpressionError as error:
        raise HeaderError(f"contract: {error}") from None
    except ValidationError as error:
        raise HeaderError("contract: " + "; ".join(map(sentence, error.errors()))) from None


def sentence(error: Any) -> str:
    """Say one of pydantic's errors in our words."""
    where = ".".join(str(part) for part in error["loc"]) or "header"
    if error["type"] == "extra_forbidden":
        return f"unknown key {where!r}"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"
