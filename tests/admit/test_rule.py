"""`torch.matmul` is replaced only where the kernel wins by more than the noise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import interval, timing

from l2tune.admit import admit
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Declined, Interval

KEY = GemmKey.dense(64, 64, 64, gpu=H200)
us = st.floats(0.01, 1e5)


@st.composite
def intervals(draw):
    lo, middle, hi = sorted(draw(st.lists(us, min_size=3, max_size=3)))
    return Interval(us=middle, lo=lo, hi=hi)


@given(intervals(), intervals(), intervals(), intervals())
def test_no_kernel_is_admitted_that_does_not_win_beyond_both_intervals(
    gpu, torch, host, host_torch
):
    decision = admit(
        timing(KEY, gpu=gpu, baselines={"torch": torch}, host=host, torch_host=host_torch)
    )
    assert isinstance(decision, Admitted) == (gpu.hi < torch.lo)
    if isinstance(decision, Admitted):
        assert decision.graph == "kernel"
        assert (decision.eager == "kernel") == (host.us <= host_torch.hi)


@pytest.mark.parametrize(
    ("host_us", "eager"), [(900, "kernel"), (1000, "kernel"), (1009, "kernel"), (1011, "torch")]
)
def test_a_call_that_costs_the_host_more_stays_torch_in_eager_code(host_us, eager):
    decision = admit(timing(KEY, host=interval(host_us), torch_host=interval(1000)))
    assert isinstance(decision, Admitted)
    assert (decision.graph, decision.eager) == ("kernel", eager)


def test_a_kernel_within_the_noise_is_declined_with_the_numbers():
    decision = admit(timing(KEY, gpu=interval(990.0), baselines={"torch": interval(1000.0)}))
    assert isinstance(decision, Declined)
    assert "990.000 us (980.100 to 999.900)" in decision.reason
    assert "1000.000 us (990.000 to 1010.000)" in decision.reason


def test_only_torch_decides_and_not_another_baseline():
    baselines = {"torch": interval(1200), "cublaslt": interval(500)}
    assert isinstance(admit(timing(KEY, baselines=baselines)), Admitted)


def test_a_time_beyond_physics_is_never_admitted():
    key = GemmKey.dense(4096, 4096, 4096, gpu=H200)
    decision = admit(timing(key, gpu=interval(1.0)))
    assert isinstance(decision, Declined)
    assert "below the 138.897 us" in decision.reason
    assert isinstance(admit(timing(key, gpu=interval(180.0))), Admitted)


@pytest.mark.parametrize("field", ["gpu", "host", "torch_host", "baselines"])
def test_a_time_that_is_no_number_never_favours_the_kernel(field):
    nothing = Interval(us=float("nan"), lo=float("nan"), hi=float("nan"))
    decision = admit(
        timing(KEY, **{field: {"torch": nothing} if field == "baselines" else nothing})
    )
    assert isinstance(decision, Declined) or decision.eager == "torch"
