"""Records as a table for a person."""

from collections.abc import Iterable
from typing import Any

from l2tune.cli.output import print_table
from l2tune.spec.outcome import Admitted, Interval
from l2tune.spec.record import EstimatedRecord, Record

_BASELINES = {
    "torch": "torch",
    "cublas": "cuBLAS",
    "cublaslt_heuristic": "Lt heuristic",
    "cublaslt_autotuned": "Lt autotuned",
    "triton": "Triton",
}


def print_records(title: str, records: Iterable[Record]) -> None:
    """Print one row a record: times in microseconds, then what dispatch does."""
    columns = ["product", "kernel", "us", *_BASELINES.values(), "floor", "speedup", "eager/graph"]
    print_table(f"{title} (us)", columns, map(_cells, records))


def print_estimates(records: Iterable[EstimatedRecord]) -> None:
    """Print one row an estimate, under a title that says that nothing was measured."""
    columns = (
        "product", "GPU", "kernel", "estimated us (not measured)", "mostly", "floor",
        "cases emulated",
    )  # fmt: skip
    print_table("Estimates: proven on the emulator, never timed", columns, map(_guess, records))


def estimate_row(record: EstimatedRecord) -> dict[str, Any]:
    """One estimate as data; no name in it is one of a measured row's times."""
    key, outcome = record.key, record.outcome
    source = outcome.verified.compiled.source
    return {
        "key": str(key),
        "gpu": key.gpu.name,
        "backend": source.backend,
        "kernel": source.name,
        "estimate_us": outcome.estimate_us,
        "terms_us": outcome.terms_us,
        "floor_us": outcome.floor_us,
        "processor": "emulator",
        "verified_examples": outcome.verified.examples,
        "created": record.created,
    }


def _guess(record: EstimatedRecord) -> list[str]:
    outcome = record.outcome
    return [
        record.key.label,
        record.key.gpu.name,
        outcome.verified.compiled.source.name,
        f"{outcome.estimate_us:.2f}",
        max(outcome.terms_us, key=outcome.terms_us.__getitem__),
        f"{outcome.floor_us:.2f}",
        str(outcome.verified.examples),
    ]


def _cells(record: Record) -> list[str]:
    timing = record.outcome.timing
    choice = "torch/torch"
    if isinstance(record.outcome, Admitted):
        choice = f"{record.outcome.eager}/{record.outcome.graph}"
    return [
        record.key.label,
        timing.verified.compiled.source.name,
        f"{timing.gpu.us:.2f}",
        *(_us(timing.baselines.get(name)) for name in _BASELINES),
        f"{timing.floor_us:.2f}",
        f"{timing.speedup:.3f}",
        choice,
    ]


def _us(found: Interval | None) -> str:
    return "" if found is None else f"{found.us:.2f}"
