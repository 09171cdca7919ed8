"""One line of a pack's `kernels.jsonl`: a kernel, and what holds for it whatever the key."""

import hashlib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pydantic import field_validator, model_validator

from l2tune.errors import HeaderError
from l2tune.spec.header import Backend, Origin, parse
from l2tune.spec.kernel import KernelSource, instantiate
from l2tune.spec.outcome import KEY_CHECKS
from l2tune.spec.record import Record, Tools
from l2tune.store.lines import Line, ShortCheck, rounded

FILE_NAME = re.compile(r"[0-9a-f]{16}\.(cu|py)")
"""Of a kernel's file: the start of the SHA-256 of its text."""
_SUFFIX = {"cuda": ".cu", "triton": ".py"}
_ID_DIGITS = 12


class PackedKernel(Line):
    """What a pack says of a kernel, where the pack was made.

    Attributes:
        file: File name in `kernels/`.
        tunables: A value for each tunable that the file leaves open, in the file's order.
        cubins: SHA-256 of the machine code that was proven and timed.
        checks: Those of the gate that are for the kernel, passed.
        origin: Who wrote it.
        tools: What it was proven and timed with.
    """

    file: str
    tunables: dict[str, int] = {}
    cubins: tuple[str, ...]
    checks: tuple[ShortCheck, ...]
    origin: Origin
    tools: Tools

    @model_validator(mode="before")
    @classmethod
    def _leave_id(cls, data: Any) -> Any:
        """It follows from the rest; another one is no line that l2tune writes."""
        return {k: v for k, v in data.items() if k != "id"} if isinstance(data, dict) else data

    @field_validator("file")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no kernel's file name")
        return name

    @cached_property
    def id(self) -> str:
        """What the lines of keys call it: the start of the SHA-256 of the rest of its line."""
        return hashlib.sha256(super().line.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def line(self) -> str:
        """Its text, the id first."""
        return f'{{"id":"{self.id}",{super().line.removeprefix("{")}'

    @classmethod
    def of(cls, record: Record, text: str, tunables: dict[str, int]) -> "PackedKernel":
        """What a pack keeps of a record for its kernel; floats are rounded.

        Args:
            record: What was found.
            text: The kernel's file.
            tunables: Values of what the file leaves open.
        """
        compiled = record.verified.compiled
        checks = [c.model_dump() for c in record.verified.checks if c.check not in KEY_CHECKS]
        return cls.model_validate({
            "file": file_name(text, compiled.source.backend),
            "tunables": tunables,
            "cubins": compiled.cubins,
            "checks": rounded(checks),
            "origin": record.origin,
            "tools": record.tools,
        })  # fmt: skip

    def settled(self, text: str) -> str:
        """The whole kernel, from the text of its file.

        Raises:
            HeaderError: If the file is none, leaves other tunables open, or allows other values.
        """
        offered = parse(text)[1]
        if tuple(self.tunables) != offered.open_tunables:
            raise HeaderError(
                f"{offered.id}: needed values of {list(offered.open_tunables)}, in this order,"
                f" found some of {list(self.tunables)}"
            )
        return instantiate(text, self.tunables)


def file_name(text: str, backend: Backend) -> str:
    """What a kernel's file is called in a pack."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] + _SUFFIX[backend]


def reopened(source: KernelSource, templates: Iterable[str]) -> tuple[str, dict[str, int]]:
    """The file that a kernel is stored as, and the values of the tunables that it leaves open.

    Args:
        source: The kernel.
        templates: Files that it may be an instance of; if it is of none, byte for byte, its own
            text is its file, and nothing is open.
    """
    for template in templates:
        try:
            values = {name: source.tunables[name] for name in parse(template)[1].open_tunables}
            if instantiate(template, values) == source.text:
                return template, values
        except (HeaderError, KeyError):
            pass  # of another version
    return source.text, {}
