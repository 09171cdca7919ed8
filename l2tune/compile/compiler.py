"""Compiles a kernel file to cubins, in a child process with limits on time and memory.

NVRTC compiles CUDA and Triton's own compiler compiles Triton; neither needs a GPU or a driver.
A file that makes a compiler run away costs one child process.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from l2tune import settings
from l2tune.compile import inspect
from l2tune.compile.divisors import proven_divisors
from l2tune.errors import InfrastructureError
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled, CompileFailed, KernelResources, LaunchData
from l2tune.store.artifacts import Artifacts

_OPTIONS = ("-std=c++17", "--ptxas-options=-v", "--diag-suppress=177")
_CAPABILITY = {"sm_80": 80, "sm_90a": 90}


def compiler_version(source: KernelSource) -> str:
    """Name and version of what compiles `source`; part of a cubin's identity.

    Raises:
        InfrastructureError: If it is not installed.
    """
    package = "nvidia-cuda-nvrtc" if source.backend == "cuda" else "triton"
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        raise InfrastructureError(
            f"no {package} found; compiling kernels needs it (pip install 'l2tune[tune]'),"
            " dispatch does not"
        ) from None


def is_available(source: KernelSource) -> bool:
    """Whether the compiler of `source`'s backend is installed."""
    try:
        compiler_version(source)
    except InfrastructureError:
        return False
    return True


def compile_kernel(
    source: KernelSource, artifacts: Artifacts, *, options: tuple[str, ...] = ()
) -> Compiled | CompileFailed:
    """Compile `source`, or recall an earlier result of the same text, target and compiler.

    Args:
        source: A flattened kernel file.
        artifacts: Where cubins are kept.
        options: Further options of NVRTC, such as `-lineinfo`; Triton takes none. A kernel that is
            to be stored is compiled without.

    Raises:
        InfrastructureError: If the compiler is missing or cannot be started.
    """
    version = compiler_version(source)
    identity = " ".join((source.digest, version, *options))
    request = hashlib.sha256(identity.encode()).hexdigest()
    if (known := artifacts.recall(request)) is not None:
        return known
    if source.backend == "cuda":
        result = _compile_cuda(source, version, artifacts, options)
    else:
        result = _compile_triton(source, version, artifacts)
    if isinstance(result, Compiled):
        artifacts.remember(request, result)
    return result


def _compile_cuda(
    source: KernelSource, version: str, artifacts: Artifacts, more: tuple[str, ...]
) -> Compiled | CompileFailed:
    options = [
        f"-arch={source.arch}",
        *_OPTIONS,
        *more,
        *map(_nvrtc_flag, source.header.flags),
        *(f"-D{name}={value}" for name, value in source.defines.items()),
        *(f"-I{folder}" for folder in include_folders()),
    ]
    reply = _run_child("cuda_child.py", {"text": source.text, "options": options})
    if isinstance(reply, CompileFailed):
        return reply
    if "failed" in reply:
        return CompileFailed(kind=reply["failed"], log=_without_paths(reply["log"]))
    cubin = base64.b64decode(reply["cubin"])
    return Compiled(
        source=source,
        cubins=(artifacts.put(cubin),),
        ptx=(artifacts.put(reply["ptx"].encode()),),
        launches=tuple(LaunchData(kernel=launch.kernel) for launch in source.header.launch),
        resources=inspect.resources(reply["log"]),
        writable_globals=inspect.writable_globals(cubin, reply["ptx"]),
        compiler=version,
        log=_without_paths(reply["log"]),
    )


def _compile_triton(
    source: KernelSource, version: str, artifacts: Artifacts
) -> Compiled | CompileFailed:
    names = source.tunables
    request = {
        "text": source.text,
        "capability": _CAPABILITY[source.arch],
        "dtype": "f16" if source.dtype == "float16" else "bf16",
        "constexprs": {**source.defines},
        "divisible": proven_divisors(source.header.requires, {**names, **source.picks}),
        "launches": [
            {
                "kernel": launch.kernel,
                "args": list(launch.args),
                "num_warps": launch.num_warps(names),
                "num_stages": launch.num_stages(names),
                "pdl": source.is_dependent(launch),
            }
            for launch in source.header.launch
        ],
    }
    reply = _run_child("triton_child.py", request)
    if isinstance(reply, CompileFailed):
        return reply
    if not reply["ok"]:
        if reply["kind"] == "infrastructure":
            raise InfrastructureError(f"the Triton compiler failed: {reply['log']}")
        over = reply["kind"] == "memory_limit"
        return CompileFailed(kind="memory_limit" if over else "error", log=reply["log"])
    cubins = [base64.b64decode(launch["cubin_b64"]) for launch in reply["launches"]]
    ptx = [launch["ptx"] for launch in reply["launches"]]
    found: dict[str, KernelResources] = {}
    for launch in reply["launches"]:
        found |= inspect.resources(launch.get("log", ""))
    return Compiled(
        source=source,
        cubins=tuple(map(artifacts.put, cubins)),
        ptx=tuple(artifacts.put(text.encode()) for text in ptx),
        launches=tuple(
            LaunchData(
                kernel=launch["kernel"],
                block=(launch["block"], 1, 1),
                smem_bytes=launch["smem"],
                extra_pointers=launch["args_tail"],
            )
            for launch in reply["launches"]
        ),
        resources=found,
        writable_globals=tuple(
            name
            for cubin, text in zip(cubins, ptx, strict=True)
            for name in inspect.writable_globals(cubin, text)
        ),
        compiler=version,
    )


def _run_child(script: str, request: dict[str, Any]) -> dict[str, Any] | CompileFailed:
    """Run a compiler script; classify its death by exit status, never by message."""
    limits = settings.current()
    request |= {
        "path": [entry for entry in sys.path if entry],
        "memory_bytes": limits.compile_memory_mb << 20,
        "cpu_seconds": int(limits.compile_timeout_s),
    }
    with tempfile.TemporaryDirectory(prefix="l2tune-compile-") as scratch:
        try:
            child = run_in_group(
                [sys.executable, "-I", str(Path(__file__).with_name(script))],
                json.dumps(request).encode(),
                timeout_s=limits.compile_timeout_s,
                folder=scratch,
            )
        except subprocess.TimeoutExpired:
            return CompileFailed(
                kind="time_limit", log=f"took longer than {limits.compile_timeout_s} s"
            )
        except OSError as error:
            raise InfrastructureError(f"cannot start the compiler process: {error}") from error
    if child.returncode == 0:
        return dict(json.loads(child.stdout))
    if child.returncode == -signal.SIGXCPU:
        return CompileFailed(kind="time_limit", log=f"used {limits.compile_timeout_s} s of CPU")
    tail = child.stderr.decode(errors="replace")[-2000:]
    if child.returncode < 0:
        return CompileFailed(kind="crash", log=f"{signal.Signals(-child.returncode).name}: {tail}")
    raise InfrastructureError(f"the compiler process failed: {tail}")


def run_in_group(
    command: list[str], text: bytes, *, timeout_s: float, folder: str
) -> subprocess.CompletedProcess[bytes]:
    """Run `command` in `folder`, and end it with whatever it started (Triton runs ptxas).

    Raises:
        subprocess.TimeoutExpired: If it took longer than `timeout_s`.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": folder, "TRITON_CACHE_DIR": folder},
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            out, err = child.communicate(text, timeout=timeout_s)
        finally:  # a grandchild would hold the pipes open, and the group outlives its leader
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def include_folders() -> list[Path]:
    """Folders with CUDA's own headers, from the wheels beside the pinned NVRTC.

    Raises:
        InfrastructureError: If `cuda_fp16.h` is nowhere: this machine's fault, not a kernel's.
    """
    roots = [Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path if entry]
    found = [root for root in roots if (root / "cuda_fp16.h").is_file()]
    if not found:
        raise InfrastructureError(
            "no cuda_fp16.h found; compiling kernels needs it (pip install nvidia-cuda-runtime)"
        )
    return [*found, *(root / "cccl" for root in found)]


def _nvrtc_flag(flag: str) -> str:
    """NVRTC takes an optimisation level for its assembler only, where nvcc takes it plainly."""
    return f"--ptxas-options={flag}" if flag.startswith("-O") else flag


def _without_paths(log: str) -> str:
    """A log that does not depend on where the wheels are installed."""
    return re.sub(r"/\S*/(?=nvidia/cu13/)", "", log)
