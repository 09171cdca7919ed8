"""Declarations of PTX: variables of every state space with their first values, and registers."""

from __future__ import annotations

import math
import struct

from l2tune.runtime.emulator.program import Variable
from l2tune.runtime.emulator.tokens import Cursor, PtxSyntaxError
from l2tune.runtime.emulator.warp import width_bytes

SPACES = (".global", ".shared", ".local", ".const", ".param")
_TYPES = frozenset(
    ["pred", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "b128"]
    + [kind + width for kind in "bus" for width in ("8", "16", "32", "64")]
)
LINKAGE = (".visible", ".extern", ".weak", ".common")


def float_bits(text: str) -> tuple[int, int] | None:
    """Bits and width of a float constant (`0f3F800000`, `0d...`, `1.5`); None if it is none."""
    if text[:2] in ("0f", "0F"):
        return int(text[2:], 16), 32
    if text[:2] in ("0d", "0D"):
        return int(text[2:], 16), 64
    if "." in text:
        return int.from_bytes(struct.pack("<d", float(text)), "little"), 64
    return None


def _element(cursor: Cursor, ptx_type: str) -> bytes:
    if cursor.next.kind == "word":
        cursor.fail(f"the emulator knows no first value that is an address ({cursor.next.text})")
    size, constant = width_bytes(ptx_type), float_bits(cursor.next.text)
    if constant is None:
        return (cursor.integer() & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    cursor.take()
    bits, width = constant
    if width == 64 and size == 4:
        return struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0])
    return bits.to_bytes(width // 8, "little")


def _initial(cursor: Cursor, ptx_type: str) -> bytes:
    if not cursor.accept("{"):
        return _element(cursor, ptx_type)
    parts: list[bytes] = []
    while not cursor.accept("}"):
        parts.append(_initial(cursor, ptx_type))
        cursor.accept(",")
    return b"".join(parts)


def variable(cursor: Cursor) -> Variable:
    """Take a variable, from its state space up to (not with) the `;`, `,` or `)` after it."""
    space, align, lanes, ptx_type = cursor.word()[1:], 0, 1, ""
    while cursor.next.text.startswith("."):
        word = cursor.word()
        if word == ".align":
            value = cursor.integer()
            align = align if ptx_type else value  # after a type: of what `.ptr` points to
        elif word == ".attribute":
            cursor.skip_past(")")
        elif word in (".v2", ".v4"):
            lanes = int(word[2:])
        elif word not in (".ptr", *SPACES):
            ptx_type = word[1:]
    name, count = cursor.word(), [1]
    if ptx_type not in _TYPES:
        cursor.fail(f"{name}: type {ptx_type!r} is not known")
    size = width_bytes(ptx_type) * lanes
    while cursor.accept("["):
        count.append(0 if cursor.next.text == "]" else cursor.integer())
        cursor.expect("]")
    initial = _initial(cursor, ptx_type) if cursor.accept("=") else b""
    total = size * math.prod(count)
    if len(initial) > total:
        raise PtxSyntaxError(
            f"PTX line {cursor.next.line}: {name} has {total} bytes, its first value {len(initial)}"
        )
    return Variable(name, space, total, align or size, initial)


def registers(cursor: Cursor) -> tuple[str, list[str]]:
    """Take a `.reg` declaration with its `;`: the type and the names, ranges written out."""
    cursor.expect(".reg")
    ptx_type, names = cursor.word()[1:], []
    if ptx_type not in _TYPES:
        cursor.fail(f"register type {ptx_type!r} is not known")
    while True:
        name = cursor.word()
        if cursor.accept("<"):
            names += [f"{name}{i}" for i in range(cursor.integer())]
            cursor.expect(">")
        else:
            names.append(name)
        if not cursor.accept(","):
            cursor.expect(";")
            return ptx_type, names
