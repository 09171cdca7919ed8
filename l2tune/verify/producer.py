"""A slow producer that lets its dependents start at once and writes their operands late."""

import dataclasses
import functools
from typing import Any

import torch

from l2tune.verify.case import Case
from l2tune.verify.trial import Bench

_DELAY_CYCLES = 400_000  # about 0.2 ms: a kernel that does not wait has long read its operands
_BLOCKS = 16  # few, so that the dependents find room beside it
_SOURCE = r"""
extern "C" __global__ void produce(short* a, const short* new_a, long long count_a,
                                   short* b, const short* new_b, long long count_b,
                                   long long delay_cycles) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long start = clock64();
  while (clock64() - start < delay_cycles) {
  }
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = first; i < count_a; i += step) a[i] = new_a[i];
  for (long long i = first; i < count_b; i += step) b[i] = new_b[i];
}
"""


@functools.cache
def _produce() -> Any:
    """The producer; cupy compiles it, since it is ours and no candidate."""
    import cupy

    return cupy.RawKernel(_SOURCE, "produce", backend="nvrtc")


def run_behind_producer(bench: Bench, case: Case) -> float:
    """Launch the kernel directly behind the producer and return its error over the bound.

    Until the producer writes, a and b hold the values of another seed.
    """
    import cupy

    fresh = bench.build(case)
    operands = bench.build(dataclasses.replace(case, seed=case.seed + 1))
    bound = bench.bind(case)
    scratch = bench.workspace(bound, case)
    arguments: list[Any] = []
    for target, source in ((operands.a, fresh.a), (operands.b, fresh.b)):
        arguments += [target.buffer.data_ptr(), source.buffer.data_ptr(), target.buffer.numel()]
    torch.cuda.synchronize()
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        _produce()((_BLOCKS,), (256,), (*arguments, _DELAY_CYCLES))
    bench.launch(bound, operands, scratch, case, behind=True)
    return bench.ratio(operands, operands.take_result()[0], case)
