"""What the clock times is what it says; times themselves only have to be of the right unit."""

from collections.abc import Callable

import pytest
import torch

from l2tune.measure import contestants, interval, operands
from l2tune.measure.clock import DeviceClock
from l2tune.measure.rounds import Rounds
from l2tune.runtime.reference import error_ratio
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey

pytestmark = pytest.mark.gpu


class Fixed:
    """Stands in for a random order."""

    def shuffle(self, _items: list[object]) -> None:
        """Leave the order."""


def timed_us(key: GemmKey, *, paired: bool) -> list[float]:
    sets = operands.sized(key, seed=1)
    rounds = Rounds(DeviceClock(key.flops, launches=sets.count), sets, paired=paired, rng=Fixed())
    rounds.enter(contestants.torch_matmul(sets))
    rounds.warm_up()
    for _ in range(15):
        rounds.run_one()
    return rounds.samples_us("torch")


def externally_timed_us(key: GemmKey) -> float:
    """Time single calls by events, the L2 flushed after the operands exist."""
    sets = operands.sized(key, seed=2)
    flush = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    times_us = []
    for index in range(60):
        a, b, c = (views[index % sets.count] for views in (sets.a, sets.b, sets.c))
        flush.random_(0, 255)  # reaches every line; long enough for the host to queue what follows
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.matmul(a, b, out=c)
        end.record()
        torch.cuda.synchronize()
        times_us.append(1000.0 * start.elapsed_time(end))
    return interval(times_us[20:]).us


@pytest.mark.parametrize(("m", "n", "k"), [(16, 8192, 8192), (4096, 4096, 4096)])
def test_the_clock_agrees_with_an_external_one(gpu: Gpu, m: int, n: int, k: int):
    key = GemmKey.dense(m, n, k, gpu=gpu)
    ours_us, theirs_us = interval(timed_us(key, paired=False)).us, externally_timed_us(key)
    assert 0.5 < ours_us / theirs_us < 2, f"{ours_us:.1f} us, {theirs_us:.1f} us"


def test_an_interval_is_narrow_around_its_median(gpu: Gpu):
    found = interval(timed_us(GemmKey.dense(512, 512, 2048, gpu=gpu), paired=False))
    assert 0 < found.lo <= found.us <= found.hi


def test_timing_behind_a_spacer_agrees_with_timing_back_to_back(gpu: Gpu):
    key = GemmKey.dense(1024, 1024, 4096, gpu=gpu)
    paired_us = interval(timed_us(key, paired=True)).us
    chained_us = interval(timed_us(key, paired=False)).us
    assert 0.5 < paired_us / chained_us < 2, f"{paired_us:.1f} us, {chained_us:.1f} us"


def test_timed_operands_are_normal_and_more_than_the_l2(gpu: Gpu):
    sets = operands.sized(GemmKey.dense(1024, 1024, 1024, gpu=gpu), seed=3)
    for values in (sets.a[-1], sets.b[-1]):
        assert (values != 0).float().mean().item() >= 0.99
        assert 0.45 < (values > 0).float().mean().item() < 0.55
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    assert sets.count * operands.set_bytes(sets.key) >= 3 * l2_bytes
    assert sets.unchanged()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("fields", [{}, {"batch": 3}, {"batch": 3, "shared": "b"}, {"align": 2}])
def test_a_replay_writes_every_output(gpu: Gpu, layout: str, fields: dict[str, object]):
    key = GemmKey.model_validate(
        {"m": 72, "n": 64, "k": 40, "layout": layout, "gpu": gpu, **fields}
    )
    sets = operands.build(key, count=4, seed=4)
    rounds = Rounds(DeviceClock(key.flops, launches=4), sets, paired=False, rng=Fixed())
    rounds.enter(contestants.torch_full_precision(sets))
    rounds.replay_again("torch_full_precision")
    for a, b, c in zip(sets.a, sets.b, sets.c, strict=True):
        assert error_ratio(a, b, c).item() <= 1.0


def test_measure_times_a_seed_beside_every_baseline(
    bench: object, compiled: Callable[..., object], gpu: Gpu
):
    pytest.importorskip("nvmath")
    from l2tune import measure, pipeline
    from l2tune.spec.outcome import Timing, Verified

    assert isinstance(bench, pipeline.Bench)
    key = GemmKey.dense(512, 512, 1024, gpu=gpu)
    verified = Verified(key=key, compiled=compiled("sm80/mma_multistage", key), checks=())
    (outcome,) = measure.measure(
        bench.worker, key, [verified], cache_dir=bench.cache_dir, through=ThroughTorch,
        baselines="all", triton=None, budget_s=1.0, seed=5,
    )  # fmt: skip
    assert isinstance(outcome, Timing), outcome
    names = {"torch", "torch_full_precision", "cublas", "cublaslt_heuristic", "cublaslt_autotuned"}
    assert names <= set(outcome.baselines)
    assert outcome.missing_baselines == ("triton",)
    assert outcome.samples >= 15
    ranked = measure.quick_rank(
        bench.worker, key, [verified, verified], cache_dir=bench.cache_dir, budget_s=5.0
    )
    assert all(us < 3 * outcome.gpu.us for us in ranked.times_us), ranked
    assert 0.3 < ranked.torch_us / outcome.baselines["torch"].us < 3, ranked


class ThroughTorch:
    """Stand in for dispatch."""

    host_path = "python"

    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, a: torch.Tensor, b: torch.Tensor, /) -> torch.Tensor:
        return torch.matmul(a, b)
