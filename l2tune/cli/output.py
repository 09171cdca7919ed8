"""How commands write: tables or JSON on standard output, everything else on standard error."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
_PIPE_COLUMNS = 200
"""Width where the output is no terminal, so that a table's cells are not cut in logs."""


def say(sentence: str, *, style: str = "") -> None:
    """Write a sentence to standard error, never wrapped, so that a log can be searched."""
    Console(stderr=True, soft_wrap=True).print(Text(sentence, style=style))


def tell(sentence: str) -> None:
    """Write a sentence to standard output."""
    Console(soft_wrap=True).print(Text(sentence))


def print_json(data: Any) -> None:
    """Write one JSON document to standard output."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table; columns of numbers are those whose cells all look like numbers."""
    body = [list(row) for row in rows]
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = all(row[index][:1].isdigit() or not row[index] for row in body)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    plain = Console()
    console = plain if plain.is_terminal else Console(width=_PIPE_COLUMNS)
    console.print(table)


class StopWatch:
    """Passes lines of progress on, and adds up how long each kind of step took."""

    def __init__(self, show: Callable[[str], object]) -> None:
        """Start the clock."""
        self._show = show
        self._start = self._since = time.monotonic()
        self._step = ""
        self._taken_s: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        """A step begins: `key: step: on what`."""
        self._end_step()
        self._step = line.split(": ")[1]
        self._show(line)

    def told(self) -> str:
        """How long it took until now, in words: `27.3 s: compiling 1.0, gate 12.1, ...`."""
        self._end_step()
        steps = ", ".join(f"{step} {taken_s:.1f}" for step, taken_s in self._taken_s.items())
        return f"{self._since - self._start:.1f} s" + (f": {steps}" if steps else "")

    def _end_step(self) -> None:
        now = time.monotonic()
        if self._step:
            self._taken_s[self._step] = self._taken_s.get(self._step, 0.0) + now - self._since
        self._since = now


def progress_bar() -> Progress:
    """A bar on standard error; use as a context manager."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
