"""What a launch executed, and how its accesses fall on banks and sectors."""

import dataclasses

import numpy as np

from l2tune.runtime.emulator.program import Instruction
from l2tune.runtime.emulator.warp import Lanes

_BANK_BYTES = 4
_BANKS = 32
_SECTOR_BYTES = 32
_ALL_UP_TO = 4
_THEN_EVERY = 16


@dataclasses.dataclass(slots=True)
class AccessCount:
    """How one instruction accessed memory.

    Attributes:
        text: The instruction.
        space: `shared` or `global`.
        executed: Times that a warp executed it.
        measured: Of these, how many were measured: the first 4, then every 16th.
        ideal: Passes (shared) or sectors (global) that the measured ones needed at least.
        taken: Those that they took.
    """

    text: str
    space: str
    executed: int = 0
    measured: int = 0
    ideal: int = 0
    taken: int = 0

    @property
    def ratio(self) -> float:
        """Passes or sectors for each needed one; 1 is conflict-free or fully coalesced."""
        return self.taken / self.ideal if self.ideal else 1.0


@dataclasses.dataclass
class Statistics:
    """Counts of one launch.

    Attributes:
        kernel: Entry name.
        steps: Instructions that warps executed.
        mix: Executions by instruction name.
        accesses: By line of the PTX.
        blocks: That ran.
    """

    kernel: str
    steps: int = 0
    mix: dict[str, int] = dataclasses.field(default_factory=dict)
    accesses: dict[int, AccessCount] = dataclasses.field(default_factory=dict)
    blocks: int = 0

    def access(
        self, instruction: Instruction, space: str, addresses: Lanes, size_bytes: int
    ) -> None:
        """Count one access of a warp; `addresses` are those of its active lanes."""
        count = self.accesses.get(instruction.line)
        if count is None:
            count = self.accesses[instruction.line] = AccessCount(instruction.text, space)
        count.executed += 1
        if count.executed > _ALL_UP_TO and count.executed % _THEN_EVERY:
            return
        count.measured += 1
        if space == "shared":
            taken, ideal = _passes(addresses, size_bytes)
        else:
            sectors = np.unique(addresses // np.uint64(_SECTOR_BYTES))
            distinct = len(np.unique(addresses)) * size_bytes
            taken, ideal = max(len(sectors), 1), -(-distinct // _SECTOR_BYTES)
        count.taken += taken
        count.ideal += min(ideal, taken)


def _passes(addresses: Lanes, size_bytes: int) -> tuple[int, int]:
    """Passes over the banks that shared memory takes, and those that the bytes need.

    Lanes that ask for one word share it. Accesses of 8 and 16 bytes go in halves and quarters of a
    warp, as the CUDA C++ Programming Guide says of compute capability 5 and later.
    """
    lanes = max(1, _BANKS * _BANK_BYTES // max(size_bytes, _BANK_BYTES))
    taken = ideal = 0
    for first in range(0, len(addresses), lanes):
        part = addresses[first : first + lanes].astype(np.int64)
        words = np.unique(part[:, None] // _BANK_BYTES + np.arange(-(-size_bytes // _BANK_BYTES)))
        taken += int(np.bincount(words % _BANKS, minlength=_BANKS).max())
        ideal += -(-len(words) // _BANKS)
    return taken, ideal
