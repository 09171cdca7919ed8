"""`l2tune tune`: search for the fastest correct kernel of each key and store it."""

from pathlib import Path
from typing import Annotated

import typer

from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, progress_bar, say, tell
from l2tune.cli.records import print_records
from l2tune.errors import InfrastructureError, UnsupportedProblemError
from l2tune.export import results
from l2tune.pipeline import Bench, Progress
from l2tune.pipeline import tune as tune_key
from l2tune.runtime.versions import tools
from l2tune.spec.key import GemmKey
from l2tune.spec.record import Record
from l2tune.store import judge


def tune(
    shape: options.Shape = None,
    batch: options.Batch = 1,
    layout: options.Layout = "nn",
    dtype: options.Dtype = "float16",
    shapes: options.Shapes = None,
    grid: Annotated[
        str | None, typer.Option(metavar="NAME", help="A published grid: cuda-l2.")
    ] = None,
    budget_s: Annotated[float, typer.Option(help="Seconds of timing for each key.")] = 12.0,
    results_file: Annotated[
        Path | None, typer.Option("--results", metavar="CSV", help="Append a row for each key.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What every random draw starts from.")] = 0,
    device: options.Device = 0,
    force: Annotated[bool, typer.Option(help="Tune keys that have a valid record too.")] = False,
    as_json: Json = False,
) -> None:
    """Search for the fastest correct kernel of each key, and store it.

    Can be stopped and started again: keys with a record that is valid here are not tuned again.
    """
    gpu = options.needed_gpu(device, why="tuning times kernels and needs one")
    wanted = options.asked_keys(
        gpu, shape=shape, shapes=shapes, grid=grid, batch=batch, layout=layout, dtype=dtype
    )
    with Bench.open(device=device, seed=seed, budget_s=budget_s) as bench:
        known = {} if force else valid_records(wanted, bench)
        found, failed = _tune_all([key for key in wanted if key not in known], bench, results_file)
    _report(found, known, failed, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _report(
    found: list[Record],
    known: dict[GemmKey, Record],
    failed: dict[GemmKey, str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "tuned": [results.row(record) for record in found],
                "skipped": [str(key) for key in known],
                "failed": [{"key": str(key), "reason": said} for key, said in failed.items()],
            }
        )
    else:
        print_records("Tuned", [*known.values(), *found])
        tell(f"{len(found)} tuned, {len(known)} already valid, {len(failed)} failed")
    for said in failed.values():
        say(said, style="red")


def valid_records(keys: list[GemmKey], bench: Bench) -> dict[GemmKey, Record]:
    """The records that hold here as they are."""
    registry = bench.registry
    found = ((key, registry.get(key)) for key in keys)
    return {
        key: record
        for key, record in found
        if record is not None and judge(record, key.gpu, tools()) == "use"
    }


def _tune_all(
    keys: list[GemmKey], bench: Bench, results_file: Path | None
) -> tuple[list[Record], dict[GemmKey, str]]:
    """Tune each key; one that no kernel serves does not stop the rest."""
    found: list[Record] = []
    failed: dict[GemmKey, str] = {}
    with progress_bar() as progress:
        task = progress.add_task("starting", total=len(keys))
        for key in keys:
            try:
                record = _tune_one(key, bench, lambda line: progress.update(task, description=line))
            except UnsupportedProblemError as error:
                failed[key] = str(error)
            else:
                found.append(record)
                if results_file is not None:
                    results.append(results_file, [record])
            progress.advance(task)
    return found, failed


def _tune_one(key: GemmKey, bench: Bench, progress: Progress) -> Record:
    """Tune, and once more in a fresh worker where the machine and no kernel failed."""
    try:
        return tune_key(key, bench=bench, progress=progress)
    except InfrastructureError as error:
        say(f"{key.label}: {error}; trying once more", style="yellow")
        bench.worker.renew()
        return tune_key(key, bench=bench, progress=progress)
