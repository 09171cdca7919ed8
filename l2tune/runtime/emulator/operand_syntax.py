"""Operands of PTX instructions: text to the operand classes of `program`."""

from __future__ import annotations

from typing import Protocol

from l2tune.runtime.emulator.declarations import float_bits
from l2tune.runtime.emulator.program import (
    WARP_LANES,
    Address,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from l2tune.runtime.emulator.tokens import Cursor

SINK = Special("_")
"""A `_` that stands alone: a result that nobody wants. In a vector or a pair it is None."""

_SPECIAL = frozenset(
    f"%{name}{part}"
    for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                 "cluster_nctaid")
    for part in ("", ".x", ".y", ".z", ".w")
) | frozenset(
    f"%{name}"
    for name in ("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "cluster_ctarank",
                 "cluster_nctarank", "is_explicit_cluster", "lanemask_eq", "lanemask_le",
                 "lanemask_lt", "lanemask_ge", "lanemask_gt", "clock", "clock_hi", "clock64",
                 "globaltimer", "globaltimer_lo", "globaltimer_hi", "dynamic_smem_size",
                 "total_smem_size", "aggr_smem_size")
)  # fmt: skip


class Names(Protocol):
    """What names mean where an operand stands."""

    def find(self, name: str) -> Register | Symbol | Label | Vector | None:
        """The register, variable, label or list of labels of that name, or None."""


def operands(cursor: Cursor, names: Names) -> tuple[Operand, ...]:
    """Take an instruction's operands with the `;` after them."""
    found: list[Operand] = []
    while not cursor.accept(";"):
        found.append(_operand(cursor, names))
        if not cursor.accept(","):
            cursor.expect(";")
            break
    return tuple(found)


def _operand(cursor: Cursor, names: Names) -> Operand:
    if cursor.accept("{"):
        return _vector(cursor, names, "}")
    if cursor.accept("("):
        return _vector(cursor, names, ")")
    if cursor.accept("["):
        return _address(cursor, names)
    first = _scalar(cursor, names)
    if cursor.accept("|"):
        second = _scalar(cursor, names)
        return Pair(None if first is SINK else first, None if second is SINK else second)
    return first


def _vector(cursor: Cursor, names: Names, end: str) -> Vector:
    items: list[Operand | None] = []
    while not cursor.accept(end):
        item = _scalar(cursor, names)
        items.append(None if item is SINK else item)
        if not cursor.accept(","):
            cursor.expect(end)
            break
    return Vector(tuple(items))


def _address(cursor: Cursor, names: Names) -> Address:
    base = _scalar(cursor, names)
    extra: list[Operand] = []
    offset = cursor.integer() if cursor.next.text in ("+", "-") else 0
    if isinstance(base, Symbol):
        base, offset = Symbol(base.name), offset + base.offset
    if not isinstance(base, Register | Symbol | Immediate):
        cursor.fail(f"an address starts with {base}, not with a register or a variable")
    while cursor.accept(","):
        item = _operand(cursor, names)
        extra += [item] if not isinstance(item, Vector) else [i for i in item.items if i]
    cursor.expect("]")
    return Address(base, offset, tuple(extra))


def _scalar(cursor: Cursor, names: Names) -> Operand:
    if cursor.accept("!"):
        register = names.find(cursor.word())
        if not isinstance(register, Register):
            cursor.fail("'!' stands before something that is no predicate register")
        return Negated(register)
    if cursor.next.kind != "word":
        constant = float_bits(cursor.next.text)
        if constant is not None:
            cursor.take()
            return Immediate(constant[0], is_float=True, width=constant[1])
        return Immediate(cursor.integer())
    return _named(cursor, names)


def _named(cursor: Cursor, names: Names) -> Operand:
    name = cursor.next.text
    found = names.find(name)
    if found is None and name == "_":
        found_operand: Operand = SINK
    elif found is None and name == "WARP_SZ":
        found_operand = Immediate(WARP_LANES)
    elif found is None and name in _SPECIAL:
        found_operand = Special(name)
    elif found is None and name.startswith("%"):
        cursor.fail(f"{name} is no register declared here and no special register that is known")
    else:
        found_operand = found or Symbol(name)
    cursor.take()
    if isinstance(found_operand, Symbol) and cursor.next.text in ("+", "-"):
        return Symbol(found_operand.name, found_operand.offset + cursor.integer())
    return found_operand
