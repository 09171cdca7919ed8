"""The kernel files that ship with l2tune."""

import functools
import hashlib
from pathlib import Path

from l2tune.errors import InfrastructureError


@functools.cache
def _root() -> Path:
    """`kernels_seed/`: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "kernels_seed", package.parent / "kernels_seed"):
        if root.is_dir():
            return root
    raise InfrastructureError(f"no kernels_seed folder beside {package}; reinstall l2tune")


def include_dir() -> Path:
    """The folder that `#include "l2/..."` is relative to."""
    return _root() / "include"


def seed_texts() -> dict[str, str]:
    """Every matrix-product seed, by id."""
    paths = [*_root().glob("sm*/*.cu"), *_root().glob("triton/*.py")]
    return {
        path.relative_to(_root()).with_suffix("").as_posix(): path.read_text() for path in paths
    }


@functools.cache
def seeds_digest() -> str:
    """Tells the seeds, with their headers, from those of another version."""
    paths = [*_root().glob("**/*.cu"), *_root().glob("**/*.cuh"), *_root().glob("triton/*.py")]
    texts = [path.read_bytes() for path in sorted(paths)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def seed_text(seed_id: str) -> str:
    """One seed.

    Raises:
        KeyError: If there is none of that id.
    """
    return seed_texts()[seed_id]
