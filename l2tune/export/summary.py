"""What a table of results amounts to: means and counts, each with what it was taken over."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from l2tune.export.published import Published
from l2tune.export.timed import NAMES, Row

_LARGE = (8192, 12288, 16384)


@dataclasses.dataclass(frozen=True)
class Line:
    """One figure of a summary.

    Attributes:
        what: What it is.
        value: As it is shown; `-` where no row has what it needs.
        over: How many products it is over.
    """

    what: str
    value: str
    over: int


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values, of which there must be one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summarise(rows: Sequence[Row]) -> list[Line]:
    """What l2tune serves beside the baselines, then its kernels, served or not, and some groups."""
    lines = [
        _mean("torch.matmul / l2tune", rows, lambda row: row.speedup),
        _mean(
            "best of cuBLAS, cuBLASLt autotuned, Triton / l2tune", rows,
            lambda row: row.best_library_us and row.best_library_us / row.served_us,
        ),
        _mean(
            "l2tune / floor", rows, lambda row: row.floor_us and row.served_us / row.floor_us
        ),
        _mean(
            "torch.matmul / l2tune, host included, eager calls", rows,
            lambda row: row.torch_host_us / row.served_host_us,
        ),
        *_over_libraries(rows),
        _mean("torch.matmul / kernel, served or not", rows, lambda row: row.torch.us / row.gpu.us),
        _mean(
            "best of cuBLAS, cuBLASLt autotuned, Triton / kernel, served or not", rows,
            lambda row: row.best_library_us and row.best_library_us / row.gpu.us,
        ),
        *_at_random_gaps(rows),
        _count("kernels slower than torch.matmul beyond the noise", rows,
               lambda row: row.slower_than_torch),
        _count("of those, served in graphs", rows,
               lambda row: row.slower_than_torch and row.graph == "kernel"),
        _count("won by raw CUDA: beats torch.matmul and Triton beyond its interval", rows,
               lambda row: row.won_by_cuda),
        _count("kernel runs inside graphs", rows, lambda row: row.graph == "kernel"),
        _count("kernel runs in eager calls", rows, lambda row: row.eager == "kernel"),
        _mean("torch.matmul / l2tune, m and n <= 512, k >= 4096",
              [row for row in rows if max(row.m, row.n) <= 512 and row.k >= 4096],
              lambda row: row.speedup),
        _mean("torch.matmul / l2tune, k <= 256, m * n >= 2^22",
              [row for row in rows if row.k <= 256 and row.m * row.n >= 1 << 22],
              lambda row: row.speedup),
    ]  # fmt: skip
    for size in _LARGE:
        cubes = [row for row in rows if (row.m, row.n, row.k, row.batch) == (size,) * 3 + (1,)]
        lines.append(_mean(f"cuBLAS / l2tune, {size}^3", cubes, _over("cublas")))
    return lines


def beside(rows: Iterable[Row], published: Published) -> list[tuple[str, str, str, str, int]]:
    """Compare with a published table on the products that both hold.

    Returns:
        For each baseline: its name, our geometric mean of speed-ups over it, theirs, the share of
        products on which ours is the higher, and the number of products. Without those that are
        batched or transposed, which the published form cannot name.
    """
    lines = []
    plain = {(r.m, r.n, r.k): r for r in rows if r.batch == 1 and r.layout == "nn"}
    for name, title in NAMES.items():
        pairs = [
            (ours, theirs[name])
            for sizes, theirs in published.speedups.items()
            if sizes in plain and name in theirs
            if (ours := over(plain[sizes], name)) is not None
        ]
        if pairs:
            higher = sum(ours > theirs for ours, theirs in pairs) / len(pairs)
            ours_mean, theirs_mean = (
                f"{geometric_mean(side):.3f}" for side in zip(*pairs, strict=True)
            )
            lines.append((title, ours_mean, theirs_mean, f"{higher:.0%}", len(pairs)))
    return lines


def over(row: Row, name: str) -> float | None:
    """A baseline's device time over what l2tune serves; None where it was not measured."""
    us = row.torch.us if name == "torch" else row.libraries.get(name)
    return None if us is None else us / row.served_us


def _over(name: str) -> Callable[[Row], float | None]:
    return lambda row: over(row, name)


def _over_libraries(rows: Sequence[Row]) -> list[Line]:
    names = list(dict.fromkeys(name for row in rows for name in row.libraries))
    return [_mean(f"{NAMES.get(name, name)} / l2tune", rows, _over(name)) for name in names]


def _at_random_gaps(rows: Sequence[Row]) -> list[Line]:
    names = list(dict.fromkeys(name for row in rows for name in row.server_baselines))
    return [
        _mean(f"{NAMES.get(name, name)} / kernel, calls at random gaps", rows, _server_over(name))
        for name in names
    ]


def _server_over(name: str) -> Callable[[Row], float | None]:
    def ratio(row: Row) -> float | None:
        us = row.server_baselines.get(name)
        return None if us is None or row.server is None else us / row.server

    return ratio


def _mean(what: str, rows: Sequence[Row], value: Callable[[Row], float | None]) -> Line:
    values = [found for row in rows if (found := value(row))]
    return Line(what, f"{geometric_mean(values):.3f}" if values else "-", len(values))


def _count(what: str, rows: Sequence[Row], holds: Callable[[Row], bool]) -> Line:
    found = sum(map(holds, rows))
    return Line(what, f"{found} ({found / len(rows):.0%})" if rows else "-", len(rows))
