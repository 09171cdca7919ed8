"""A drop-in for `torch.matmul` that runs the fastest kernel proven correct for the exact problem.

`l2tune.matmul` is all that most users need. `l2tune.tune` fills the cache that it reads.
"""

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from l2tune.dispatch import matmul, nearest
from l2tune.version import __version__

if TYPE_CHECKING:
    from l2tune.generate.nearest import Nearest
    from l2tune.pipeline import evaluate, tune
    from l2tune.spec.key import GemmKey
    from l2tune.spec.record import Record

__all__ = ["GemmKey", "__version__", "evaluate", "matmul", "tune"]

_LAZY = {
    "tune": "l2tune.pipeline",
    "evaluate": "l2tune.pipeline",
    "GemmKey": "l2tune.spec.key",
}


def _fit_nearest(records: "Iterable[Record]") -> "Nearest":
    """What the policy `nearest` chooses by; dispatch imports no stage, so it is handed to it."""
    model: type[Nearest] = importlib.import_module("l2tune.generate.nearest").Nearest
    known = list(records)
    rough = importlib.import_module("l2tune.store.rough")
    return model(known, rough.shipped_rough(known[0].key.gpu) if known else ())


nearest.fit = _fit_nearest


def __getattr__(name: str) -> Any:
    """Import what only tuning needs when it is first asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'l2tune' has no attribute {name!r}")
