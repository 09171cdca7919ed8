"""Records as a table for a person."""

from collections.abc import Iterable

from l2tune.cli.output import print_table
from l2tune.spec.outcome import Admitted, Interval
from l2tune.spec.record import Record

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
