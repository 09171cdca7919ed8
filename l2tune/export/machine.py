"""What a table of results was timed on and with: a JSON file beside it.

`spine.csv` has its machine in `spine.machine.json`, which a report reads.
"""

import platform
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from l2tune.errors import CacheError
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import Frozen
from l2tune.spec.record import Record, Tools

_PACKAGES = ("triton", "nvmath-python", "nvidia-cublas")


class Machine(Frozen):
    """One machine and its software.

    Attributes:
        packages: Versions of what makes the baselines, by package; those that are installed.
    """

    gpu: Gpu
    tools: Tools
    system: str
    python: str
    packages: dict[str, str]

    def facts(self) -> dict[str, str]:
        """What a report says of it."""
        major, minor = self.gpu.capability
        return {
            "GPU": f"{self.gpu.name}, {self.gpu.sms} multiprocessors, compute capability"
            f" {major}.{minor}",
            "driver": self.tools.driver,
            "system": self.system,
            "Python": self.python,
            "l2tune": self.tools.l2tune,
            "torch": self.tools.torch,
            "compiler": self.tools.compiler,
            **self.packages,
        }


def here(record: Record) -> Machine:
    """This machine, with the GPU and tools of a record that it made."""
    packages = {dist.name: dist.version for dist in map(_installed, _PACKAGES) if dist is not None}
    return Machine(
        gpu=record.key.gpu, tools=record.tools, system=platform.platform(),
        python=platform.python_version(), packages=packages,
    )  # fmt: skip


def _installed(package: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None


def path_beside(table: Path) -> Path:
    """Where the machine of a table is."""
    return table.with_suffix(".machine.json")


def read(table: Path) -> Machine | None:
    """Read a table's machine; None if there is none beside it.

    Raises:
        CacheError: If the file cannot be read, or is something else.
    """
    path = path_beside(table)
    try:
        return Machine.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheError(f"cannot read {path}: {error.strerror}; remove it") from None
    except ValidationError as error:
        raise CacheError(
            f"{path}: found {error.error_count()} faults, needed the machine of {table.name};"
            " remove it"
        ) from None
