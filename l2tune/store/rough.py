"""The rough times of a pack: what a search's model is fitted to before anything is measured here.

`rough.jsonl` has a line that lists instances of seeds, `[seed, {tunable: value}]`, and then a line
a key: `{"key": ..., "us": {position: microseconds}}`. They decide what is tried first, and nothing
else, so a wrong one costs time only.
"""

import functools
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from l2tune.errors import CacheWarning, InfrastructureError, KeyFormatError, PackError
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Frozen
from l2tune.spec.roofline import physical_minimum_us
from l2tune.store.files import write_whole
from l2tune.store.pack import shipped_folder
from l2tune.store.searches import Ranked

FILE = "rough.jsonl"
Rough = tuple[str, Mapping[str, int], GemmKey, float]
"""Seed, tunables, product, microseconds."""
_INSTANCES: TypeAdapter[list[tuple[str, dict[str, int]]]] = TypeAdapter(
    list[tuple[str, dict[str, int]]]
)


class _Line(Frozen):
    key: str
    us: dict[int, float]


def write_rough(folder: Path, ranked: Iterable[Ranked]) -> None:
    """Write the file; nothing where there is nothing to write. All keys are of one GPU model.

    Raises:
        CacheError: If it cannot be written.
    """
    positions: dict[str, int] = {}
    lines = []
    for one in sorted(ranked, key=lambda one: str(one.key)):
        us = {
            positions.setdefault(_dumped([found.seed, found.values]), len(positions)): found.us
            for found in one.found
            if found.us > physical_minimum_us(one.key)
        }
        short = {position: float(f"{taken_us:.4g}") for position, taken_us in sorted(us.items())}
        name = str(one.key).removesuffix(f"/{one.key.gpu}")
        lines.append(_dumped({"key": name, "us": short}))
    if lines:
        text = "\n".join([f"[{','.join(positions)}]", *lines, ""])
        write_whole(folder / FILE, text.encode())


def read_rough(folder: Path, gpu: Gpu) -> list[Rough]:
    """Read the file of a GPU model's pack; empty where there is none.

    Raises:
        PackError: If it is not what `write_rough` writes.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        first, *rest = path.read_text().splitlines()
        instances = _INSTANCES.validate_json(first)
        found: list[Rough] = []
        for text in rest:
            line = _Line.model_validate_json(text)
            key = GemmKey.parse(f"{line.key}/{gpu}")
            found += [(*instances[position], key, us) for position, us in line.us.items()]
    except (OSError, ValueError, ValidationError, KeyFormatError, IndexError) as error:
        raise PackError(f"{path}: {str(error).splitlines()[0]}; build the pack again") from None
    return found


@functools.cache  # a search asks again and again
def shipped_rough(gpu: Gpu) -> tuple[Rough, ...]:
    """What ships for a GPU model. Never raises: what cannot be read is missing, with a warning."""
    try:
        return tuple(read_rough(shipped_folder() / gpu.slug, gpu))
    except (PackError, InfrastructureError) as error:
        warnings.warn(f"a model is fitted to less: {error}", CacheWarning, stacklevel=2)
        return ()


def _dumped(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))
