"""Rows of a table of results, read back: what reports are made of.

`l2tune.export.results` writes them. Two rows of one product are two runs of it; the later counts.
"""

import csv
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from l2tune.errors import CacheError
from l2tune.spec.outcome import Interval

NAMES = {
    "torch": "torch.matmul",
    "cublas": "cuBLAS",
    "cublaslt_heuristic": "cuBLASLt heuristic",
    "cublaslt_autotuned": "cuBLASLt autotuned",
    "triton": "Triton",
}
"""What a column's baseline is called; a peer's column is `peer_NAME_us`."""
PEER = "peer_"
_BEST_OF = ("cublas", "cublaslt_autotuned", "triton")
_SERVED = "_server_us"


@dataclasses.dataclass(frozen=True)
class Row:
    """One product's times, microseconds; None or missing where nothing was measured.

    Attributes:
        gpu: Device time of the kernel.
        torch: Device time of `torch.matmul`.
        libraries: Device time of every other baseline, by its column without `_us`.
        eager: What runs in eager calls, `kernel` or `torch`.
        graph: What runs inside graphs, likewise.
        server: Time of the kernel's calls at random gaps.
        server_baselines: That of the baselines, by name.
    """

    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype: str
    backend: str
    kernel: str
    gpu: Interval
    torch: Interval
    libraries: dict[str, float]
    floor_us: float
    host_us: float
    torch_host_us: float
    eager: str
    graph: str
    server: float | None
    server_baselines: dict[str, float]
    clock_mhz: float
    power_w: float
    run_id: str
    examples: int

    @property
    def product(self) -> tuple[int, int, int, int, str, str]:
        """What tells two products apart."""
        return (self.m, self.n, self.k, self.batch, self.layout, self.dtype)

    @property
    def label(self) -> str:
        """A short name; the layout and dtype only where they are not the usual ones."""
        batch = f" x{self.batch}" if self.batch > 1 else ""
        plain = (self.layout, self.dtype) == ("nn", "float16")
        return f"{self.m}x{self.n}x{self.k}{batch}" + (
            "" if plain else f" {self.layout} {self.dtype}"
        )

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def intensity(self) -> float:
        """Operations for each byte, every operand read once and the result written once."""
        return self.flops / (2 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n))

    @property
    def served_us(self) -> float:
        """What `l2tune.matmul` takes inside a graph: the kernel, or torch where that is chosen."""
        return self.gpu.us if self.graph == "kernel" else self.torch.us

    @property
    def served_host_us(self) -> float:
        """What an eager call of `l2tune.matmul` takes."""
        return self.host_us if self.eager == "kernel" else self.torch_host_us

    @property
    def speedup(self) -> float:
        """`torch.matmul`'s device time over what l2tune serves."""
        return self.torch.us / self.served_us

    @property
    def best_library_us(self) -> float | None:
        """The least of cuBLAS, cuBLASLt autotuned and Triton; None where none was measured."""
        return min((self.libraries[name] for name in _BEST_OF if name in self.libraries),
                   default=None)  # fmt: skip

    @property
    def slower_than_torch(self) -> bool:
        """Whether the kernel is slower than `torch.matmul` by more than both intervals."""
        return self.torch.beats(self.gpu)

    @property
    def won_by_cuda(self) -> bool:
        """Whether a CUDA kernel beats `torch.matmul`, and Triton's time, beyond its interval."""
        triton = self.libraries.get("triton")
        return (
            self.backend == "cuda"
            and self.gpu.beats(self.torch)
            and (triton is None or self.gpu.hi < triton)
        )


def read(paths: Iterable[Path]) -> list[Row]:
    """Read tables of results; of each product the last row, in the order of their first.

    Raises:
        CacheError: If a file cannot be read, or is no table of results.
    """
    found: dict[tuple[int, int, int, int, str, str], Row] = {}
    for path in paths:
        try:
            with path.open(newline="") as file:
                for line in csv.DictReader(file):
                    row = from_line(line)
                    found[row.product] = row
        except OSError as error:
            raise CacheError(f"cannot read {path}: {error.strerror}; name another file") from None
        except (KeyError, TypeError, ValueError) as error:
            raise CacheError(
                f"{path}: a row is no row of results ({type(error).__name__}: {error});"
                " `l2tune bench --results FILE` writes one"
            ) from None
    return list(found.values())


def from_line(line: Mapping[str, str]) -> Row:
    """One line of a table, as `l2tune.export.results.row` makes it.

    Raises:
        KeyError: If a column is missing.
        ValueError: If a cell is no number that should be one.
    """
    fixed = {"us", "torch_us", "floor_us", "host_us", "torch_host_us", "server_us"}
    times = {
        name.removesuffix("_us"): float(cell)
        for name, cell in line.items()
        if name not in fixed and name.endswith("_us") and cell
    }
    served = _SERVED.removesuffix("_us")
    return Row(
        m=int(line["m"]), n=int(line["n"]), k=int(line["k"]), batch=int(line["batch"]),
        layout=line["layout"], dtype=line["dtype"], backend=line["backend"],
        kernel=line["kernel"], gpu=_interval(line, ""), torch=_interval(line, "torch_"),
        libraries={name: us for name, us in times.items() if not name.endswith(served)},
        floor_us=float(line["floor_us"]), host_us=float(line["host_us"]),
        torch_host_us=float(line["torch_host_us"]), eager=line["eager_choice"],
        graph=line["graph_choice"], server=float(line["server_us"]) if line.get("server_us")
        else None,
        server_baselines={
            name.removesuffix(served): us for name, us in times.items() if name.endswith(served)
        },
        clock_mhz=float(line["clock_mhz"]), power_w=float(line["power_w"]), run_id=line["run_id"],
        examples=int(line["verified_examples"]),
    )  # fmt: skip


def _interval(line: Mapping[str, str], prefix: str) -> Interval:
    us, lo, hi = (float(line[f"{prefix}us{end}"]) for end in ("", "_lo", "_hi"))
    return Interval(us=us, lo=lo, hi=hi)
