"""`l2tune bench`: time what the cache holds again, beside every baseline."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from l2tune import admit, generate, stages
from l2tune import verify as gate
from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, progress_bar, say
from l2tune.cli.records import print_records
from l2tune.errors import InfrastructureError
from l2tune.export import results
from l2tune.pipeline import Bench, Progress
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Refuted, Verified
from l2tune.spec.record import Record

_TRITON_INSTANCES = 8


def bench(
    shape: options.Shape = None,
    batch: options.Batch = 1,
    layout: options.Layout = "nn",
    dtype: options.Dtype = "float16",
    shapes: options.Shapes = None,
    budget_s: Annotated[float, typer.Option(help="Seconds of timing for each key.")] = 12.0,
    results_file: Annotated[
        Path | None, typer.Option("--results", metavar="CSV", help="Append a row for each key.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What every random draw starts from.")] = 1000,
    device: options.Device = 0,
    as_json: Json = False,
) -> None:
    """Time the cache's kernels again in fresh processes with fresh data, beside every baseline.

    All records for this GPU, or those of the shapes named. The cache is left as it is.
    """
    gpu = options.needed_gpu(device, why="timing needs one")
    wanted: list[GemmKey] | None = None
    if shape is not None or shapes is not None:
        wanted = options.asked_keys(
            gpu, shape=shape, shapes=shapes, grid=None, batch=batch, layout=layout, dtype=dtype
        )
    with Bench.open(device=device, seed=seed, budget_s=budget_s) as opened:
        timed, refuted = _time_all(_chosen(opened, gpu, wanted), opened)
    if results_file is not None:
        results.append(results_file, timed)
    if as_json:
        print_json({"timed": [results.row(record) for record in timed], "refuted": refuted})
    else:
        print_records("Timed again", timed)
    for said in refuted:
        say(said, style="red")
    if refuted:
        raise typer.Exit(1)


def _chosen(opened: Bench, gpu: Gpu, wanted: list[GemmKey] | None) -> list[Record]:
    here = {record.key: record for record in opened.registry.records() if record.key.gpu == gpu}
    chosen = list(here) if wanted is None else wanted
    missing = ", ".join(key.label for key in chosen if key not in here)
    if missing or not chosen:
        raise InfrastructureError(
            f"the cache holds no record for {missing or 'any product'} on {gpu.name};"
            " run `l2tune tune`"
        )
    return [here[key] for key in chosen]


def _time_all(records: list[Record], opened: Bench) -> tuple[list[Record], list[str]]:
    timed: list[Record] = []
    refuted: list[str] = []
    with progress_bar() as progress:
        task = progress.add_task("starting", total=len(records))
        for record in records:
            result = time_again(
                record, opened, lambda line: progress.update(task, description=line)
            )
            if isinstance(result, Refuted):
                refuted.append(f"{record.key.label}: refused after timing: {result.detail}")
            else:
                timed.append(result)
            progress.advance(task)
    return timed, refuted


def time_again(record: Record, opened: Bench, progress: Progress) -> Record | Refuted:
    """The same record with the timing of a confirming run of its own."""
    key, verified = record.key, record.outcome.timing.verified
    triton: Verified | None = verified
    if verified.compiled.source.backend != "triton":
        progress(f"{key.label}: looking for the best Triton kernel")
        triton = best_triton(key, opened)
    progress(f"{key.label}: timing {verified.compiled.source.name} and the libraries")
    result = stages.confirm(verified, key, opened, triton=triton)
    if isinstance(result, Refuted):
        return result
    return record.model_copy(update={"outcome": admit.admit(result)})


def best_triton(key: GemmKey, opened: Bench) -> Verified | None:
    """The fastest of some Triton kernels that pass the quick check, to be timed as a baseline."""
    if importlib.util.find_spec("triton") is None:
        return None
    sources = [
        source
        for source in generate.candidates(key, per_family=_TRITON_INSTANCES)
        if source.backend == "triton"
    ]
    ranked = stages.rank(stages.build_all(sources, key, opened), key, opened)
    for candidate in ranked:
        proof = gate.verify(
            opened.worker, candidate, key, cache_dir=opened.cache_dir, seed=opened.seed,
            checks=gate.QUICK_CHECKS,
        )  # fmt: skip
        if isinstance(proof, Verified):
            return proof
    return None
