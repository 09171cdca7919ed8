"""Kernels of installed packs that have not been re-checked on this machine's GPU.

They lie apart from records and serve nobody. A call that could have used one asks for it; who
re-checks it takes it out, and what passes becomes a record.
"""

import warnings
from pathlib import Path

from l2tune.errors import CacheWarning, KeyFormatError
from l2tune.spec.key import GemmKey
from l2tune.spec.record import SCHEMA_VERSION
from l2tune.store.artifacts import Artifacts
from l2tune.store.database import Database, DatabaseError
from l2tune.store.files import private_directory

_DIRECTORY = "packs"
_WAITING = f"waiting/{SCHEMA_VERSION}/"
_ASKED = f"asked/{SCHEMA_VERSION}/"


class Pending:
    """What waits in one cache directory; a database of its own, which may be deleted."""

    def __init__(self, root: Path) -> None:
        """Make the directory.

        Raises:
            CacheError: If it cannot be made or written, or others may write to it.
        """
        self.directory = private_directory(root) / _DIRECTORY
        self._database = Database(self.directory)
        self._artifacts = Artifacts(root)

    def put(self, key: GemmKey, text: str) -> None:
        """Let a kernel file wait, in the place of any other for its key.

        Raises:
            CacheError: If it cannot be stored.
        """
        self._database.put(f"{_WAITING}{key}", self._artifacts.put(text.encode()))

    def get(self, key: GemmKey) -> str | None:
        """Return the kernel file that waits for `key`. Never raises: what is damaged is missing."""
        try:
            digest = self._database.get(f"{_WAITING}{key}")
            data = None if digest is None else self._artifacts.get(digest)
            return None if data is None else data.decode()
        except (DatabaseError, UnicodeDecodeError) as error:
            warnings.warn(f"a pack's kernel is not found: {error}", CacheWarning, stacklevel=2)
            return None

    def remove(self, key: GemmKey) -> None:
        """Take a kernel out, if there is one.

        Raises:
            CacheError: If the database cannot be written.
        """
        self._database.remove(f"{_WAITING}{key}")
        self._database.remove(f"{_ASKED}{key}")

    def ask(self, key: GemmKey) -> bool:
        """Note that a call could have used what waits for `key`; False if nothing does."""
        try:
            if self._database.get(f"{_WAITING}{key}") is None:
                return False
            self._database.put(f"{_ASKED}{key}", "")
        except DatabaseError as error:
            warnings.warn(f"a pack's kernel is not asked for: {error}", CacheWarning, stacklevel=2)
            return False
        return True

    def keys(self) -> list[GemmKey]:
        """Keys that a kernel waits for.

        Raises:
            CacheError: If the database cannot be read.
        """
        return self._keys(_WAITING)

    def asked(self) -> list[GemmKey]:
        """Those of them that a call has asked for.

        Raises:
            CacheError: If the database cannot be read.
        """
        return self._keys(_ASKED)

    def _keys(self, prefix: str) -> list[GemmKey]:
        found = []
        for name in self._database.names(prefix):
            try:
                found.append(GemmKey.parse(name.removeprefix(prefix)))
            except KeyFormatError as error:
                warnings.warn(str(error), CacheWarning, stacklevel=3)
        return found


def waiting_keys(root: Path) -> list[GemmKey]:
    """Keys that a kernel waits for in a cache directory; makes nothing where none ever did.

    Raises:
        CacheError: If the database cannot be read.
    """
    return Pending(root).keys() if (root / _DIRECTORY).is_dir() else []
