"""Records as rows of a table of results: one fixed set of columns, empty where nothing is known.

Calls at random gaps and peers' kernels have columns of their own behind those, where they were
asked for. `l2tune.export.timed` reads such a table.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from l2tune.errors import CacheError
from l2tune.export import machine
from l2tune.spec.outcome import Admitted, Interval
from l2tune.spec.record import Record

COLUMNS = [
    *("m", "n", "k", "batch", "layout", "dtype", "backend", "kernel", "us", "us_lo", "us_hi"),
    *("torch_us", "torch_us_lo", "torch_us_hi", "cublas_us", "cublaslt_heuristic_us"),
    *("cublaslt_autotuned_us", "triton_us", "floor_us", "host_us", "torch_host_us"),
    *("eager_choice", "graph_choice", "clock_mhz", "power_w", "run_id", "verified_examples"),
]
_SERVER = ("torch", "cublaslt_autotuned")


def row(record: Record, *, peers: Sequence[str] = ()) -> dict[str, str]:
    """One record, all times in microseconds and from the run that confirmed it.

    Args:
        record: The record.
        peers: Names of baselines that have a column besides the usual ones.
    """
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
    cells = dict(zip(COLUMNS, map(str, values), strict=True))
    cells |= {f"{name}_us": _baseline(timing.baselines.get(name)) for name in peers}
    if server := timing.server:
        cells["server_us"] = _us(server["kernel"].us)
        for name in (*_SERVER, *peers):
            cells[f"{name}_server_us"] = _baseline(server.get(name))
    return cells


def append(path: Path, records: Sequence[Record]) -> None:
    """Add records to a table, and write its machine beside it.

    Raises:
        CacheError: If the file has other columns, or cannot be written.
    """
    rows = list(map(row, records))
    append_rows(path, rows, columns=list(rows[0]) if rows else COLUMNS)
    describe_machine(path, records)


def describe_machine(path: Path, records: Sequence[Record]) -> None:
    """Write what a table's records were timed on and with beside it.

    Raises:
        CacheError: If the file cannot be written.
    """
    for record in records[-1:]:
        beside = machine.path_beside(path)
        try:
            beside.write_text(machine.here(record).model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise CacheError(f"cannot write {beside}: {error.strerror}") from None


def append_rows(path: Path, rows: Iterable[Mapping[str, str]], *, columns: Sequence[str]) -> None:
    """Add rows to a CSV file, which is made with its header line where it is missing.

    Raises:
        CacheError: If the file has other columns, or cannot be written.
    """
    try:
        new = not path.exists() or path.stat().st_size == 0
        if not new:
            with path.open(newline="") as file:
                found = next(csv.reader(file), [])
            if found != list(columns):
                raise CacheError(f"{path}: its columns are {','.join(found)}, needed"
                                 f" {','.join(columns)}; name another file")  # fmt: skip
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"cannot write {path}: {error.strerror}; name another file") from None


def _us(value: float) -> str:
    return f"{value:.3f}"


def _baseline(found: Interval | None) -> str:
    return "" if found is None else _us(found.us)
