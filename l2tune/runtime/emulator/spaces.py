"""Where each state space lies among the generic 64-bit addresses, and where it ends."""

GLOBAL = 0x7000_0000_0000
SHARED = 0x0100_0000_0000
LOCAL = 0x0200_0000_0000
PARAM = 0x0300_0000_0000
CONST = 0x0400_0000_0000
SPACE_BYTES = 0x0100_0000_0000
"""Bytes of the window of each space but global."""

RANK_BYTES = 0x0100_0000
"""Shared memory of the block of rank r starts at SHARED + r * RANK_BYTES; as a 32-bit
`shared::cluster` address, at (r + 1) * RANK_BYTES."""
