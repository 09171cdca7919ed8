"""The worker protocol, without a GPU: whatever happens in a worker, the caller goes on."""

import math
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from l2tune.errors import InfrastructureError
from l2tune.runtime.worker import (
    NO_GPU,
    Worker,
    WorkerDied,
    report,
    retire_after_this_call,
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(device=NO_GPU) as started:
        yield started


def children() -> set[int]:
    """Processes that this one started and that still exist, zombies too."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(status.parent.name))
    return found


def test_the_result_comes_back(worker):
    assert worker.call(operator.add, 20, 22, timeout_s=60) == 42


def test_calls_share_a_process_until_it_is_renewed(worker):
    first = worker.call(os.getpid, timeout_s=60)
    assert worker.call(os.getpid, timeout_s=60) == first != os.getpid()
    worker.renew()
    assert worker.call(os.getpid, timeout_s=60) != first


def test_an_exception_is_infrastructure_and_the_process_lives(worker):
    pid = worker.call(os.getpid, timeout_s=60)
    with pytest.raises(InfrastructureError, match=r"math:sqrt failed.*\n(.*\n)*ValueError"):
        worker.call(math.sqrt, -1, timeout_s=60)
    assert worker.call(os.getpid, timeout_s=60) == pid


def test_a_result_that_cannot_travel_is_infrastructure(worker):
    with pytest.raises(InfrastructureError, match="pickle"):
        worker.call(globals, timeout_s=60)
    assert worker.call(operator.add, 1, 1, timeout_s=60) == 2


def test_progress_arrives_before_the_result(worker):
    seen: list[object] = []
    assert worker.call(report, "half way", timeout_s=60, progress=seen.append) is None
    assert seen == ["half way"]


def test_a_death_is_reported_and_the_next_call_runs_in_a_spare(worker):
    before = worker.call(os.getpid, timeout_s=60)
    with pytest.raises(WorkerDied, match="status 7") as death:
        worker.call(os._exit, 7, timeout_s=60)
    assert not death.value.timed_out
    assert worker.call(os.getpid, timeout_s=60) != before


def test_a_hang_ends_within_its_limit(worker):
    worker.call(os.getpid, timeout_s=60)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="time:sleep: no answer in time") as death:
        worker.call(time.sleep, 600, timeout_s=0.5)
    assert death.value.timed_out
    assert time.monotonic() - started < 3.0
    assert worker.call(operator.add, 1, 1, timeout_s=60) == 2


def test_a_process_killed_between_two_calls_is_replaced(worker):
    os.kill(worker.call(os.getpid, timeout_s=60), signal.SIGKILL)
    try:
        answer = worker.call(operator.add, 1, 1, timeout_s=60)
    except WorkerDied:  # the call was sent before the death was seen
        answer = worker.call(operator.add, 1, 1, timeout_s=60)
    assert answer == 2


def test_a_process_that_retires_still_answers(worker):
    pid = worker.call(os.getpid, timeout_s=60)
    assert worker.call(retire_after_this_call, RuntimeError("spent"), timeout_s=60) is None
    assert worker.call(os.getpid, timeout_s=60) != pid


def test_ten_deaths_leave_no_process_behind():
    before = children()
    with Worker(device=NO_GPU) as worker:
        for _ in range(10):
            with pytest.raises(WorkerDied):
                worker.call(os._exit, 1, timeout_s=60)
            assert len(children() - before) <= 2
        assert worker.generation == 10
    assert children() == before


def script(path: Path, call: str, after: str = "pass") -> Path:
    """A user's program with nothing behind `if __name__ == "__main__"`."""
    path.write_text(
        f"""
import operator, os, time
from l2tune.runtime.worker import NO_GPU, Worker
with Worker(device=NO_GPU, spares=0) as worker:
    print(worker.call({call}, timeout_s=60))
    {after}
"""
    )
    return path


def test_a_script_without_a_main_guard_works(tmp_path):
    program = script(tmp_path / "script.py", "operator.add, 20, 22")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["42"], done.stderr


def test_an_idle_worker_ends_when_its_parent_is_killed(tmp_path):
    program = script(tmp_path / "script.py", "os.getpid", after="time.sleep(600)")
    command = [sys.executable, "-u", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        commands = Path("/proc", parent.stdout.readline().strip(), "cmdline")
        parent.kill()
    deadline = time.monotonic() + 20
    while commands.exists() and commands.read_bytes():  # a zombie's is empty
        assert time.monotonic() < deadline, f"{commands.parent} outlived its parent"
        time.sleep(0.05)
