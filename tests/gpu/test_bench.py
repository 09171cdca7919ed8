"""Calls at random gaps, and peers' kernels, on a GPU."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from l2tune import measure
from l2tune.pipeline import Bench
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Timing, Verified

pytestmark = pytest.mark.gpu

FILE = """
import torch
def returns(a, b): return torch.matmul(a, b)
def writes(a, b, c): torch.matmul(a, b, out=c)
def doubles(a, b): return torch.matmul(a, b) * 2
def elsewhere(a, b, c):
    with torch.cuda.stream(torch.cuda.default_stream()):
        c.fill_(0)
def syncs(a, b): torch.cuda.synchronize(); return torch.matmul(a, b)
def raises(a, b): raise ValueError("not this shape")
"""
C_FILE = "int refuses() { return 7; }\n"


@pytest.fixture
def key(gpu: Gpu) -> GemmKey:
    return GemmKey.dense(512, 512, 1024, gpu=gpu)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "peers.py"
    path.write_text(FILE)
    return path


def fault(bench: Bench, key: GemmKey, text: str) -> str | None:
    return measure.check_peer(bench.worker, key, measure.Peer.parse(text), seed=1)


def test_right_peers_are_right_and_wrong_ones_are_named(bench: Bench, key: GemmKey, file: Path):
    for text in ("x=torch:matmul", f"x={file}:returns", f"x={file}:writes"):
        assert fault(bench, key, text) is None, text
    assert "times its error bound" in (fault(bench, key, f"x={file}:doubles") or "")
    for name in ("elsewhere", "syncs", "raises"):
        assert fault(bench, key, f"x={file}:{name}") is not None, name
    assert fault(bench, key, "x=torch:matmul") is None, "after what failed"


@pytest.mark.cc
def test_a_c_function_s_status_is_told(bench: Bench, key: GemmKey, tmp_path: Path):
    (tmp_path / "x.c").write_text(C_FILE)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "x.so", tmp_path / "x.c"], check=True
    )
    found = fault(bench, key, f"x={tmp_path / 'x.so'}:refuses")
    assert found == "it cannot run: it returned 7"


class ThroughTorch:
    """Stands in for a kernel's route."""

    host_path = "python"

    def __init__(self, *_: object) -> None: ...

    def __call__(self, a, b):
        return a @ b


def test_a_peer_is_timed_beside_the_baselines(
    bench: Bench, compiled: Callable[..., object], key: GemmKey, file: Path
):
    pytest.importorskip("nvmath")
    verified = Verified(key=key, compiled=compiled("sm80/mma_multistage", key), checks=())
    peers = [measure.Peer.parse(f"{name}={file}:{name}") for name in ("returns", "writes")]
    (outcome,) = measure.measure(
        bench.worker, key, [verified], cache_dir=bench.cache_dir, through=ThroughTorch,
        baselines="all", triton=None, budget_s=1.0, seed=5, peers=peers,
    )  # fmt: skip
    assert isinstance(outcome, Timing), outcome
    torch_us = outcome.baselines["torch"].us
    for name in ("peer_returns", "peer_writes"):
        assert 0.7 < outcome.baselines[name].us / torch_us < 1.4, outcome.baselines


def test_calls_at_random_gaps_take_about_as_long_as_back_to_back(
    bench: Bench, compiled: Callable[..., object], gpu: Gpu, file: Path
):
    pytest.importorskip("nvmath")
    key = GemmKey.dense(4096, 4096, 4096, gpu=gpu)
    verified = Verified(key=key, compiled=compiled("sm80/mma_multistage", key), checks=())
    (outcome,) = measure.measure(
        bench.worker, key, [verified], cache_dir=bench.cache_dir, through=ThroughTorch,
        baselines="all", triton=None, budget_s=2.0, seed=5, gap_us=500.0,
        peers=[measure.Peer.parse(f"them={file}:returns")],
    )  # fmt: skip
    assert isinstance(outcome, Timing), outcome
    found = outcome.server
    assert set(found) == {"kernel", "torch", "cublaslt_autotuned", "peer_them"}
    assert 0.6 < found["torch"].us / outcome.baselines["torch"].us < 1.8, found
    assert 0.6 < found["kernel"].us / outcome.gpu.us < 1.8, found
    assert 0.7 < found["peer_them"].us / found["torch"].us < 1.4, found
