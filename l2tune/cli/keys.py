"""From a command's options to keys: one shape, a CSV file of shapes, or a named grid."""

import csv
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from l2tune.errors import InfrastructureError
from l2tune.runtime.device import detect
from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.header import sentence
from l2tune.spec.key import GemmKey

CUDA_L2_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
"""m, n and k of CUDA-L2's published grid of 1,000 shapes."""

Shape = Annotated[
    tuple[int, int, int] | None, typer.Option(metavar="M N K", help="One product's sizes.")
]
Shapes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="CSV with columns m,n,k and optionally batch,layout,dtype,acc."
    ),
]
Batch = Annotated[int, typer.Option(help="Independent products.")]
Layout = Annotated[str, typer.Option(help="nn, nt, tn or tt; t: that operand is transposed.")]
Dtype = Annotated[str, typer.Option(help="float16 or bfloat16.")]
Acc = Annotated[
    str, typer.Option(help="What products are summed in: float32, or float16 for float16 operands.")
]
Server = Annotated[bool, typer.Option("--server", help="Time single calls at random gaps too.")]
Gap = Annotated[float, typer.Option(min=1.0, help="Mean gap of --server, microseconds.")]
PRETENDED = {"h200": H200, "a100": A100}
"""GPUs whose rates are known, so that times on them can be estimated without one."""
Device = Annotated[int, typer.Option(help="Index of the GPU.")]


def needed_gpu(device: int, *, why: str) -> Gpu:
    """The GPU of that index.

    Raises:
        InfrastructureError: If there is none, or none that l2tune has kernels for.
    """
    gpu = detect(device)
    if gpu is None:
        raise InfrastructureError(
            f"found no GPU {device}; {why}. Without a GPU, `l2tune tune` estimates, `l2tune verify"
            " FILE` and `l2tune emulate FILE` run a kernel file on the emulator, and `l2tune show`"
            " and `l2tune export` work on the cache"
        )
    if gpu.arch is None:
        major, minor = gpu.capability
        raise InfrastructureError(
            f"{gpu.name} has compute capability {major}.{minor}, needed 8.x or 9.0;"
            " torch.matmul serves it"
        )
    return gpu


def pretended_gpu(name: str) -> Gpu:
    """A GPU to estimate for.

    Raises:
        BadParameter: If its rates are not known.
    """
    if name not in PRETENDED:
        raise typer.BadParameter(f"--gpu {name}: needed one of {', '.join(PRETENDED)}")
    return PRETENDED[name]


def make_key(gpu: Gpu, m: int, n: int, k: int, **options: Any) -> GemmKey:
    """A dense key.

    Raises:
        BadParameter: If a value is not one that a key can have.
    """
    try:
        key = GemmKey.dense(m, n, k, gpu=gpu, **options)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(map(sentence, error.errors()))) from None
    if key.acc == "float16" and key.dtype != "float16":
        raise typer.BadParameter(f"acc float16: found dtype {key.dtype}, needed float16")
    return key


def read_shapes(path: Path, gpu: Gpu) -> list[GemmKey]:
    """The keys of a CSV file with a header line; columns of other names are ignored.

    Raises:
        BadParameter: If it cannot be read, or a line does not make a key.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise typer.BadParameter(f"{path}: {error}") from None
    if not rows:
        raise typer.BadParameter(f"{path}: found no shapes, needed a line m,n,k and one for each")
    return [_row_key(row, gpu, f"{path}, shape {number}") for number, row in enumerate(rows, 1)]


def _row_key(row: dict[str, str], gpu: Gpu, where: str) -> GemmKey:
    try:
        m, n, k = (int(row[name]) for name in "mnk")
        batch = int(row.get("batch") or 1)
    except (KeyError, ValueError, TypeError):
        raise typer.BadParameter(
            f"{where}: found {dict(row)}, needed whole numbers in columns m, n, k"
        ) from None
    words = {name: row[name] for name in ("layout", "dtype", "acc") if row.get(name)}
    try:
        return make_key(gpu, m, n, k, batch=batch, **words)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{where}: {error.message}") from None


def grid_keys(name: str, gpu: Gpu, **options: Any) -> list[GemmKey]:
    """The keys of a named grid; batch, layout, dtype and acc are options.

    Raises:
        BadParameter: If there is none of that name.
    """
    if name != "cuda-l2":
        raise typer.BadParameter(f"grid {name!r}: needed cuda-l2")
    sizes = itertools.product(CUDA_L2_SIZES, repeat=3)
    return [make_key(gpu, m, n, k, **options) for m, n, k in sizes]


def matcher(wanted: str | None) -> Callable[[GemmKey], bool]:
    """A test for the key, or the shape `MxNxK`, that a person asked for; None is every key.

    Raises:
        BadParameter: If `wanted` is neither.
    """
    if wanted is None:
        return lambda key: True
    if wanted.startswith("gemm/"):
        return lambda key: str(key) == wanted
    if match := re.fullmatch(r"(\d+)x(\d+)x(\d+)", wanted):
        sizes = tuple(map(int, match.groups()))
        return lambda key: (key.m, key.n, key.k) == sizes
    raise typer.BadParameter(f"{wanted!r}: needed a key (gemm/...) or a shape, as 4096x4096x4096")


def asked_keys(
    gpu: Gpu, *, shape: tuple[int, int, int] | None, shapes: Path | None, grid: str | None,
    **options: Any,
) -> list[GemmKey]:  # fmt: skip
    """The keys that exactly one of shape, shapes and grid names, each once.

    Args:
        gpu: Where they run.
        shape: One product.
        shapes: A CSV file.
        grid: A grid's name.
        **options: batch, layout, dtype and acc of `shape` and `grid`.

    Raises:
        BadParameter: If none or several of them are given.
    """
    given = [option for option in (shape, shapes, grid) if option is not None]
    if len(given) != 1:
        raise typer.BadParameter("needed exactly one of --shape, --shapes and --grid")
    if shape is not None:
        return [make_key(gpu, *shape, **options)]
    if shapes is not None:
        return list(dict.fromkeys(read_shapes(shapes, gpu)))
    return grid_keys(str(grid), gpu, **options)
