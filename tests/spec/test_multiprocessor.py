"""What fits on a multiprocessor, and that its rates agree with the data sheet's."""

import pytest
import seeds

from l2tune.spec.geometry import LaunchGeometry, launches
from l2tune.spec.gpu import A100, H200
from l2tune.spec.multiprocessor import MULTIPROCESSORS, resident_blocks, warps_of
from l2tune.spec.outcome import KernelResources
from l2tune.spec.roofline import PEAKS


@pytest.mark.parametrize("gpu", [H200, A100])
def test_all_multiprocessors_together_make_the_data_sheet_s_rate(gpu):
    peak, sm = PEAKS[gpu.name], MULTIPROCESSORS[gpu.capability]
    tflops = gpu.sms * sm.tensor_flops * peak.clock_mhz * 1e-6
    assert tflops == pytest.approx(peak.tflops, rel=0.001)


def launch(threads: int, smem_bytes: int) -> LaunchGeometry:
    record = seeds.hopper()
    (found,) = launches(record.verified.compiled, record.key.problem(), H200)
    changes = {"block": (threads, 1, 1), "smem_bytes": smem_bytes}
    return LaunchGeometry(**{**vars(found), **changes})


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks"),
    [
        (256, 32, 0, 8),  # 2048 threads
        (32, 32, 0, 32),  # 32 blocks
        (128, 168, 0, 3),  # 65536 registers
        (128, 32, 64 << 10, 3),  # 228 KB, of which each block costs 1 more
        (384, 168, 227 << 10, 1),
    ],
)
def test_what_runs_out_first_limits_the_blocks(threads, registers, smem_bytes, blocks):
    used = KernelResources(registers=registers, smem_static_bytes=0, spill_bytes=0, stack_bytes=0)
    assert resident_blocks(used, launch(threads, smem_bytes), H200) == blocks
    assert warps_of(launch(threads, smem_bytes)) == threads // 32
