"""Which GPU a kernel was proven and timed on.

A record for one GPU never serves another, and a MIG slice (fewer multiprocessors) is another GPU.
"""

import re
from typing import Literal
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict

from l2tune.errors import KeyFormatError

Arch = Literal["sm_80", "sm_90a"]

_SMEM_LIMIT_BYTES = {(8, 0): 166912, (9, 0): 232448}
"""Shared memory one block may opt into: CUDA C++ Programming Guide, compute capabilities."""


class Gpu(BaseModel):
    """A GPU model as far as kernels care: name, compute capability, multiprocessors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    capability: tuple[int, int]
    sms: int

    @property
    def arch(self) -> Arch | None:
        """The compiler target whose cubins this GPU runs and whose kernels are tuned for it."""
        if self.capability == (9, 0):
            return "sm_90a"
        return "sm_80" if self.capability[0] == 8 else None

    @property
    def smem_limit_bytes(self) -> int:
        """Shared memory that one block may use."""
        return _SMEM_LIMIT_BYTES.get(self.capability, 101376)

    @property
    def slug(self) -> str:
        """A folder name, as `nvidia-h200`."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{quote(self.name, safe='')}-{major}.{minor}-{self.sms}"

    @classmethod
    def parse(cls, text: str) -> "Gpu":
        """Read back what `str(gpu)` wrote."""
        match = re.fullmatch(r"(.+)-(\d+)\.(\d+)-(\d+)", text)
        if match is None:
            raise KeyFormatError(
                f"GPU {text!r}: needed NAME-MAJOR.MINOR-SMS, as NVIDIA%20H200-9.0-132"
            )
        name, major, minor, sms = match.groups()
        try:
            return cls(name=unquote(name), capability=(int(major), int(minor)), sms=int(sms))
        except ValueError as error:  # thousands of digits
            raise KeyFormatError(f"GPU {text[:80]!r}: {error}") from None


H200 = Gpu(name="NVIDIA H200", capability=(9, 0), sms=132)
A100 = Gpu(name="NVIDIA A100-SXM4-80GB", capability=(8, 0), sms=108)
