"""How far the search for a key has come, so that it can go on in another process.

First rough times of kernels, then the kernel that was chosen and proven. What is here
serves nobody and may be deleted: a record is made only from a confirming run.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from l2tune.errors import CacheWarning
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Frozen, Verified
from l2tune.spec.record import SCHEMA_VERSION, Tools
from l2tune.store.database import Database, DatabaseError
from l2tune.store.files import private_directory

_RANKED, _CHOSEN = f"ranked/{SCHEMA_VERSION}/", f"chosen/{SCHEMA_VERSION}/"


class Measured(Frozen):
    """A kernel and its rough time.

    Attributes:
        text: SHA-256 of the settled file among the artifacts.
        seed: The file's id.
        values: Its tunables.
        us: Microseconds of a launch.
    """

    text: str
    seed: str
    values: dict[str, int]
    us: float


class Ranked(Frozen):
    """What rough timing found for a key.

    Attributes:
        key: The product.
        torch_us: Rough time of `torch.matmul`; None where its turn did not come.
        found: The kernels, the fastest first.
        tools: What they were timed with.
        seeds: Digest of the seeds that candidates came from; with others the search is another.
    """

    key: GemmKey
    torch_us: float | None
    found: tuple[Measured, ...]
    tools: Tools
    seeds: str = ""


class Chosen(Frozen):
    """What is to be confirmed for a key.

    Attributes:
        verified: The fastest kernel that was proven.
        triton: The fastest right Triton kernel, to be timed beside it.
        tools: What was at work.
    """

    verified: Verified
    triton: Compiled | None
    tools: Tools


_Read = TypeVar("_Read", Ranked, Chosen)


class Searches:
    """The searches of one cache directory; a database of their own."""

    def __init__(self, root: Path) -> None:
        """Make the directory.

        Raises:
            CacheError: If it cannot be made or written, or others may write to it.
        """
        self._database = Database(private_directory(root) / "searches")

    def ranked(self, key: GemmKey, tools: Tools) -> Ranked | None:
        """Return what was timed for `key` with these tools. Never raises: damage is absence."""
        return self._read(f"{_RANKED}{key}", Ranked, tools)

    def chosen(self, key: GemmKey, tools: Tools) -> Chosen | None:
        """Return what was chosen for `key` with these tools. Never raises."""
        return self._read(f"{_CHOSEN}{key}", Chosen, tools)

    def put_ranked(self, ranked: Ranked) -> None:
        """Keep rough times; what was chosen by earlier ones is forgotten.

        Raises:
            CacheError: If they cannot be stored.
        """
        self._database.put(f"{_RANKED}{ranked.key}", ranked.model_dump_json())
        self._database.remove(f"{_CHOSEN}{ranked.key}")

    def put_chosen(self, chosen: Chosen) -> None:
        """Keep a choice.

        Raises:
            CacheError: If it cannot be stored.
        """
        self._database.put(f"{_CHOSEN}{chosen.verified.key}", chosen.model_dump_json())

    def forget(self, key: GemmKey) -> None:
        """Begin anew for `key`.

        Raises:
            CacheError: If the database cannot be written.
        """
        self._database.remove(f"{_RANKED}{key}")
        self.forget_choice(key)

    def forget_choice(self, key: GemmKey) -> None:
        """Let a choice go: there is a record now. The rough times stay, for others' sake.

        Raises:
            CacheError: If the database cannot be written.
        """
        self._database.remove(f"{_CHOSEN}{key}")

    def all_ranked(self, gpu: Gpu) -> Iterator[Ranked]:
        """Every rough ranking on this GPU model, whatever it was timed with.

        Raises:
            CacheError: If the database cannot be read.
        """
        for name in self._database.names(_RANKED):
            ranked = self._read(name, Ranked, None)
            if ranked is not None and ranked.key.gpu == gpu:
                yield ranked

    def _read(self, name: str, form: type[_Read], tools: Tools | None) -> _Read | None:
        try:
            text = self._database.get(name)
            found = None if text is None else form.model_validate_json(text)
        except (DatabaseError, ValueError) as error:
            said = str(error).splitlines()[0]
            warnings.warn(f"a search begins anew: {said}", CacheWarning, stacklevel=3)
            return None
        return found if found is not None and tools in (None, found.tools) else None
