"""Records as rows of a table of results: one fixed set of columns, empty where nothing is known."""

import csv
from collections.abc import Iterable
from pathlib import Path

from l2tune.errors import CacheError
from l2tune.spec.outcome import Admitted, Interval
from l2tune.spec.record import Record

COLUMNS = [
    *("m", "n", "k", "batch", "layout", "dtype", "backend", "kernel", "us", "us_lo", "us_hi"),
    *("torch_us", "torch_us_lo", "torch_us_hi", "cublas_us", "cublaslt_heuristic_us"),
    *("cublaslt_autotuned_us", "triton_us", "floor_us", "host_us", "torch_host_us"),
    *("eager_choice", "graph_choice", "clock_mhz", "power_w", "run_id", "verified_examples"),
]


def row(record: Record) -> dict[str, str]:
    """One record, all times in microseconds and from the run that confirmed it."""
    key, timing = record.key, record.outcome.timing
    source, torch = timing.verified.compiled.source, timing.baselines["torch"]
    eager, graph = "torch", "torch"
    if isinstance(record.outcome, Admitted):
        eager, graph = record.outcome.eager, record.outcome.graph
    values = (
        key.m, key.n, key.k, key.batch, key.layout, key.dtype, source.backend, source.name,
        _us(timing.gpu.us), _us(timing.gpu.lo), _us(timing.gpu.hi),
        _us(torch.us), _us(torch.lo), _us(torch.hi),
        *(_baseline(timing.baselines.get(name)) for name in
          ("cublas", "cublaslt_heuristic", "cublaslt_autotuned", "triton")),
        _us(timing.floor_us), _us(timing.host.us), _us(timing.torch_host.us), eager, graph,
        f"{timing.clock_mhz:.0f}", f"{timing.power_w:.0f}", timing.run_id,
        timing.verified.examples,
    )  # fmt: skip
    return dict(zip(COLUMNS, map(str, values), strict=True))


def append(path: Path, records: Iterable[Record]) -> None:
    """Add rows to a CSV file, which is made with its header line where it is missing.

    Raises:
        CacheError: If the file has other columns, or cannot be written.
    """
    try:
        new = not path.exists() or path.stat().st_size == 0
        if not new:
            with path.open(newline="") as file:
                found = next(csv.reader(file), [])
            if found != COLUMNS:
                raise CacheError(f"{path}: its columns are {','.join(found)}, needed"
                                 f" {','.join(COLUMNS)}; name another file")  # fmt: skip
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(row(record) for record in records)
    except OSError as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"cannot write {path}: {error.strerror}; name another file") from None


def _us(value: float) -> str:
    return f"{value:.3f}"


def _baseline(found: Interval | None) -> str:
    return "" if found is None else _us(found.us)
