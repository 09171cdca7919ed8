"""Compiles one CUDA text to a cubin with NVRTC. Run as a script in a process of its own.

Reads one JSON request on standard input and writes one JSON reply on standard output. It imports
nothing of l2tune, limits its own memory and time first, and needs neither a GPU nor a driver.
"""

import base64
import json
import resource
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Serve one request."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    memory, seconds = request["memory_bytes"], request["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(
        _compile(request["text"], [option.encode() for option in request["options"]]), sys.stdout
    )


def _compile(text: str, options: list[bytes]) -> dict[str, object]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    reply: dict[str, object] = {
        "log": _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        .decode(errors="replace")
        .rstrip("\0"),
        "version": f"{major}.{minor}",
    }
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        cubin = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        reply["cubin"] = base64.b64encode(cubin).decode()
        reply["ptx"] = (
            _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode().rstrip("\0")
        )
    else:
        # The front end calls a failed allocation a compile error, so the peak decides.
        out_of_memory = status == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        out_of_memory |= _peak_address_space_bytes() > 0.9 * limit_bytes
        reply["failed"] = "memory_limit" if out_of_memory else "error"
    return reply


def _peak_address_space_bytes() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmPeak"))


def _fetch(get_size: Callable[..., Any], get: Callable[..., Any], program: Any) -> bytes:
    _, size = get_size(program)
    # NVRTC writes into the buffer. CPython shares all bytes objects of one byte, so it is longer.
    buffer = bytes(int(size) + 1)
    get(program, buffer)
    return buffer[: int(size)]


if __name__ == "__main__":
    main()
