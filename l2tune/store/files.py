"""Files written whole or not at all, in a directory that only its owner can write to."""

import os
import tempfile
from pathlib import Path

from l2tune.errors import CacheError


def private_directory(path: Path) -> Path:
    """Make `path` (mode 0700) and return it.

    Raises:
        CacheError: If it cannot be made or written, is somebody else's, or others may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise CacheError(
            f"cache directory {path}: {error.strerror}; set L2TUNE_CACHE_DIR to one you can write"
        ) from None
    if status.st_uid != os.getuid():
        raise CacheError(
            f"cache directory {path} belongs to user {status.st_uid}, needed {os.getuid()};"
            " set L2TUNE_CACHE_DIR to one of yours"
        )
    if status.st_mode & 0o022:
        raise CacheError(f"cache directory {path} can be written by others; run chmod 700 {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise CacheError(f"cache directory {path} is read-only; set L2TUNE_CACHE_DIR to another")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write through a temporary name and rename, so that a reader sees all of `data` or nothing.

    Raises:
        CacheError: If the disk is full or the directory cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    except OSError as error:
        raise CacheError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise CacheError(f"cannot write {path}: {error.strerror}") from None
