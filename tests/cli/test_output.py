"""How commands write."""

import pytest

from l2tune.cli.output import StopWatch


def test_a_stop_watch_adds_up_each_kind_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    shown: list[str] = []
    watch = StopWatch(shown.append)
    lines = ["64x64x64: compiling: 3 candidates", "64x64x64: gate: a", "64x64x64: gate: b"]
    for line in lines:
        watch(line)
    assert watch.told() == "10.0 s: compiling 2.0, gate 7.0"
    assert shown == lines
