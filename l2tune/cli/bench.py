"""`l2tune bench`: time what the cache holds again, beside every baseline."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from l2tune import admit, generate, measure, stages
from l2tune.cli import keys as options
from l2tune.cli import report as reports
from l2tune.cli.output import Json, print_json, progress_bar, say
from l2tune.cli.records import print_records
from l2tune.errors import InfrastructureError
from l2tune.export import machine, results, timed
from l2tune.export import report as page
from l2tune.pipeline import Bench, Progress
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Refuted
from l2tune.spec.record import Record

_TRITON_INSTANCES = 8


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is timed besides the kernel and the libraries.

    Attributes:
        peers: Others' kernels.
        gap_us: Mean gap of calls at random, microseconds; None times none.
    """

    peers: tuple[measure.Peer, ...] = ()
    gap_us: float | None = None


@dataclasses.dataclass(frozen=True)
class Timed:
    """One record with the times of a run of its own.

    Attributes:
        record: The record, its timing replaced.
        wrong_peers: What is wrong with peers that were not compared, by name.
    """

    record: Record
    wrong_peers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def bench(
    shape: options.Shape = None,
    batch: options.Batch = 1,
    layout: options.Layout = "nn",
    dtype: options.Dtype = "float16",
    acc: options.Acc = "float32",
    shapes: options.Shapes = None,
    budget_s: Annotated[float, typer.Option(help="Seconds of timing for each key.")] = 12.0,
    results_file: Annotated[
        Path | None, typer.Option("--results", metavar="CSV", help="Append a row for each key.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="HTML", help="Write tables and figures to one page."),
    ] = None,
    beside: reports.Beside = None,
    server: options.Server = False,
    gap_us: options.Gap = 1000.0,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME=WHERE:SYMBOL",
            help="Time this function too: of a module or .py file, called (a, b) or (a, b, c), or"
            " of a .so file. It is your code, and is run. May be given several times.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="What every random draw starts from.")] = 1000,
    device: options.Device = 0,
    as_json: Json = False,
) -> None:
    """Time the cache's kernels again in fresh processes with fresh data, beside every baseline.

    All records for this GPU, or those of the shapes named. The cache is left as it is.
    """
    asked = Asked(tuple(map(measure.Peer.parse, peers or [])), gap_us if server else None)
    if report is not None:
        page.needed()
    gpu = options.needed_gpu(device, why="timing needs one")
    wanted: list[GemmKey] | None = None
    if shape is not None or shapes is not None:
        wanted = options.asked_keys(
            gpu, shape=shape, shapes=shapes, grid=None, batch=batch, layout=layout, dtype=dtype,
            acc=acc,
        )  # fmt: skip
    with Bench.open(device=device, seed=seed, budget_s=budget_s) as opened:
        found, refuted = _time_all(_chosen(opened, gpu, wanted), opened, asked, results_file)
    records = [one.record for one in found]
    rows = [_row(one, asked) for one in found]
    wrong = [_wrong(one.record.key, *peer) for one in found for peer in one.wrong_peers.items()]
    if report is not None and rows:
        reports.write(
            report,
            list(map(timed.from_line, rows)),
            machines=[machine.here(records[-1])],
            beside=beside or [],
            remarks=[*wrong, *refuted],
        )
    if as_json:
        print_json({"timed": rows, "refuted": refuted, "wrong_peers": wrong})
    else:
        print_records("Timed again", records)
    for said in (*wrong, *refuted):
        say(said, style="red")
    if refuted:
        raise typer.Exit(1)


def _row(one: Timed, asked: Asked) -> dict[str, str]:
    names = [peer.name for peer in asked.peers]
    return results.row(one.record, peers=names)


def _wrong(key: GemmKey, name: str, fault: str) -> str:
    return f"{key.label}: {name} is not compared: {fault}"


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


def _time_all(
    records: list[Record], opened: Bench, asked: Asked, results_file: Path | None
) -> tuple[list[Timed], list[str]]:
    """Time each record, and keep its row at once."""
    found: list[Timed] = []
    refuted: list[str] = []
    with progress_bar() as progress:
        task = progress.add_task("starting", total=len(records))
        for record in records:
            result = time_again(
                record, opened, asked, lambda line: progress.update(task, description=line)
            )
            if isinstance(result, Refuted):
                refuted.append(f"{record.key.label}: refused after timing: {result.detail}")
            else:
                found.append(result)
                if results_file is not None:
                    row = _row(result, asked)
                    results.append_rows(results_file, [row], columns=list(row))
                    results.describe_machine(results_file, [result.record])
            progress.advance(task)
    return found, refuted


def time_again(record: Record, opened: Bench, asked: Asked, progress: Progress) -> Timed | Refuted:
    """The same record with the timing of a confirming run of its own."""
    key, verified = record.key, record.outcome.timing.verified
    triton: Compiled | None = verified.compiled
    if verified.compiled.source.backend != "triton":
        progress(f"{key.label}: looking for the best Triton kernel")
        triton = best_triton(key, opened)
    progress(f"{key.label}: timing {verified.compiled.source.name} and the libraries")
    faults = {
        peer.name: measure.check_peer(opened.worker, key, peer, seed=opened.seed)
        for peer in asked.peers
    }
    right = [peer for peer in asked.peers if faults[peer.name] is None]
    opened.worker.renew()
    result = stages.confirm(verified, key, opened, triton=triton, peers=right, gap_us=asked.gap_us)
    if isinstance(result, Refuted):
        return result
    again = record.model_copy(update={"outcome": admit.admit(result)})
    wrong = {name: fault for name, fault in faults.items() if fault is not None}
    return Timed(again, wrong)


def best_triton(key: GemmKey, opened: Bench) -> Compiled | None:
    """The fastest of some Triton kernels that pass the quick check, to be timed as a baseline."""
    if importlib.util.find_spec("triton") is None:
        return None
    sources = [
        source
        for source in generate.candidates(key, per_family=_TRITON_INSTANCES)
        if source.backend == "triton"
    ]
    ranked, _ = stages.rank(stages.build_all(sources, key, opened), key, opened)
    return next((found for found, _ in ranked if stages.is_sound(found, key, opened)), None)
