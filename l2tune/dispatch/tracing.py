"""Lets `torch.compile` trace a Python function where the program calls a native one.

torch is told when its tracer is imported, not before: that import takes longer than torch's own,
and most programs never need it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_TRACER = "torch._dynamo"


def trace_instead(native: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """Make the tracer inline `traced` where it meets `native`."""

    def tell() -> None:
        import torch

        torch.compiler.substitute_in_graph(native)(traced)

    if _TRACER in sys.modules:
        tell()
    else:
        sys.meta_path.insert(0, _AfterImport(tell))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, right after the tracer was imported; finds nothing itself."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the tracer, and have its loader call back."""
        if name != _TRACER or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_tell(module: ModuleType) -> None:
                load(module)
                self._tell()

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
