"""Starts a Python process that outlives its caller and never disturbs it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(arguments: Sequence[str], cache_dir: Path) -> subprocess.Popen[bytes]:
    """Start Python with these arguments, in a session of its own, without input or output.

    Args:
        arguments: As `-m MODULE` or `-c PROGRAM`.
        cache_dir: Its `L2TUNE_CACHE_DIR`.

    Raises:
        OSError: If no process can be started.
    """
    return subprocess.Popen(
        [sys.executable, *arguments], env=os.environ | {"L2TUNE_CACHE_DIR": str(cache_dir)},
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
