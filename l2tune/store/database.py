"""One table of texts on disk, shared by many processes; every trouble is one kind of exception.

Opens sqlite through diskcache and says in a sentence what went wrong: busy, full, damaged. It knows
nothing of records.
"""

import errno
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from l2tune.errors import CacheError
from l2tune.store.files import private_directory

_BUSY_LIMIT_S = 5.0
_OPEN_LIMIT_S = 30.0
_RETRY_AFTER_S = 60.0
_SETTINGS = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "statistics": 0,
    "tag_index": 0,
    # A file truncated by somebody else would be a SIGBUS in every process that mapped it.
    "sqlite_mmap_size": 0,
}
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DatabaseError(CacheError):
    """The database cannot be used.

    Attributes:
        cause: `busy`, `full`, `damaged`, `refused row`, `unreadable row` or `unusable`.
        directory: Where the database is.
    """

    def __init__(self, cause: str, directory: Path, message: str) -> None:
        super().__init__(message)
        self.cause, self.directory = cause, directory


class Database:
    """A mapping from text to text in one directory, opened at its first use.

    A database that could not be opened is not tried again for a minute, so that a damaged or locked
    one costs a caller one wait and not one for each call.
    """

    def __init__(self, directory: Path) -> None:
        """Make the directory.

        Raises:
            CacheError: If it cannot be made, or others may write to it.
        """
        self.directory = private_directory(directory)
        self._lock = threading.Lock()
        self._cache: Any = None
        self._refused: DatabaseError | None = None
        self._closed_until = 0.0

    def get(self, name: str) -> str | None:
        """Return a text, or None where there is none."""
        with self._opened() as cache:
            found = cache.get(name)
        return found if found is None else str(found)

    def put(self, name: str, text: str) -> None:
        """Store a text; a reader in any process sees all of it or what was there before."""
        with self._opened() as cache:
            cache.set(name, text)

    def remove(self, name: str) -> None:
        """Remove a text, if it is there."""
        with self._opened() as cache:
            cache.delete(name)

    def names(self, prefix: str) -> Iterator[str]:
        """Every name that starts with `prefix`, in order."""
        with self._opened() as cache:
            for name in cache.iterkeys():
                if name is not None and name.startswith(prefix):
                    yield name

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is read and written inside is one step for other processes."""
        with self._opened() as cache, cache.transact():
            yield

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import diskcache

        try:
            yield self._open()
        except CacheError:
            raise
        except (sqlite3.Error, diskcache.Timeout, OSError, ValueError, TypeError) as error:
            # TypeError: what diskcache makes of a damaged table of its settings.
            raise self._failure(error, timed_out=isinstance(error, diskcache.Timeout)) from error

    def _open(self) -> Any:
        if self._cache is not None:
            return self._cache
        with self._lock:
            if self._cache is None:
                if self._refused is not None and time.monotonic() < self._closed_until:
                    raise self._refused
                with self._remembered_failure():
                    self._cache = _connect(self.directory)
        return self._cache

    @contextmanager
    def _remembered_failure(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self._refused = self._failure(error, timed_out=False)
            self._closed_until = time.monotonic() + _RETRY_AFTER_S
            raise self._refused from error

    def _failure(self, error: Exception, *, timed_out: bool) -> DatabaseError:
        from l2tune.store.disk import RefusedRowError

        # diskcache's own Timeout, and a failed ROLLBACK, hide what came first.
        first: BaseException = error
        earlier = error.__context__
        while earlier is not None:
            first = earlier if isinstance(earlier, sqlite3.Error) else first
            earlier = earlier.__context__
        code = getattr(first, "sqlite_errorcode", 0) & 0xFF
        where = f"cache database {self.directory}"
        if isinstance(error, RefusedRowError):
            cause, said = "refused row", f"{error}; it was not read; remove the directory"
        elif code in _BUSY_CODES or (timed_out and not code):
            cause, said = "busy", f"locked by another process for over {_BUSY_LIMIT_S:g} s; retry"
        elif code == sqlite3.SQLITE_FULL or getattr(first, "errno", None) in _FULL_ERRNOS:
            cause, said = "full", f"no space to write ({first}); free some"
        elif code in _DAMAGED_CODES:
            cause, said = "damaged", f"found damage ({first}); remove the directory to start anew"
        else:
            cause, said = "unusable", f"{type(first).__name__}: {first}; run `l2tune doctor`"
        return DatabaseError(cause, self.directory, f"{where}: {said}")


def _connect(directory: Path) -> Any:
    """Open with diskcache, trying again while other processes open the same new database."""
    import diskcache

    from l2tune.store.disk import TextDisk

    deadline = time.monotonic() + _OPEN_LIMIT_S
    while True:
        try:
            _probe(directory / diskcache.core.DBNAME)
            return diskcache.Cache(
                str(directory), timeout=_BUSY_LIMIT_S, disk=TextDisk, **_SETTINGS
            )
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY_CODES
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _probe(path: Path) -> None:
    """Fail soon where the write lock is not to be had: diskcache waits a minute each statement."""
    if not path.exists():
        return
    connection = sqlite3.connect(path, timeout=_BUSY_LIMIT_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()
