"""Every L2TUNE_* environment variable: typed, read once, overridable in tests.

Nothing else in the package reads the environment for its own options.
"""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

_CHOICES = {"L2TUNE_NATIVE": ("auto", "off"), "L2TUNE_POLICY": ("fallback", "nearest")}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a user can set; each field is the variable `L2TUNE_<FIELD IN UPPER CASE>`.

    Attributes:
        cache_dir: Where records, sources and cubins are kept.
        disable: Makes `l2tune.matmul` behave as `torch.matmul`, whatever the cache holds.
        native: Whether `l2tune.matmul` may be the native function where one is built (`auto`), or
            is always the Python one (`off`).
        policy: What answers a product that has no record: `torch.matmul` (`fallback`), or a kernel
            that is proven and was tuned for others, where a fitted guess trusts it (`nearest`).
        compile_timeout_s: Wall-clock limit of one compilation.
        compile_memory_mb: Address-space limit of one compilation.
        launch_timeout_s: How long one candidate's launch may take in a worker before it is a hang.
        worker_start_timeout_s: How long a worker process may take to be ready.
        emulator_budget_s: Seconds the emulator may spend on one candidate before what is left of
            its cases is skipped.
        emulated_gate_budget_s: Seconds the emulator may spend on the whole gate where there is no
            GPU.
        max_examples: Hypothesis examples for each property of the gate.
    """

    cache_dir: Path = Path(platformdirs.user_cache_dir("l2tune"))
    disable: bool = False
    native: str = "auto"
    policy: str = "fallback"
    compile_timeout_s: float = 120.0
    compile_memory_mb: int = 8192
    launch_timeout_s: float = 2.0
    worker_start_timeout_s: float = 120.0
    emulator_budget_s: float = 10.0
    emulated_gate_budget_s: float = 60.0
    max_examples: int = 40


def _parse(name: str, text: str, kind: type) -> object:
    if text not in _CHOICES.get(name, (text,)):
        wanted = " or ".join(_CHOICES[name])
        raise ValueError(f"{name}: found {text!r}, needed {wanted}; correct or unset it")
    try:
        if kind is bool:
            lowered = text.strip().lower()
            if lowered not in _TRUE | _FALSE:
                raise ValueError
            return lowered in _TRUE
        return kind(text)
    except ValueError:
        raise ValueError(
            f"{name}: found {text!r}, needed a {kind.__name__}; correct or unset it"
        ) from None


def _read() -> Settings:
    found = {}
    for field in dataclasses.fields(Settings):
        name = f"L2TUNE_{field.name.upper()}"
        if name in os.environ:
            kind = Path if field.name == "cache_dir" else type(field.default)
            found[field.name] = _parse(name, os.environ[name], kind)
    return Settings(**found)  # type: ignore[arg-type]  # _parse returns each field's own type


_current: Settings | None = None


def current() -> Settings:
    """Return the settings in force; the environment is read at the first call only."""
    global _current
    if _current is None:
        _current = _read()
    return _current


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Replace some settings inside a `with` block."""
    global _current
    before = current()
    _current = dataclasses.replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield _current
    finally:
        _current = before
