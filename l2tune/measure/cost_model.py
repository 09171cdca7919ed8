"""How long a kernel may take on a GPU that is not here: a model, never a measurement.

docs/measuring.md describes it. Its rates are data-sheet figures and published ones; nothing was
fitted to a kernel of ours. What it returns is stored as an estimate and never beside a time.
"""

import dataclasses
from collections.abc import Mapping

from l2tune.errors import UnsupportedProblemError
from l2tune.measure.work import ANY_SMS, Work
from l2tune.spec import geometry
from l2tune.spec.expr import cdiv
from l2tune.spec.geometry import LaunchGeometry
from l2tune.spec.gpu import Gpu
from l2tune.spec.key import GemmKey
from l2tune.spec.multiprocessor import (
    L2_BYTES,
    MULTIPROCESSORS,
    SCHEDULERS,
    SHARED_BYTES,
    Multiprocessor,
    resident_blocks,
    warps_of,
)
from l2tune.spec.outcome import Compiled
from l2tune.spec.roofline import LAUNCH_US, Peak, sustained

_WARP = 32
_LATENCIES = 2
"""Of a wave of blocks: its first operands come, its last results go."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What the model says of one kernel and one key.

    Attributes:
        us: Microseconds: launch and fill, and of each launch the largest of its other terms.
        terms_us: Each term, summed over the launches.
    """

    us: float
    terms_us: dict[str, float]


def estimate(compiled: Compiled, key: GemmKey, work: Mapping[int, Work]) -> Estimate:
    """Model a kernel's time for a key.

    Args:
        compiled: The kernel.
        key: The product, and the GPU.
        work: What each launch executes, by its position in the contract.

    Returns:
        The estimate; never below `floor_us(key)`.

    Raises:
        UnsupportedProblemError: If the GPU's rates are not known.
    """
    peak, sm = sustained(key.gpu), MULTIPROCESSORS.get(key.gpu.capability)
    if peak is None or sm is None:
        raise UnsupportedProblemError(f"{key.gpu.name}: its rates are not known; name another GPU")
    launches = geometry.launches(compiled, key.problem(), key.gpu)
    unlimited = key.gpu.model_copy(update={"sms": ANY_SMS})
    shares = geometry.launches(compiled, key.problem(), unlimited)
    reader = max(launches, key=lambda launch: work[launch.index].l2_bytes)
    total_us, terms = 0.0, dict[str, float]()
    for launch, whole in zip(launches, shares, strict=True):
        busy = _busy_us(
            work[launch.index], launch, compiled, key.gpu, peak, sm, units=_blocks(whole)
        )
        busy["memory"] = key.bytes_moved / peak.tb_per_s * 1e-6 if launch is reader else 0.0
        waves = cdiv(_blocks(launch), key.gpu.sms * _resident(launch, compiled, key.gpu))
        idle = {
            "launch": 0.0 if launch.pdl and terms else LAUNCH_US,
            "fill": waves * _LATENCIES * sm.latency_clocks / peak.clock_mhz,
        }
        total_us += sum(idle.values()) + max(busy.values())
        for name, us in (idle | busy).items():
            terms[name] = terms.get(name, 0.0) + us
    return Estimate(total_us, terms)


def _busy_us(
    work: Work, launch: LaunchGeometry, compiled: Compiled, gpu: Gpu, peak: Peak,
    sm: Multiprocessor, *, units: int,
) -> dict[str, float]:  # fmt: skip
    """What overlaps: on the busiest multiprocessor, and in the L2.

    `units` are the pieces in which the work is handed out: blocks, or a persistent kernel's tiles.
    """
    share = cdiv(units, gpu.sms) / units
    present = min(_resident(launch, compiled, gpu), cdiv(_blocks(launch), gpu.sms))
    schedulers = min(SCHEDULERS, present * warps_of(launch))
    flops = work.mma_flops / sm.mma_share + work.wgmma_flops
    clocks = {
        "issue": work.issued * share / schedulers,
        "arithmetic": work.arithmetic * share * _WARP / sm.fp32_lanes * SCHEDULERS / schedulers,
        "shared": work.shared_bytes * share / SHARED_BYTES,
        "l2": work.l2_bytes / L2_BYTES,
    }
    tensor_us = flops * share * gpu.sms / (peak.tflops * 1e6) * SCHEDULERS / schedulers
    return {"tensor": tensor_us, **{name: n / peak.clock_mhz for name, n in clocks.items()}}


def _resident(launch: LaunchGeometry, compiled: Compiled, gpu: Gpu) -> int:
    return resident_blocks(compiled.resources[launch.kernel], launch, gpu)


def _blocks(launch: LaunchGeometry) -> int:
    x, y, z = launch.grid
    return x * y * z
