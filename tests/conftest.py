"""What every test shares: Hypothesis profiles, which tests can run here, a private cache."""

import fcntl
import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import l2tune.settings

settings.register_profile("fast", max_examples=30, deadline=None)
settings.register_profile(
    "deep", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
_NOT_RUN = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="run `deep` tests, and 1000 examples each")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_NOT_RUN] = {}
    settings.load_profile("deep" if config.getoption("--deep") else "fast")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here; the only place that decides it."""
    reasons = {} if config.getoption("--deep") else {"deep": "deep tests not run: no --deep"}
    if any(item.get_closest_marker("gpu") for item in items) and not _gpu_is_here():
        reasons["gpu"] = "GPU tests not run: no GPU here"
    for program in ("nvcc", "cc"):
        if shutil.which(program) is None:
            reasons[program] = f"{program} tests not run: no {program} here"
    left_out = {
        item: reason
        for item in items
        for marker, reason in reasons.items()
        if item.get_closest_marker(marker)
    }
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    counts = {reason: list(left_out.values()).count(reason) for reason in left_out.values()}
    config.stash[_NOT_RUN] = counts
    if hasattr(config, "workeroutput"):  # an xdist worker: each collects everything
        config.workeroutput["not_run"] = counts


def _gpu_is_here() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    node.config.stash[_NOT_RUN] = getattr(node, "workeroutput", {}).get("not_run", {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in terminalreporter.config.stash[_NOT_RUN].items():
        terminalreporter.write_line(f"{count} {reason}")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Iterator[Path]:
    """An empty directory of mode 0700 that is the cache while the test runs."""
    tmp_path.chmod(0o700)
    with l2tune.settings.override(cache_dir=tmp_path):
        yield tmp_path


@pytest.fixture(scope="session")
def native_cache(pytestconfig: pytest.Config) -> Path:
    """A cache directory with the native library in it; built once for all workers and runs."""
    from l2tune.dispatch import native

    if native.compiler() is None:
        pytest.skip("no C++ compiler here")
    root = pytestconfig.rootpath / ".pytest_cache" / "native"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock, l2tune.settings.override(cache_dir=root):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not native.library_path().is_file():
            native.build()
    return root


@pytest.fixture(scope="session")
def native_path(native_cache: Path) -> tuple[Any, Callable[..., Any]]:
    """The library, loaded, and its `matmul`."""
    from l2tune.dispatch import native

    python = importlib.import_module("l2tune.dispatch.matmul")
    before = native.loaded
    with l2tune.settings.override(cache_dir=native_cache, native="auto"):
        function = native.serve(python.matmul, python._make_native)
    assert function is not None
    library, native.loaded = native.loaded, before
    return library, function


@pytest.fixture
def allow_half_sums() -> Iterator[Callable[[bool], None]]:
    """Sets torch's flag that allows sums in float16, which is off again afterwards."""
    import torch

    def allow(allowed: bool) -> None:
        torch.backends.cuda.matmul.allow_fp16_accumulation = allowed

    yield allow
    allow(False)


@pytest.fixture(params=["python", "native"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`l2tune.matmul` is the function of that path while the test runs."""
    from l2tune import dispatch
    from l2tune.dispatch import native

    python = importlib.import_module("l2tune.dispatch.matmul")
    library, function = None, python.matmul
    if request.param == "native":
        library, function = request.getfixturevalue("native_path")
    monkeypatch.setattr(native, "loaded", library)
    monkeypatch.setattr(python, "_served", function)
    monkeypatch.setattr(dispatch, "matmul", function)
    monkeypatch.setattr(l2tune, "matmul", function)
    return request.param
