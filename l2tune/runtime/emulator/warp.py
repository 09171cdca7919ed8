"""A warp's state, and how instructions read and write it.

Registers hold raw bits: `pred` as bool, others as unsigned integers of their width, 32 lanes each.
An instruction's meaning is a `Step`, built once when the kernel is loaded and called for each warp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from l2tune.runtime.emulator.findings import EmulationStopped, EmulatorFinding, Fault
from l2tune.runtime.emulator.program import WARP_LANES, Instruction, Register

if TYPE_CHECKING:
    from l2tune.runtime.emulator.block import Block

Lanes = np.ndarray[Any, Any]
"""32 values, one a lane."""

FULL: Lanes = np.ones(WARP_LANES, dtype=bool)
"""The mask of all lanes; compare with `is` for the quick path."""
FULL.setflags(write=False)

NOWHERE = 1 << 62
"""Above every instruction."""

_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@functools.cache
def width_bytes(ptx_type: str) -> int:
    """Bytes of a PTX type such as `u32` or `bf16x2`; 0 for `pred`."""
    if ptx_type == "pred":
        return 0
    if ptx_type in ("f16x2", "bf16x2"):
        return 4
    return int("".join(c for c in ptx_type.replace("bf", "").replace("tf", "") if c.isdigit())) // 8


@functools.cache
def register_dtype(ptx_type: str) -> type:
    """What holds a register of a PTX type: bool for `pred`, else an unsigned integer."""
    return bool if ptx_type == "pred" else _DTYPES[width_bytes(ptx_type)]


class Wait:
    """Returned by a `Step` that cannot go on: the warp stays at the instruction and is tried again.

    Attributes:
        fault: What it is if nothing ever goes on.
        lasts: Whether another try would find nothing else; None where only a try can tell.
    """

    __slots__ = ("_what", "fault", "lasts")

    def __init__(
        self,
        what: object,
        fault: Fault = Fault.DEADLOCK,
        lasts: Callable[[], bool] | None = None,
    ) -> None:
        """Wait for `what`, whose text says so."""
        self._what, self.fault, self.lasts = what, fault, lasts

    @property
    def reason(self) -> str:
        """For a deadlock's message."""
        return str(self._what)


GIVES_WAY: Final = Wait("")
"""Returned by a `Step` that is done, and after which other warps run first."""


class NotTogetherError(Exception):
    """Raised within a `Step` that needs lanes which are elsewhere: as if it returned a `Wait`.

    Attributes:
        wait: What it would return.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.wait = Wait(reason, Fault.INVALID_USE)


Step = Callable[["Warp", Lanes], Wait | None]
"""Executes one instruction for the lanes of a mask that is never empty."""


class Warp:
    """32 threads of a block.

    Attributes:
        block: Where it belongs.
        index: In the block.
        agent: Its index among the launch's clocks (`races`).
        registers: By slot; None until first written.
        at: Next instruction of the lanes that run now.
        group: These lanes; `FULL` itself where they are all.
        limit: The lowest instruction above `at` at which other lanes stand, which join there.
        pc: Next instruction of the lanes that do not run now (`execution`).
        alive: Lanes that have not exited and exist (the last warp of a block may be partial).
        in_flight: Slots of registers that an unfinished `wgmma` will write or still reads.
        frame: Where in local memory each lane's frame starts: 0 in the kernel, more in functions.
        calls: Each lane's calls, the innermost last (`calls`).
    """

    def __init__(self, block: Block, index: int, agent: int, slots: int, lanes: int) -> None:
        self.block, self.index, self.agent = block, index, agent
        self.registers: list[Lanes | None] = [None] * slots
        self.defined: list[Lanes | None] = [None] * slots  # lanes written so far; FULL when all
        self.pc = np.full(WARP_LANES, block.kernel.start)
        self.alive = np.arange(WARP_LANES) < lanes
        self.at, self.limit = block.kernel.start, NOWHERE
        self.group = FULL if lanes == WARP_LANES else self.alive
        self.waiting: Wait | None = None  # why it stands still
        self.parked: Callable[[], bool] | None = None  # if all lanes wait for one thing: still?
        self.sleeps = False  # gave way to other warps when it last ran
        self.specials: dict[str, Lanes] = {}  # special registers that never change
        self.in_flight: dict[int, str] = {}
        self.instruction: Instruction | None = None  # the one being executed
        self.carry: Lanes = np.zeros(WARP_LANES, dtype=bool)  # CC.CF, of `add.cc` and its like
        self.frame: Lanes = np.zeros(WARP_LANES, dtype=np.uint64)
        self.calls: list[list[Any]] = [[] for _ in range(WARP_LANES)]
        self.tensor: Any = None  # state of wgmma groups (ops.wgmma)
        self.copies: Any = None  # state of cp.async groups and bulk groups (ops.cp_async, ops.bulk)

    @property
    def threads(self) -> Lanes:
        """Linear index in the block of each lane."""
        return self.index * WARP_LANES + np.arange(WARP_LANES)

    def read(self, register: Register, mask: Lanes) -> Lanes:
        """A register's raw bits, all lanes; do not write into the result.

        Raises:
            EmulationStopped: If a lane of `mask` never wrote it, or a `wgmma` still holds it.
        """
        slot = register.slot
        value, defined = self.registers[slot], self.defined[slot]
        if self.in_flight and slot in self.in_flight:
            self.stop(Fault.ACCUMULATOR_IN_FLIGHT, f"{register.name}: {self.in_flight[slot]}", mask)
        if value is None or (defined is not FULL and not defined[mask].all()):  # type: ignore[index]
            self.stop(Fault.UNINITIALISED, f"{register.name} is read before it is written", mask)
        return value  # type: ignore[return-value]  # stop() raises

    def write(self, register: Register, value: Lanes, mask: Lanes) -> None:
        """Set a register's raw bits for the lanes of `mask`; `value` has the register's dtype.

        Raises:
            EmulationStopped: If a `wgmma` still holds it.
        """
        slot = register.slot
        if self.in_flight and slot in self.in_flight:
            self.stop(Fault.ACCUMULATOR_IN_FLIGHT, f"{register.name}: {self.in_flight[slot]}", mask)
        if mask is FULL:
            self.registers[slot], self.defined[slot] = value, FULL
            return
        old, defined = self.registers[slot], self.defined[slot]
        if old is None:
            old, defined = np.zeros(WARP_LANES, dtype=value.dtype), np.zeros(WARP_LANES, dtype=bool)
        self.registers[slot] = np.where(mask, value, old)
        self.defined[slot] = FULL if defined is FULL else defined | mask

    def stop(
        self, fault: Fault, message: str, mask: Lanes | None = None, *, address: int | None = None
    ) -> None:
        """Report a finding at the current instruction and end the launch.

        Args:
            fault: Its kind.
            message: One sentence.
            mask: Lanes concerned; the first is named.
            address: Where.

        Raises:
            EmulationStopped: Always.
        """
        at = self.instruction
        lane = None if mask is None or not mask.any() else int(np.flatnonzero(mask)[0])
        raise EmulationStopped(
            EmulatorFinding(
                fault=fault,
                message=message,
                kernel=self.block.kernel.name,
                line=at.line if at else 0,
                instruction=at.text if at else "",
                source_line=at.source_line if at else None,
                block=self.block.index,
                thread=None if lane is None else self.index * WARP_LANES + lane,
                address=address,
            )
        )
