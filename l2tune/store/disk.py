"""What a row of the database may be: plain text under a plain text key, in the row itself.

diskcache pickles what it cannot store and unpickles whatever a row declares to be a pickle, so that
who writes to the directory runs code in every reader (CVE-2025-69872; its own JSONDisk unpickles
too). This class never calls either: a row that is anything but text is refused unread.
"""

from typing import Any

import diskcache
from diskcache.core import MODE_RAW


class RefusedRowError(ValueError):
    """A row or key is not the plain text that l2tune writes."""


class TextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no annotations
    """Stores `str` under `str`, and has no side files.

    A side file would be a second thing to lose, and its name in a row a path somebody else chose,
    so a row that names one is refused and diskcache's removal of it does nothing.
    """

    def __init__(self, directory: str, **_: object) -> None:
        """Ignore the options that diskcache reads back from the database."""
        super().__init__(directory)

    def put(self, key: object) -> tuple[str, bool]:
        """Return the database form of `key`.

        Raises:
            RefusedRowError: If it is no `str`.
        """
        if type(key) is not str:
            raise RefusedRowError(f"key {key!r} is no text")
        return key, True

    def get(self, key: object, raw: object) -> str | None:
        """Return a stored key, or None for one that is no text, so that a listing goes past it."""
        return key if raw and type(key) is str else None

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, str]:
        """Return the database form of `value`.

        Raises:
            RefusedRowError: If it is no `str`.
        """
        if read or type(value) is not str:
            raise RefusedRowError(f"value of {key!r} is no text")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> str:
        """Return a row's text.

        Raises:
            RefusedRowError: If the row holds a pickle, bytes, a number or the name of a file.
        """
        if read or mode != MODE_RAW or filename is not None or type(value) is not str:
            raise RefusedRowError("a row is not the plain text that l2tune writes")
        return value

    def remove(self, file_path: Any) -> None:
        """Leave the file alone: l2tune wrote no row that names one."""
