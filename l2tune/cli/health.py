"""The checks behind `l2tune doctor`, each a function from the GPU found here to findings."""

import dataclasses
import importlib.metadata
import importlib.util
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from l2tune import compile, generate, settings  # noqa: A004
from l2tune.dispatch import native
from l2tune.errors import CacheError, CacheWarning, InfrastructureError
from l2tune.runtime.device import driver_version
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled
from l2tune.store import Artifacts, Registry, judge, waiting_keys
from l2tune.store.files import private_directory


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        state: `broken` is what stops this machine from doing what it is for.
        what: Its name.
        found: What is there.
        to_do: What to do about it, where something is to be done.
    """

    state: Literal["ok", "note", "broken"]
    what: str
    found: str
    to_do: str = ""


def _gpu(gpu: Gpu | None) -> list[Finding]:
    driver = driver_version()
    if gpu is None:
        advice = "none needed to compile; tuning and tuned calls need an NVIDIA GPU and its driver"
        return [Finding("note", "GPU", f"none (driver: {driver})", advice)]
    major, minor = gpu.capability
    found = f"{gpu.name}, compute capability {major}.{minor}, {gpu.sms} multiprocessors"
    fits = Finding("ok", "GPU", found)
    if gpu.arch is None:
        fits = Finding("note", "GPU", found, "l2tune has kernels for 8.x and 9.0; torch serves it")
    old = int(driver.partition(".")[0]) < 13 if driver != "none" else True
    advice = "needed CUDA 13.0 or later; update the driver" if old else ""
    return [fits, Finding("broken" if old else "ok", "driver", f"CUDA {driver}", advice)]


def _compilers(_: Gpu | None) -> list[Finding]:
    found = [
        _package("nvidia-cuda-nvrtc", "compiling kernels needs it", broken=True),
        _package("triton", "Triton kernels are left out without it"),
    ]
    try:
        text = compile.flatten(generate.seed_text("sm80/naive"), generate.include_dir())
        source = KernelSource(text=text, arch="sm_80")
        with tempfile.TemporaryDirectory() as scratch:
            result = compile.compile_kernel(source, Artifacts(Path(scratch)))
    except InfrastructureError as error:
        return [*found, Finding("broken", "compiling sm80/naive", "failed", str(error))]
    if isinstance(result, Compiled):
        found.append(Finding("ok", "compiling sm80/naive", "works, headers included"))
    else:
        advice = f"reinstall the nvidia-cuda packages: {result.log.strip()[-300:]}"
        found.append(Finding("broken", "compiling sm80/naive", result.kind, advice))
    return [*found, _nvcc()]


def _nvcc() -> Finding:
    path = shutil.which("nvcc")
    if path is None:
        return Finding("note", "nvcc", "none", "only building exported files needs it")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    release = [line for line in said.stdout.splitlines() if "release" in line]
    return Finding("ok", "nvcc", release[0].strip() if release else path)


def _libraries(gpu: Gpu | None) -> list[Finding]:
    extra = "cu12" if _torch_cuda().startswith("12") else "cu13"
    cupy = next((p for p in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if _version(p)), "cupy")
    found = [_package("torch", "everything needs it", broken=True)]
    if gpu is not None:
        advice = f"running tuned kernels needs it (pip install 'l2tune[{extra}]')"
        found.append(_package(cupy, advice, broken=True))
    found += [
        _package("hypothesis", "tuning needs it (pip install 'l2tune[tune]')"),
        _package("nvmath-python", "cuBLAS baselines need it (pip install 'l2tune[tune]')"),
        _package("nvidia-ml-py", "clock and power are not recorded without it"),
    ]
    return found


def _torch_cuda() -> str:
    import torch  # slow, and the other commands that show the cache do not need it

    return str(torch.version.cuda)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(package: str, advice: str, *, broken: bool = False) -> Finding:
    version = _version(package)
    if version is not None:
        return Finding("ok", package, version)
    return Finding("broken" if broken else "note", package, "not installed", advice)


def _settings(_: Gpu | None) -> list[Finding]:
    if not settings.current().disable:
        return []
    advice = "l2tune.matmul is torch.matmul; unset L2TUNE_DISABLE to use tuned kernels"
    return [Finding("note", "L2TUNE_DISABLE", "set", advice)]


def _cache(gpu: Gpu | None) -> list[Finding]:
    root = settings.current().cache_dir
    try:
        private_directory(root)
    except CacheError as error:
        return [Finding("broken", "cache directory", str(root), str(error))]
    found = [Finding("ok", "cache directory", str(root))]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        registry, artifacts = Registry(root), Artifacts(root)
        records = list(registry.records())
    bad = [str(warning.message) for warning in caught]
    found += [Finding("broken", "cache database", "damaged", sentence) for sentence in bad]
    found.append(Finding("ok", "records", f"{len(records)} readable"))
    lost = [
        record.key.label
        for record in records
        if any(artifacts.get(d) is None for d in record.outcome.timing.verified.compiled.cubins)
    ]
    if lost:
        advice = f"torch.matmul serves them; tune again with --force: {', '.join(lost[:5])}"
        found.append(Finding("broken", "cubins", f"{len(lost)} records lack theirs", advice))
    if gpu is not None:
        verdicts = [judge(record, gpu, tools()) for record in records]
        stale, other = verdicts.count("recheck"), verdicts.count("ignore")
        advice = "made with other versions; run `l2tune tune` again for them" if stale else ""
        found.append(Finding("note" if stale else "ok", "stale records", str(stale), advice))
        found.append(Finding("ok", "records of other GPUs", str(other)))
    return [*found, _waiting(root), _missed(registry)]


def _missed(registry: Registry) -> Finding:
    count, served = len(registry.wanted()), len(registry.served_by_nearest())
    found = f"{count}, of which {served} served by a kernel tuned for another" if served else count
    advice = "`l2tune show --wanted` lists what calls did not find; tune them" if count else ""
    return Finding("ok", "products not found", str(found), advice)


def _waiting(root: Path) -> Finding:
    what = "keys of packs that wait"
    try:
        count = len(waiting_keys(root))
    except CacheError as error:
        return Finding("broken", what, "damaged", str(error))
    advice = "a call that could use one has it re-checked; `l2tune pack install` does all"
    return Finding("note", what, str(count), advice) if count else Finding("ok", what, "0")


def _native(_: Gpu | None) -> list[Finding]:
    what = "native path"
    if settings.current().native == "off":
        return [Finding("note", what, "off", "unset L2TUNE_NATIVE to spend less host time a call")]
    if native.loaded is not None:
        return [Finding("ok", what, f"in use: {native.library_path()}")]
    if native.library_path().exists():
        advice = "run `l2tune doctor --build`" if native.refusal() else ""
        found = native.refusal() or f"built: {native.library_path()}"
        return [Finding("note" if advice else "ok", what, found, advice)]
    if native.compiler() is None:
        advice = "matmul runs in Python, at more host time a call; install g++, or set CXX"
        return [Finding("note", what, "no C++ compiler", advice)]
    advice = "l2tune.matmul runs in Python, at more host time a call; run `l2tune doctor --build`"
    if native.log_path().exists():
        return [Finding("note", what, f"the build failed, see {native.log_path()}", advice)]
    return [Finding("note", what, "not built", advice)]


CHECKS: tuple[Callable[[Gpu | None], list[Finding]], ...] = (
    _gpu, _compilers, _libraries, _settings, _cache, _native,
)  # fmt: skip
