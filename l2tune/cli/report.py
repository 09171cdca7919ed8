"""`l2tune report`: tables of results as one HTML page."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, tell
from l2tune.errors import CacheError
from l2tune.export import machine, published, summary, timed
from l2tune.export import report as page
from l2tune.spec.gpu import Gpu

Beside = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="CSV",
        help="A published table of speed-ups to stand beside ours: CUDA-L2's form, or"
        " m,n,k,speedup. May be given several times.",
    ),
]


def report(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="CSV...", help="What `--results` of tune or bench wrote."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HTML", help="Where the page goes.")
    ] = Path("report.html"),
    beside: Beside = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="h200 or a100: for the roofline, where no machine is beside the table."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make one HTML page, with figures and nothing to fetch, of tables that were measured.

    Needs no GPU. Machine and versions are read from the file beside each table.
    """
    asked = options.pretended_gpu(gpu) if gpu is not None else None
    rows = timed.read(tables)
    machines = [found for found in map(machine.read, tables) if found is not None]
    write(output, rows, machines=machines, beside=beside or [], gpu=asked)
    if as_json:
        print_json({"report": str(output), "summary": list(map(vars, summary.summarise(rows)))})
    else:
        tell(f"{output}: {len(rows)} products")


def write(
    output: Path,
    rows: Sequence[timed.Row],
    *,
    machines: Sequence[machine.Machine],
    beside: Sequence[Path],
    gpu: Gpu | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Make the page and write it.

    Raises:
        CacheError: If a file cannot be read or written.
    """
    text = page.report(
        rows,
        command=shlex.join(["l2tune", *sys.argv[1:]]),
        facts=_facts(machines) or ({} if gpu is None else {"GPU": f"{gpu.name}, as --gpu says"}),
        gpu=gpu or (machines[0].gpu if machines else None),
        published=list(map(published.read, beside)),
        remarks=remarks,
    )
    try:
        output.write_text(text)
    except OSError as error:
        raise CacheError(f"cannot write {output}: {error.strerror}; name another file") from None


def _facts(machines: Sequence[machine.Machine]) -> dict[str, str]:
    """Each fact once; where machines differ, all that it was."""
    facts: dict[str, list[str]] = {}
    for found in machines:
        for name, value in found.facts().items():
            values = facts.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: "; ".join(values) for name, values in facts.items()}
