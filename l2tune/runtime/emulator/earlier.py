"""What launches before this one do to memory, as far as they may still run.

A programmatic dependent launch starts before the launch ahead of it has ended: until its
`griddepcontrol.wait` it may not read what that one writes, nor write what that one reads or writes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from l2tune.runtime.emulator.races import Shadow

Array = np.ndarray[Any, Any]
Access = Literal["read", "write"]


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What they do to one buffer.

    Attributes:
        written: Which bytes they write, `bool[bytes]`.
        touched: Which they read or write.
    """

    written: Array
    touched: Array

    @classmethod
    def everything(cls, size_bytes: int) -> Earlier:
        """Nothing is known of them: they may write every byte."""
        every = np.broadcast_to(np.True_, size_bytes)
        return cls(every, every)

    @classmethod
    def nothing(cls, size_bytes: int) -> Earlier:
        """They touch no byte."""
        none = np.broadcast_to(np.False_, size_bytes)
        return cls(none, none)

    def joined(self, shadow: Shadow | None) -> Earlier:
        """With what one launch more did."""
        if shadow is None:
            return self
        written, touched = shadow.touched()
        return Earlier(self.written | written, self.touched | touched)

    def conflict(self, rows: Array, unit: int, access: Access) -> int | None:
        """The first byte of an access that must not come before they have ended, or None.

        Args:
            rows: Byte offsets over `unit`.
            unit: Bytes of each piece.
            access: Whether it reads or writes.
        """
        theirs = self.written if access == "read" else self.touched
        bytes_of = rows[:, None] * unit + np.arange(unit)
        late = bytes_of[theirs[bytes_of]]
        return int(late[0]) if late.size else None
