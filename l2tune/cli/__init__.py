"""The command line: one module for each command, wired here.

Commands print tables, or with `--json` one JSON document, on standard output; progress, warnings
and errors go to standard error. Exit status 1 is a failure, said in one sentence, and 2 is wrong
usage.
"""

import typer

from l2tune.cli import bench, doctor, emulate, export, pack, report, show, tune, verify
from l2tune.cli.group import Group

app = typer.Typer(
    cls=Group,
    help="Finds, proves and times the fastest kernel for each matrix product on this GPU.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
for command in (
    tune.tune, bench.bench, report.report, show.show, verify.verify, emulate.emulate, export.export,
    doctor.doctor,
):  # fmt: skip
    app.command()(command)
app.add_typer(pack.app, name="pack")

__all__ = ["app"]
