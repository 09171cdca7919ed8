"""Builds and loads the native hot path, a C++ extension of torch; nothing here runs in a call.

The library lies in the cache directory under a name that says for which torch, Python and source it
was built. It appears there whole or not at all, so a build that is killed stands in no one's way.
"""

import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from l2tune import settings
from l2tune.dispatch import detached
from l2tune.dispatch.tracing import trace_instead
from l2tune.errors import CacheError, InfrastructureError
from l2tune.store.files import private_directory, write_whole

_HERE = Path(__file__).parent
_SOURCES = (_HERE / "native.cpp", _HERE / "launch.h")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-g0")
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")
_DIGEST_BYTES = 32
_ABANDONED_S = 1800.0
_LOG_CHARACTERS = 2000


Matmul = Callable[..., torch.Tensor]


class NativeWarning(UserWarning):
    """The native path is there but cannot be loaded; the Python path answers instead."""


class Native(Protocol):
    """The extension's functions; `native.cpp` says what they do."""

    def init(
        self, in_python: Callable[..., Any], in_torch: Callable[..., Any],
        make: Callable[..., Any], doc: str, device: str, driver_path: str, /,
    ) -> Any:  # fmt: skip
        """Make the native `matmul`."""

    def clear(self) -> None:
        """Forget all plans."""

    def served(self) -> int:
        """How many calls ran a kernel."""


loaded: Native | None = None
_building: subprocess.Popen[bytes] | None = None


def library_path() -> Path:
    """Where the library of this torch, Python and source is, or would be."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in _SOURCES:
        digest.update(source.read_bytes())
    tag = f"{torch.__version__}-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"
    return settings.current().cache_dir / "native" / tag / "l2tune_native.so"


def log_path() -> Path:
    """What the compiler said when it last failed; with it there, no call starts a build."""
    return library_path().with_name("failed.txt")


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, else the first of the usual names."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def build() -> Path:
    """Compile the library, also where it exists already.

    Raises:
        CacheError: If the cache directory cannot be written, or others may write to it.
        InfrastructureError: If there is no compiler, or it fails.
    """
    program, path = compiler(), library_path()
    if program is None:
        raise InfrastructureError("no C++ compiler found; install g++, or set CXX to one")
    _private(path)
    for old in path.parent.glob(".partial-*"):
        if time.time() - old.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as scratch:
        made = Path(scratch) / path.name
        command = _command(program, made)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False,
        )  # fmt: skip
        if done.returncode or not made.is_file():
            said = f"{shlex.join(command)}\n{done.stdout[-_LOG_CHARACTERS:]}"
            write_whole(log_path(), said.encode())
            raise InfrastructureError(f"the native path does not build: {done.stdout.strip()}")
        data = made.read_bytes()
        write_whole(path, data + hashlib.sha256(data).digest())
    log_path().unlink(missing_ok=True)
    return path


def _command(program: str, made: Path) -> list[str]:
    # What torch.utils.cpp_extension would say; it is not asked, since it needs setuptools.
    root = Path(torch.__file__).parent
    headers = root / "include"
    return [
        program, *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        "-isystem", str(headers), "-isystem", str(headers / "torch/csrc/api/include"),
        "-isystem", sysconfig.get_path("include"), str(_SOURCES[0]),
        f"-L{root / 'lib'}", *_LIBRARIES, "-o", str(made),
    ]  # fmt: skip


def _private(path: Path) -> None:
    """Make the library's folder; nobody else may write to it or to those above it."""
    for folder in (path.parents[2], path.parents[1], path.parent):
        private_directory(folder)


def serve(in_python: Matmul, make: Callable[..., Any]) -> Matmul | None:
    """The native `matmul`, where the library exists; at most once in a process.

    A library that is damaged, or that others may write to, ends in one warning and None.

    Args:
        in_python: The same function in Python; gets the rare cases, and is what is traced.
        make: Asked about each new problem: operands, result or None, their addresses or-ed. Returns
            a `NativePlan`, () for torch, or None for torch this once.
    """
    global loaded
    try:
        path = library_path()
        if settings.current().native == "off" or not path.is_file():
            return None
        _check(path)
        module = open_library(path)
        doc = f"matmul(a, b, *, out=None)\n--\n\n{inspect.getdoc(in_python)}"
        function: Matmul = module.init(
            in_python, torch.matmul, make, doc, "cuda", "libcuda.so.1"
        )  # fmt: skip
    except (CacheError, ImportError, OSError, RuntimeError) as error:
        advice = "matmul runs in Python; run `l2tune doctor --build`"
        warnings.warn(f"the native path: {error}; {advice}", NativeWarning, stacklevel=2)
        return None
    except ValueError:  # a variable that does not parse; who first asks for a setting tells
        return None
    trace_instead(function, in_python)
    loaded = module
    return function


def _check(path: Path) -> None:
    """Refuse what is not as it was written: loading half a library can kill the process."""
    _private(path)
    status, whole = path.stat(), path.read_bytes()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise CacheError(f"{path} is somebody else's, or can be written by others")
    if hashlib.sha256(whole[:-_DIGEST_BYTES]).digest() != whole[-_DIGEST_BYTES:]:
        raise CacheError(f"{path} is damaged")


def refusal() -> str:
    """Why the library would not be loaded; empty where it would."""
    try:
        _check(library_path())
    except (CacheError, OSError) as error:
        return str(error)
    return ""


def open_library(path: Path) -> Native:
    """Load a library that is known to be whole."""
    loader = importlib.machinery.ExtensionFileLoader("l2tune_native", str(path))
    spec = importlib.util.spec_from_loader("l2tune_native", loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return cast(Native, module)


def build_if_missing() -> None:
    """Build the library now where it is of use and missing; a failure is one warning.

    Not where a build failed before: `l2tune doctor` tells, and builds again if asked.
    """
    if settings.current().native == "off" or compiler() is None:
        return
    try:
        if not library_path().exists() and not log_path().exists():
            build()
    except (CacheError, InfrastructureError, OSError) as error:
        warnings.warn(f"{error}; matmul runs in Python", NativeWarning, stacklevel=2)


def build_in_background() -> None:
    """Start one build in another process, where it is of use; never waits and never complains.

    Not where a build failed before (`l2tune doctor` tells), or seems to be under way.
    """
    global _building
    if loaded is not None or _building is not None or settings.current().native == "off":
        return
    path = library_path()
    try:
        if path.exists() or log_path().exists() or compiler() is None:
            return
        if any(time.time() - x.stat().st_mtime < _ABANDONED_S for x in path.parent.glob(".p*")):
            return
        program = "import os; os.nice(19); from l2tune.dispatch import native; native.build()"
        _building = detached.start(["-c", program], settings.current().cache_dir)
    except OSError:
        return
