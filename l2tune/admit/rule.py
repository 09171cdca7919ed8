"""When a proven kernel takes the place of `torch.matmul`: a pure function of its timing."""

from l2tune.spec.outcome import Admitted, Declined, Timing
from l2tune.spec.roofline import physical_minimum_us


def admit(timing: Timing) -> Admitted | Declined:
    """Decide for graphs and for eager calls apart.

    Inside graphs GPU time alone counts: the kernel must win by more than both intervals. An eager
    call pays for the host too, so there the kernel's whole call must also not take longer than the
    upper end of `torch.matmul`'s interval. A time below the physical minimum is a fault of the
    measurement, whatever else it says.

    Args:
        timing: With `torch` among its baselines.

    Returns:
        `Admitted` if the kernel wins inside graphs, else `Declined`, with the numbers.
    """
    torch_gpu, torch_host = timing.baselines["torch"], timing.torch_host
    minimum_us = physical_minimum_us(timing.verified.key)
    if timing.gpu.us < minimum_us:
        return Declined(
            timing=timing,
            reason=f"{timing.gpu.us:.3f} us is below the {minimum_us:.3f} us that the GPU needs;"
            " the measurement is wrong",
        )
    if not timing.gpu.beats(torch_gpu):
        return Declined(
            timing=timing,
            reason=f"its {_shown(timing.gpu.lo, timing.gpu.us, timing.gpu.hi)} on the GPU is not"
            f" below torch.matmul's {_shown(torch_gpu.lo, torch_gpu.us, torch_gpu.hi)} by more than"
            " both intervals",
        )
    host_not_worse = timing.host.us <= torch_host.hi and not torch_host.beats(timing.host)
    return Admitted(timing=timing, eager="kernel" if host_not_worse else "torch", graph="kernel")


def _shown(lo_us: float, us: float, hi_us: float) -> str:
    return f"{us:.3f} us ({lo_us:.3f} to {hi_us:.3f})"
