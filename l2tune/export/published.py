"""A published table of speed-ups, in the CSV form of CUDA-L2.

Its columns are `mnk` (as `64_128_4096`) and one for each baseline with the speed-up over it; or
`m,n,k` and `speedup`, which is taken to be over `torch.matmul`. Times are not in it, so two such
tables compare ratios taken on two machines.
"""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from l2tune.errors import CacheError

COLUMNS = {
    "torch": ("torch.matmul", "speedup"),
    "cublas": ("cuBLAS-max", "cuBLAS"),
    "cublaslt_heuristic": ("cuBLASLt-heuristic-max", "cuBLASLt-heuristic"),
    "cublaslt_autotuned": ("cuBLASLt-auto-tuning-max", "cuBLASLt-auto-tuning"),
}
"""What holds the speed-up over each of our baselines; `-max` is over the better of both layouts."""

Sizes = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Published:
    """Speed-ups by sizes, then by the name of the baseline that they are over.

    Attributes:
        name: The file's, without its suffix.
    """

    name: str
    speedups: dict[Sizes, dict[str, float]]


def read(path: Path) -> Published:
    """Read a published table.

    Raises:
        CacheError: If the file cannot be read or has neither form.
    """
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        return Published(path.stem, {_sizes(line): _speedups(line) for line in lines})
    except OSError as error:
        raise CacheError(f"cannot read {path}: {error.strerror}; name another file") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(
            f"{path}: found {type(error).__name__} {error}, needed columns mnk,torch.matmul,... as"
            " CUDA-L2 has them, or m,n,k,speedup"
        ) from None


def _sizes(line: Mapping[str, str]) -> Sizes:
    cells = line["mnk"].split("_") if "mnk" in line else [line[name] for name in "mnk"]
    m, n, k = map(int, cells)
    return m, n, k


def _speedups(line: Mapping[str, str]) -> dict[str, float]:
    found = {
        name: float(line[column])
        for name, columns in COLUMNS.items()
        for column in columns
        if line.get(column)
    }
    if "torch" not in found:
        raise KeyError("torch.matmul")
    return found
