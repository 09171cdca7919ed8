"""A process of its own for everything a candidate kernel could break.

The parent sends a function's name and arguments over a pipe and gets its result, its progress, or
its exception back. A kernel that faults or hangs ruins this process's CUDA context, so the worker
answers, exits, and the parent goes on with a spare that already has a live context.
"""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from l2tune import settings
from l2tune.errors import InfrastructureError

NO_GPU = -1
_dying_of: list[BaseException] = []


def retire_after_this_call(death: BaseException) -> None:
    """Called inside a worker whose CUDA context is no longer usable.

    The exception's frames hold the modules and buffers that a hung kernel uses; they are kept until
    the process exits, because to free them would wait for the kernel.
    """
    _dying_of.append(death)


class WorkerDied(Exception):  # noqa: N818  # says what happened, not what to raise
    """The worker ended, or was ended, in the middle of a call.

    Attributes:
        timed_out: Whether it was ended for taking too long.
    """

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class _Process:
    """One worker process; `ready` once it has a CUDA context."""

    def __init__(self, device: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        if device == NO_GPU:  # as many of them as cores; each with as many threads would only wait
            environment["OMP_NUM_THREADS"] = "1"
        self._child = subprocess.Popen(
            [sys.executable, "-m", "l2tune.runtime.worker", str(theirs.fileno()), str(device)],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self.pipe = Connection(ours.detach())
        self.ready = False

    def receive(self, deadline: float, what: str) -> Any:
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            self.kill()
            raise WorkerDied(f"{what}: no answer in time", timed_out=True)
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.kill()
            raise WorkerDied(
                f"{what}: worker ended with status {self._child.returncode}", timed_out=False
            ) from None

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self.pipe.close()

    @property
    def alive(self) -> bool:
        return not self.pipe.closed and self._child.poll() is None


class Worker:
    """A worker process for one GPU, replaced by a waiting spare whenever it dies.

    Use as a context manager; leaving it ends the processes.

    Attributes:
        device: Index of the GPU, or `NO_GPU`.
        generation: How many processes have been current so far.
    """

    def __init__(self, *, device: int = 0, spares: int = 1) -> None:
        """Start the process and its spares.

        Args:
            device: Index of the GPU, or `NO_GPU` for work that needs none.
            spares: Processes that wait with a live context, so that a fault costs under a second.
        """
        self.device = device
        self._waiting = [_Process(device) for _ in range(spares + 1)]
        self._current: _Process | None = None
        self.generation = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        for process in [*self._waiting, *([self._current] if self._current else [])]:
            if process.alive:
                process.kill()
        self._waiting, self._current = [], None

    def renew(self) -> None:
        """Go on in a fresh process: what follows must not share a context with what came before."""
        if self._current is not None and self._current.alive:
            self._current.kill()
        self._current = None

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        progress: Callable[[Any], None] | None = None,
    ) -> Any:
        """Run `function(*arguments)` in the worker and return its result.

        Args:
            function: A module-level function; it may call `report(value)` for progress.
            arguments: Anything that can be pickled.
            timeout_s: The process is killed when the call takes longer.
            progress: Receives what the function reports.

        Raises:
            WorkerDied: If the process ended, or was killed at the time limit.
            InfrastructureError: If the function raised, or no worker could be started.
        """
        process = self._ready_process()
        what = f"{function.__module__}:{function.__qualname__}"
        deadline = time.monotonic() + timeout_s
        try:
            process.pipe.send((function.__module__, function.__qualname__, arguments))
        except ConnectionError:
            process.kill()
            raise WorkerDied(f"{what}: worker ended before the call", timed_out=False) from None
        while True:
            kind, value = process.receive(deadline, what)
            if kind == "progress":
                if progress is not None:
                    progress(value)
            elif kind == "result":
                return value
            elif kind == "last result":
                process.kill()
                return value
            else:
                raise InfrastructureError(f"{what} failed in the worker:\n{value}")

    def _ready_process(self) -> _Process:
        if self._current is None or not self._current.alive:
            process = self._waiting.pop(0) if self._waiting else _Process(self.device)
            self._waiting.append(_Process(self.device))
            limit = time.monotonic() + settings.current().worker_start_timeout_s
            try:
                kind, value = process.receive(limit, "starting a worker")
            except WorkerDied as error:
                raise InfrastructureError(str(error)) from error
            if kind != "ready":
                raise InfrastructureError(f"a worker could not start:\n{value}")
            self._current = process
            self.generation += 1
        return self._current


_pipe: Connection | None = None


def report(value: Any) -> None:
    """Send progress to the parent; outside a worker it goes nowhere."""
    if _pipe is not None:
        _pipe.send(("progress", value))


def _serve(handle: int, device: int) -> None:
    global _pipe
    _pipe = Connection(handle)
    try:
        if device != NO_GPU:
            import torch

            torch.cuda.set_device(device)
            torch.empty(1, device="cuda")
        _pipe.send(("ready", None))
    except Exception:  # noqa: BLE001  # the worker's edge: whatever it was, the parent is told
        _pipe.send(("error", traceback.format_exc()))
        return
    while True:
        try:
            module, name, arguments = _pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result = getattr(importlib.import_module(module), name)(*arguments)
            _pipe.send(("last result" if _dying_of else "result", result))
        except Exception:  # noqa: BLE001  # the worker's edge
            _pipe.send(("error", traceback.format_exc()))
        if _dying_of:
            os._exit(0)  # a hung kernel would block an ordered exit
        if device != NO_GPU:
            _free_memory()


def _free_memory() -> None:
    """Give back what the call has left in torch's cache: other workers share the GPU."""
    import torch

    with contextlib.suppress(torch.AcceleratorError):  # a broken context; the next call will tell
        torch.cuda.empty_cache()


if __name__ == "__main__":
    from l2tune.runtime import worker  # this module under its own name, so that its state is shared

    worker._serve(int(sys.argv[1]), int(sys.argv[2]))
