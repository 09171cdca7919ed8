"""Reads a kernel file and settles what it leaves open, so that it can be judged."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

from l2tune import compile, generate  # noqa: A004
from l2tune.errors import HeaderError, UnsupportedProblemError
from l2tune.export import is_export, parse_export
from l2tune.spec.gpu import A100, H200, Arch, Gpu
from l2tune.spec.header import Header, parse
from l2tune.spec.kernel import KernelSource, instances, instantiate
from l2tune.spec.key import Dtype, GemmKey

REFERENCE_GPU: dict[Arch, Gpu] = {"sm_90a": H200, "sm_80": A100}
"""Whose limits a target is judged by on a machine without a GPU."""
LONG_DTYPE: dict[str, Dtype] = {"f16": "float16", "bf16": "bfloat16"}
_SHAPES = (
    (512, 512, 512), (256, 256, 256), (64, 64, 64), (4096, 4096, 4096), (1, 4096, 4096),
    (4096, 1, 4096), (512, 64, 16384),
)  # fmt: skip
_MOST_INSTANCES = 4000

Shape = tuple[int, int, int]


def read_kernel(file: Path) -> str:
    """The text of a kernel file.

    Raises:
        BadParameter: If it cannot be read.
    """
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None


def assignment(text: str) -> tuple[str, int]:
    """A `--set` option as a tunable's name and value.

    Raises:
        BadParameter: If it is not one.
    """
    name, _, value = text.partition("=")
    if not name or not value.lstrip("-").isdecimal():
        raise typer.BadParameter(f"--set {text}: needed NAME=VALUE with a whole number")
    return name, int(value)


def settle(
    text: str,
    values: Mapping[str, int],
    gpu: Gpu,
    shape: Shape | None,
    *,
    layout: str | None = None,
) -> tuple[str, Shape]:
    """Settle tunables and shape.

    Args:
        text: A kernel file, or an exported one.
        values: Tunables that the caller wants; the first admitted combination of the others is
            taken.
        gpu: Whose limits hold.
        shape: The caller's problem; by default the first of a few that the contract admits.
        layout: That the instance must admit; by default any of the contract's.

    Returns:
        The file, headers flattened and every tunable settled, and a shape that it admits.

    Raises:
        HeaderError: If the contract is malformed, or does not have a value.
        UnsupportedProblemError: If no combination admits the shape.
    """
    if is_export(text):
        text = parse_export(text).text
    text = compile.flatten(instantiate(text, values), generate.include_dir())
    header = parse(text)[1]
    expected = (header.expect.shape,) if header.expect else ()
    shapes = (shape,) if shape is not None else (*expected, *_SHAPES)
    for settled in _instances(text, header, gpu):
        for tried in shapes:
            if _serves(settled, header, gpu, tried, layout):
                return settled, tried
    tried_shapes = ", ".join("x".join(map(str, sizes)) for sizes in shapes)
    raise UnsupportedProblemError(
        f"{header.id}: no instance admits {tried_shapes} on {gpu.name}; name another problem with"
        " --shape, or tunables with --set"
    )


def _instances(text: str, header: Header, gpu: Gpu) -> Iterator[str]:
    if not header.tune:
        yield text
        return
    for values in itertools.islice(instances(text, gpu), _MOST_INSTANCES):
        yield instantiate(text, values)


def _serves(text: str, header: Header, gpu: Gpu, shape: Shape, wanted: str | None) -> bool:
    arch = gpu.arch
    if arch not in header.arch:
        raise HeaderError(f"{header.id}: is for {list(header.arch)}, and {gpu.name} needs {arch}")
    return any(
        source_of(text, arch, LONG_DTYPE[dtype], layout).accepts(key.problem(), gpu)
        for dtype in header.dtype[:1]
        for layout in header.layout
        if wanted in (None, layout)
        for key in [GemmKey.dense(*shape, gpu=gpu, layout=layout, dtype=LONG_DTYPE[dtype])]
    )


def source_of(text: str, arch: Arch, dtype: Dtype, layout: str) -> KernelSource:
    """A settled file for one target, dtype and layout."""
    return KernelSource.model_validate(
        {"text": text, "arch": arch, "dtype": dtype, "layout": layout}
    )
