"""The lines of a pack's files: JSON that has one form only, with short lists for what comes often.

An interval is `[us, lo, hi]`; a check is `[check, examples, worst_ratio, seed, note]`, cut off
after the last of these that is not its default.
"""

import json
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, PlainSerializer, ValidationError

from l2tune.errors import PackError
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import sentence
from l2tune.spec.outcome import CheckPassed, Frozen, Interval

_DIGITS = 6
"""Significant digits of a float in a pack; no time is known to more."""
_INTERVAL = ("us", "lo", "hi")
_CHECK = ("check", "examples")
_CHECK_DEFAULTS = {"worst_ratio": 0.0, "seed": 0, "note": ""}


class Line(Frozen):
    """What one line holds."""

    @property
    def line(self) -> str:
        """Its text, without the end of the line.

        Raises:
            ValueError: If JSON has no form for one of its numbers.
        """
        data = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    @classmethod
    def read(cls, line: str, where: str, gpu: Gpu) -> Self:
        """Read a line, which must be what we would write, so nothing is read in two ways.

        Args:
            line: Its text.
            where: Which line it is, for a person.
            gpu: The pack's, which lines leave out.

        Raises:
            PackError: If it is anything else.
        """
        try:
            found = cls.model_validate_json(line, context=gpu)
            same = found.line == line
        except ValueError as error:
            raise PackError(f"{where}: {said(error)}") from None
        if not same:
            raise PackError(f"{where}: not written as l2tune writes it; build the pack again")
        return found


def said(error: ValueError) -> str:
    """What is wrong with a line, in a sentence of no great length."""
    if isinstance(error, ValidationError):
        return "; ".join(map(sentence, error.errors()))[:500]
    return str(error)[:500]


def rounded(data: Any) -> Any:
    """The same JSON data with its floats rounded to what a pack keeps."""
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}")
    if isinstance(data, dict):
        return {name: rounded(value) for name, value in data.items()}
    return [rounded(value) for value in data] if isinstance(data, list) else data


def _interval(data: Any) -> Any:
    return dict(zip(_INTERVAL, data, strict=False)) if isinstance(data, list) else data


def _check(data: Any) -> Any:
    if not isinstance(data, list):
        return data
    given = dict(zip((*_CHECK, *_CHECK_DEFAULTS), data, strict=False))
    return _CHECK_DEFAULTS | given


def _items(check: CheckPassed) -> list[Any]:
    rest = [getattr(check, name) for name in _CHECK_DEFAULTS]
    while rest and rest[-1] == list(_CHECK_DEFAULTS.values())[len(rest) - 1]:
        rest.pop()
    return [check.check, check.examples, *rest]


ShortInterval = Annotated[
    Interval,
    BeforeValidator(_interval),
    PlainSerializer(lambda found: [found.us, found.lo, found.hi]),
]
ShortCheck = Annotated[CheckPassed, BeforeValidator(_check), PlainSerializer(_items)]
