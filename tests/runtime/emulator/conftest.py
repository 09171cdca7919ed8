"""One instruction at a time: wraps it into a kernel, parses, builds and executes it on a warp."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from l2tune.runtime.emulator import parser
from l2tune.runtime.emulator.block import Block
from l2tune.runtime.emulator.ops import build
from l2tune.runtime.emulator.warp import FULL, Warp, register_dtype

_REGISTERS = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 first, .param .u32 second)
{
  .reg .pred %p<8>;
  .reg .b16 %rs<12>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<12>;
  .reg .f32 %f<12>;
  .reg .f64 %fd<12>;
  .shared .align 16 .b8 tile[512];
"""


class LaneMemory:
    """4096 bytes, for the instructions that reach memory; real checks are memory's own tests."""

    def __init__(self) -> None:
        self.bytes = np.zeros(4096, dtype=np.uint8)
        self.calls: list[tuple[str, str, bool]] = []

    def load(self, warp, mask, space, addresses, size_bytes, *, atomic=False):
        self.calls.append(("load", space, atomic))
        at = np.where(mask, addresses, 0).astype(np.int64)[:, None] + np.arange(size_bytes)
        return self.bytes[at]

    def store(self, warp, mask, space, addresses, data, *, atomic=False):
        self.calls.append(("store", space, atomic))
        for lane in np.flatnonzero(mask):
            at = int(addresses[lane])
            self.bytes[at : at + data.shape[1]] = data[lane]

    def atomic(self, warp, mask, space, addresses, size_bytes, function):
        self.calls.append(("atomic", space, True))
        old = np.zeros((32, size_bytes), dtype=np.uint8)
        for lane in np.flatnonzero(mask):
            place = slice(int(addresses[lane]), int(addresses[lane]) + size_bytes)
            old[lane] = self.bytes[place]
            self.bytes[place] = function(old[lane : lane + 1].copy(), int(lane))[0]
        return old


@dataclasses.dataclass
class Lab:
    """A warp of a kernel of one block, its registers set by name."""

    memory: LaneMemory = dataclasses.field(default_factory=LaneMemory)
    rank: int = 0

    def run(self, text: str, mask: Any = None, /, **inputs: Any) -> "Lab":
        """Execute instructions in order with 32-lane inputs (`r1=..`, one value or an array)."""
        kernel = parser.parse(_REGISTERS + text + "\n}").kernels["kernel"]
        machine: Any = SimpleNamespace(
            memory=self.memory,
            params=[(0x1122334455667788).to_bytes(8, "little"), (77).to_bytes(4, "little")],
            special=lambda name, warp: np.arange(32, dtype=np.uint32),
            symbol_address=lambda name, space, block: 64 if name == "tile" else 0,
        )
        shared: Any = None
        block = Block(machine, kernel, (0, 0, 0), self.rank, shared)
        self.warp = Warp(block, 0, 0, len(kernel.registers), 32)
        self.names = {register.name: register for register in kernel.registers}
        for name, value in inputs.items():
            self._set(self.names[f"%{name}"], value)
        with np.errstate(all="ignore"):
            for instruction in kernel.instructions:
                self.warp.instruction = instruction
                build(instruction, kernel)(self.warp, FULL if mask is None else mask)
        return self

    def _set(self, register, value):
        dtype = register_dtype(register.type)
        lanes = np.broadcast_to(np.asarray(value), (32,))
        if dtype is not bool and lanes.dtype.kind == "f":
            lanes = np.ascontiguousarray(lanes).view(f"u{lanes.dtype.itemsize}")
        self.warp.write(register, np.ascontiguousarray(lanes.astype(dtype)), FULL)

    def __getitem__(self, name: str) -> np.ndarray:
        """A register's raw bits."""
        value = self.warp.registers[self.names[f"%{name}"].slot]
        assert value is not None, f"%{name} was not written"
        assert value.dtype == register_dtype(self.names[f"%{name}"].type)
        assert value.shape == (32,)
        return value


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture(scope="session")
def run_one() -> Callable[..., Lab]:
    """`run_one("add.s32 %r3, %r1, %r2;", r1=..., r2=...)["r3"]`."""
    return lambda text, mask=None, **inputs: Lab().run(text, mask, **inputs)
