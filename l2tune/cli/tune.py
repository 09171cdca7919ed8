"""`l2tune tune`: search for the fastest correct kernel of each key and store it.

Where there is no GPU, nothing can be timed: kernels are proven on the emulator, and what a model
says of their times is stored as estimates, apart from records.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import rich.progress
import typer

from l2tune import fleet
from l2tune.cli import keys as options
from l2tune.cli.output import Json, StopWatch, print_json, progress_bar, say, tell
from l2tune.cli.records import estimate_row, print_estimates, print_records
from l2tune.errors import UnsupportedProblemError
from l2tune.export import results
from l2tune.fleet import Benches
from l2tune.pipeline import Bench, Progress
from l2tune.pipeline import estimate as estimate_key
from l2tune.runtime.device import detect
from l2tune.runtime.versions import tools
from l2tune.runtime.worker import NO_GPU
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.record import EstimatedRecord, Record
from l2tune.store import Pack, judge
from l2tune.store.pack import find


def tune(
    shape: options.Shape = None,
    batch: options.Batch = 1,
    layout: options.Layout = "nn",
    dtype: options.Dtype = "float16",
    acc: options.Acc = "float32",
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
    pretended: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="h200|a100",
            help="Use no GPU, and estimate for this one; without a GPU it is h200.",
        ),
    ] = None,
    from_pack: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|NAME",
            help="Choose among this pack's kernels alone; without a shape, for all its products.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Tune keys that have a valid record too.")] = False,
    improve: Annotated[
        bool,
        typer.Option(
            help="Search again for keys with a valid record, once for each version of the seeds;"
            " replace records that are beaten."
        ),
    ] = False,
    gpus: Annotated[int, typer.Option(min=1, help="How many GPUs to use, from --device on.")] = 1,
    stop_after_s: Annotated[
        float, typer.Option(help="Begin nothing after so many seconds; run again to go on.")
    ] = float("inf"),
    server: options.Server = False,
    gap_us: options.Gap = 1000.0,
    as_json: Json = False,
) -> None:
    """Search for the fastest correct kernel of each key, and store it.

    Can be stopped and started again: keys with a record that is valid here are not tuned again.
    Without a GPU, kernels are proven on the emulator and their times estimated, never measured;
    estimates are stored apart, and l2tune.matmul does not use them.
    """
    if pretended is None and detect(device) is None:
        pretended = "h200"
    if pretended is not None:
        gpu = options.pretended_gpu(pretended)
    else:
        gpu = options.needed_gpu(device, why="tuning times kernels and needs one")
    pack = None if from_pack is None else Pack.read(find(from_pack))
    if pack is not None and (shape, shapes, grid) == (None, None, None):
        wanted = pack.keys_on(gpu)
    else:
        wanted = options.asked_keys(
            gpu, shape=shape, shapes=shapes, grid=grid, batch=batch, layout=layout, dtype=dtype,
            acc=acc,
        )  # fmt: skip
    if pretended is not None:
        if results_file is not None:
            raise typer.BadParameter("--results takes measured times; estimates go to --json")
        with Bench.open(device=NO_GPU, seed=seed) as bench:
            failed = _estimate_all(wanted, bench, pack, force=force, as_json=as_json)
    else:
        with Benches.open(
            device=device, gpus=gpus, keys=len(wanted), seed=seed, budget_s=budget_s
        ) as benches:
            failed = _tune_all(
                wanted, benches, pack, results_file,
                stop_after_s=stop_after_s, gap_us=gap_us if server else None,
                force=force, improve=improve, as_json=as_json,
            )  # fmt: skip
    for said in failed.values():
        say(said, style="red")
    if failed:
        raise typer.Exit(1)


class _Bar(fleet.Watch):
    """Shows a pass at a time, says how long each took, and keeps rows of results at once."""

    def __init__(self, progress: rich.progress.Progress, results_file: Path | None) -> None:
        self.records: list[Record] = []
        self._progress, self._results_file = progress, results_file
        self._task: rich.progress.TaskID | None = None
        self._step, self._count, self._start = "", 0, 0.0

    def begin(self, step: str, count: int) -> None:
        self.end()
        self._step, self._count, self._start = step, count, time.monotonic()
        self._task = self._progress.add_task(step, total=count)

    def done(self, key: GemmKey) -> None:
        assert self._task is not None
        self._progress.update(self._task, description=f"{self._step}: {key.label}", advance=1)

    def stored(self, record: Record) -> None:
        self.records.append(record)
        if self._results_file is not None:
            results.append(self._results_file, [record])

    def end(self) -> None:
        """Say how long the pass took."""
        if self._task is not None and self._count:
            self._progress.remove_task(self._task)
            say(f"{self._step}: {self._count} keys, {time.monotonic() - self._start:.1f} s")
        self._task = None


def _tune_all(
    wanted: list[GemmKey], benches: Benches, pack: Pack | None, results_file: Path | None,
    *, stop_after_s: float, gap_us: float | None, force: bool, improve: bool, as_json: bool,
) -> dict[GemmKey, str]:  # fmt: skip
    """Tune what has no valid record, and report; returns why keys failed."""
    known = {} if force else valid_records(wanted, benches.timing[0])
    incumbents, known = (known, {}) if improve else ({}, known)
    for key in wanted if force else []:
        benches.timing[0].searches.forget(key)
    offered = None if pack is None else functools.partial(_candidates, pack)
    with progress_bar() as progress:
        bar = _Bar(progress, results_file)
        outcome = fleet.tune_all(
            [key for key in wanted if key not in known], benches,
            offered=offered, incumbents=incumbents, watch=bar, stop_after_s=stop_after_s,
            gap_us=gap_us,
        )  # fmt: skip
        bar.end()
    found, failed = bar.records, outcome.failed
    if as_json:
        print_json({"tuned": [results.row(record) for record in found], **_rest(known, failed)})
    else:
        print_records("Tuned", [*known.values(), *found])
        tell(f"{len(found)} tuned, {len(known)} already valid, {len(failed)} failed")
        if outcome.left:
            tell("time ran out; the same command goes on")
    return failed


def _estimate_all(
    wanted: list[GemmKey], bench: Bench, pack: Pack | None, *, force: bool, as_json: bool
) -> dict[GemmKey, str]:
    """Likewise where nothing can be timed."""

    def search(key: GemmKey, progress: Progress) -> EstimatedRecord:
        candidates = None if pack is None else _candidates(pack, key)
        return estimate_key(key, bench=bench, progress=progress, candidates=candidates)

    known = {} if force else valid_estimates(wanted, bench)
    found, failed = _each([key for key in wanted if key not in known], search)
    if as_json:
        rows = [estimate_row(record) for record in found]
        print_json({"estimated": rows, **_rest(known, failed)})
    else:
        print_estimates([*known.values(), *found])
        tell(f"{len(found)} estimated, {len(known)} already valid, {len(failed)} failed")
        tell("nothing was timed; the same command on a machine with the GPU does that")
    return failed


def _candidates(pack: Pack, key: GemmKey) -> list[KernelSource]:
    """The pack's kernels for the key's product.

    Raises:
        UnsupportedProblemError: If it has none that the key's GPU can run.
    """
    found = pack.candidates(key)
    if not found:
        raise UnsupportedProblemError(
            f"{key.label}: the pack for {pack.gpu.name} has no kernel for it that {key.gpu.name}"
            f" ({key.gpu.arch}) can run; `l2tune tune` searches for one"
        )
    return found


def _rest(known: dict[GemmKey, Any], failed: dict[GemmKey, str]) -> dict[str, Any]:
    return {
        "skipped": [str(key) for key in known],
        "failed": [{"key": str(key), "reason": said} for key, said in failed.items()],
    }


def valid_records(keys: list[GemmKey], bench: Bench) -> dict[GemmKey, Record]:
    """The records that hold here as they are."""
    registry = bench.registry
    found = ((key, registry.get(key)) for key in keys)
    return {
        key: record
        for key, record in found
        if record is not None and judge(record, key.gpu, tools()) == "use"
    }


def valid_estimates(keys: list[GemmKey], bench: Bench) -> dict[GemmKey, EstimatedRecord]:
    """The estimates made by the very versions that are installed here."""
    found = ((key, bench.registry.get_estimate(key)) for key in keys)
    return {key: record for key, record in found if record is not None and record.tools == tools()}


def _each(
    keys: list[GemmKey], search: Callable[[GemmKey, Progress], EstimatedRecord]
) -> tuple[list[EstimatedRecord], dict[GemmKey, str]]:
    """Search for each key; one that no kernel serves does not stop the rest."""
    found: list[EstimatedRecord] = []
    failed: dict[GemmKey, str] = {}
    with progress_bar() as progress:
        task = progress.add_task("starting", total=len(keys))
        for key in keys:
            watch = StopWatch(lambda line: progress.update(task, description=line))
            try:
                found.append(search(key, watch))
            except UnsupportedProblemError as error:
                failed[key] = str(error)
            say(f"{key.label}: {watch.told()}")
            progress.advance(task)
    return found, failed
