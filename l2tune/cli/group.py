"""Turns l2tune's errors and warnings into sentences on standard error, for every command."""

import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from l2tune import settings
from l2tune.cli.output import say
from l2tune.errors import L2TuneError


class Group(TyperGroup):
    """The commands; whatever l2tune raises ends in one red sentence and status 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                settings.current()
            except ValueError as error:
                raise self._failed(error) from None
            try:
                return super().invoke(ctx)
            except L2TuneError as error:
                raise self._failed(error) from None

    @staticmethod
    def _failed(error: Exception) -> typer.Exit:
        say(str(error), style="red")
        return typer.Exit(1)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}", style="yellow")
