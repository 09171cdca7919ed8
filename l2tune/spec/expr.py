"""Integer expressions of a kernel's contract, walked as a syntax tree and never run as Python.

The language is in docs/kernel-format.md: integers, names, arithmetic, comparisons, `and`, `or`,
`not`, a conditional, and the functions cdiv, min, max.
"""

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from l2tune.errors import ExpressionError

_MAX_CHARACTERS = 500


def cdiv(x: int, y: int) -> int:
    """Divide rounding up; `y` must be positive."""
    return -(-x // y)


def _exact_divide(x: int, y: int) -> int:
    if x % y:
        raise ExpressionError(f"{x} / {y} leaves a remainder; use // or cdiv")
    return x // y


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: _exact_divide,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": cdiv, "min": min, "max": max}
_MOST_ARGUMENTS = {"cdiv": 2, "min": _MAX_CHARACTERS, "max": _MAX_CHARACTERS}


class Expression:
    """One parsed expression; call it with the values of its names.

    Raises:
        ExpressionError: If the text is outside the language, or longer than 500 characters.

    >>> Expression("cdiv(m, 128) * batch")({"m": 1000, "batch": 2})
    16
    """

    __slots__ = ("_body", "names", "text")

    def __init__(self, text: str) -> None:
        """Parse `text` and refuse whatever the language does not have."""
        if len(text) > _MAX_CHARACTERS:
            raise ExpressionError(
                f"expression of {len(text)} characters, needed at most {_MAX_CHARACTERS}"
            )
        try:
            body = ast.parse(text, mode="eval").body
            names = _check(body, text)
        except ExpressionError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"expression {text!r} does not parse: {error}") from None
        self.text = text
        self._body = body
        self.names = frozenset(names)

    def __call__(self, values: Mapping[str, int]) -> int:
        """Evaluate with `values`.

        Raises:
            ExpressionError: If a name has no value, or a division is by zero or inexact.
        """
        try:
            return _walk(self._body, values)
        except ZeroDivisionError:
            raise ExpressionError(f"expression {self.text!r} divides by zero") from None
        except KeyError as error:
            raise ExpressionError(f"expression {self.text!r}: unknown name {error}") from None
        except RecursionError:
            raise ExpressionError(f"expression {self.text!r} is nested too deeply") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _check(node: ast.expr, text: str) -> set[str]:
    """Return the names `node` reads; raise ExpressionError on anything outside the language."""
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _check(left, text) | _check(right, text)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return _check(operand, text)
        case ast.BoolOp(values=values):
            return set[str]().union(*(_check(value, text) for value in values))
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(
            type(o) in _COMPARE for o in ops
        ):
            return set[str]().union(*(_check(value, text) for value in (left, *rest)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _check(test, text) | _check(body, text) | _check(orelse, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in _FUNCTIONS and 2 <= len(args) <= _MOST_ARGUMENTS[name]
        ):
            return set[str]().union(*(_check(value, text) for value in args))
        case ast.Call():
            found = ast.unparse(node.func)
            raise ExpressionError(
                f"expression {text!r} calls {found} with {len(node.args)} arguments; needed"
                " cdiv(x, y), or min or max of two and more"
            )
    raise ExpressionError(
        f"expression {text!r} uses {type(node).__name__}, which the language lacks"
    )


def _walk(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_walk(left, values), _walk(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand, values)
        case ast.UnaryOp(operand=operand):
            return int(not _walk(operand, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return int(all(_walk(part, values) for part in parts))
        case ast.BoolOp(values=parts):
            return int(any(_walk(part, values) for part in parts))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            before = _walk(left, values)
            for comparison, term in zip(ops, rest, strict=True):
                after = _walk(term, values)
                if not _COMPARE[type(comparison)](before, after):
                    return 0  # what follows is not looked at
                before = after
            return 1
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _walk(body if _walk(test, values) else orelse, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_walk(arg, values) for arg in args))
    raise AssertionError(f"{type(node).__name__} passed _check")


def _validate(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"needed an integer or an expression, found {value!r}")
    return _parsed(str(value))


_parsed = functools.lru_cache(maxsize=4096)(Expression)
"""Instances of one file share most of theirs, and parsing them is half of reading a contract."""


Expr = Annotated[Expression, PlainValidator(_validate), PlainSerializer(lambda e: e.text)]
"""A pydantic field that holds an `Expression`; an integer or a string is accepted."""
