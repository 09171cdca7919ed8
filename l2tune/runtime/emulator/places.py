"""Which region an address falls into, with every active lane checked for bounds and alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.findings import Fault
from l2tune.runtime.emulator.image import Image
from l2tune.runtime.emulator.program import WARP_LANES
from l2tune.runtime.emulator.regions import Array, Region
from l2tune.runtime.emulator.spaces import CONST, LOCAL, PARAM, RANK_BYTES, SHARED
from l2tune.runtime.emulator.warp import Lanes

if TYPE_CHECKING:
    from l2tune.runtime.emulator.block import Block
    from l2tune.runtime.emulator.warp import Warp

_WINDOW_SHIFT = 40
_SPACES = {
    SHARED >> _WINDOW_SHIFT: "shared", LOCAL >> _WINDOW_SHIFT: "local",
    PARAM >> _WINDOW_SHIFT: "param", CONST >> _WINDOW_SHIFT: "const",
}  # fmt: skip
_WINDOWS = {"local": LOCAL, "param": PARAM, "const": CONST}


class Places:
    """The regions of a launch.

    Attributes:
        buffers: Global memory.
        param: The parameters.
        const: Constant memory of the module.
        local_bytes: Of each thread.
    """

    def __init__(self, buffers: GlobalMemory, image: Image) -> None:
        self.buffers = buffers
        self.param = Region("the parameters", "param", np.frombuffer(image.param, dtype=np.uint8))
        self.const = Region("constant memory", "const", np.frombuffer(image.const, dtype=np.uint8))
        self.local_bytes = image.local_bytes
        self._local: dict[int, Region] = {}

    def find(
        self, warp: Warp, mask: Lanes, space: str, addresses: Lanes, size_bytes: int
    ) -> tuple[Region, Array, str] | None:
        """Region, rows (byte offset over size) and state space of the active lanes.

        Args:
            warp: Who asks.
            mask: Active lanes; at least one.
            space: As in the instruction, or `generic`.
            addresses: Of the active lanes only.
            size_bytes: A power of two up to 16.

        Returns:
            None where the lanes do not all fall into the region of the first.

        Raises:
            EmulationStopped: If a lane's address is misaligned, or the only lane's out of bounds.
        """
        first = int(addresses[0])
        region, base, space = self._region(warp, mask, space, first)
        offsets = addresses - np.uint64(base)
        low = int(np.bitwise_or.reduce(offsets))
        if low & (size_bytes - 1):
            self._stop_misaligned(warp, mask, addresses, size_bytes)
        end = self.local_bytes if space == "local" else region.size_bytes
        if int(offsets.max()) > end - size_bytes:
            if len(addresses) > 1:
                return None
            self._stop_outside(warp, mask, region, space, first, base, size_bytes)
        if space == "local":
            stride = region.size_bytes // WARP_LANES
            offsets = offsets + np.flatnonzero(mask).astype(np.uint64) * np.uint64(stride)
        rows: Array = offsets.view(np.int64) // size_bytes
        return region, rows, space

    def shared_target(self, warp: Warp, space: str, address: int) -> tuple[Block, int]:
        """The block and offset that a shared-memory address means to a warp.

        Raises:
            EmulationStopped: If it is no shared address, or of a block outside the cluster.
        """
        block = warp.block
        if address >> _WINDOW_SHIFT == SHARED >> _WINDOW_SHIFT:
            rank = (address - SHARED) // RANK_BYTES
        elif space == "generic" or address >> _WINDOW_SHIFT:
            warp.stop(Fault.INVALID_USE, f"{address:#x} is not in shared memory", address=address)
        elif address >= RANK_BYTES:
            rank = address // RANK_BYTES - 1
        else:
            return block, address
        if rank >= len(block.cluster):
            warp.stop(
                Fault.OUT_OF_BOUNDS,
                f"{address:#x} is shared memory of rank {rank}, and the cluster has"
                f" {len(block.cluster)} blocks",
                address=address,
            )
        return block.cluster[rank], address % RANK_BYTES

    def _region(self, warp: Warp, mask: Lanes, space: str, address: int) -> tuple[Region, int, str]:
        """Region of an address, the address of its start, and its state space."""
        if space == "global" or (space == "generic" and address >> _WINDOW_SHIFT not in _SPACES):
            found = self.buffers.nearest(address)
            if found is None:
                message = f"no memory is mapped at {address:#x}"
                warp.stop(Fault.OUT_OF_BOUNDS, message, mask, address=address)
            assert found is not None
            return *found, "global"
        if space == "generic":
            space = _SPACES[address >> _WINDOW_SHIFT]
        if space.startswith("shared"):
            block, offset = self.shared_target(warp, space, address)
            return block.shared.region, address - offset, "shared"
        space = space.partition("::")[0]
        base = _WINDOWS.get(space, 0) if address >> _WINDOW_SHIFT else 0
        if space == "local":
            return self.local_of(warp), base, space
        return (self.param if space == "param" else self.const), base, space

    def local_of(self, warp: Warp) -> Region:
        """A warp's local memory, one lane's after the other's."""
        region = self._local.get(warp.agent)
        if region is None:
            size = -(-self.local_bytes // 16) * 16 * WARP_LANES
            data, written = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
            region = self._local[warp.agent] = Region("local", "local", data, written=written)
        return region

    def _stop_misaligned(self, warp: Warp, mask: Lanes, addresses: Lanes, size_bytes: int) -> None:
        place = int(np.flatnonzero(addresses & np.uint64(size_bytes - 1))[0])
        warp.stop(
            Fault.MISALIGNED,
            f"an access of {size_bytes} bytes at {int(addresses[place]):#x}, needed a multiple of"
            f" {size_bytes}",
            one_lane(mask, place),
            address=int(addresses[place]),
        )

    def _stop_outside(
        self, warp: Warp, mask: Lanes, region: Region, space: str, address: int, base: int,
        size_bytes: int,
    ) -> None:  # fmt: skip
        offset = (address - base) % (1 << 64)
        end = self.local_bytes if space == "local" else region.size_bytes
        past = offset + size_bytes - end
        warp.stop(
            Fault.OUT_OF_BOUNDS,
            f"{size_bytes} bytes at {address:#x} end {past} bytes past {region.name}"
            f" ({end} bytes at {base:#x})",
            mask,
            address=address,
        )


def one_lane(mask: Lanes, place: int) -> Any:
    """The mask of the active lane at a place among the active ones."""
    return np.arange(WARP_LANES) == np.flatnonzero(mask)[place]
