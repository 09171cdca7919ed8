"""Divisors of a launch's arguments that a contract's `requires` proves.

Triton loads 16 bytes at a time, and asynchronously, only where it knows that pointers, strides and
sizes are multiples. `requires` is checked before every launch, so what it says in one of two exact
forms may be compiled in. Nothing here compiles.
"""

import ast
from collections.abc import Mapping

from l2tune.spec.expr import Expression

POINTERS = ("a", "b", "c")
STEPS = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
WORKSPACE_ALIGN_BYTES = 16


def proven_divisors(requires: tuple[Expression, ...], settled: Mapping[str, int]) -> dict[str, int]:
    """Read the conditions `NAME % X == 0` and `align >= X`, with X known when compiling.

    Args:
        requires: The contract's conditions.
        settled: What is known when compiling: the tunables, `a_t` and `b_t`.

    Returns:
        Powers of two above 1, at most 16: bytes for pointers, elements for leading dimensions and
        batch strides (of two bytes an element), counts for sizes.

    >>> proven_divisors((Expression("align >= 2 * V"), Expression("k % V == 0")), {"V": 8})["k"]
    8
    """
    found = {"workspace": WORKSPACE_ALIGN_BYTES}
    for condition in requires:
        match ast.parse(condition.text, mode="eval").body:
            case ast.Compare(
                left=ast.BinOp(left=ast.Name(id=name), op=ast.Mod(), right=right),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=0)],
            ) if (divisor := _value(right, settled)) is not None:
                found[name] = max(found.get(name, 1), divisor & -divisor)
            case ast.Compare(left=ast.Name(id="align"), ops=[ast.GtE()], comparators=[right]) if (
                align_bytes := _value(right, settled)
            ) is not None:
                # `align` is a power of two that divides each of these, in bytes.
                found |= dict.fromkeys(POINTERS, align_bytes)
                found |= {name: max(found.get(name, 1), align_bytes // 2) for name in STEPS}
    return {name: min(divisor, 16) for name, divisor in found.items() if divisor > 1}


def _value(node: ast.expr, settled: Mapping[str, int]) -> int | None:
    expression = Expression(ast.unparse(node))
    return expression(settled) if expression.names <= settled.keys() else None
