"""Has a pack's kernel re-checked when a call could have used it; nothing here runs in a call."""

import functools
import subprocess
from pathlib import Path

from l2tune.dispatch import detached
from l2tune.errors import CacheError
from l2tune.spec.key import GemmKey
from l2tune.store import Pending

_rechecking: subprocess.Popen[bytes] | None = None


def recheck_in_background(key: GemmKey, device: int, root: Path) -> None:
    """Ask for what waits for `key`, and start a process that re-checks what was asked for.

    Never waits and never raises. One process at a time re-checks for a cache; it goes on while
    there is something asked for.

    Args:
        key: What a call found no record for.
        device: Index of its GPU.
        root: The cache directory.
    """
    global _rechecking
    if not (root / "packs").is_dir():
        return
    try:
        if not _pending(root).ask(key):
            return
        if _rechecking is not None and _rechecking.poll() is None:
            return
        command = ["-m", "l2tune.cli", "pack", "recheck-wanted", "--device", str(device)]
        _rechecking = detached.start(command, root)
    except (CacheError, OSError):
        return


@functools.lru_cache(maxsize=8)
def _pending(root: Path) -> Pending:
    return Pending(root)
