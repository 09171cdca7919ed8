"""Whether a record made elsewhere, or earlier, still holds here.

A pure comparison: it reads no files, asks no driver and launches nothing.
"""

from typing import Literal

from l2tune.spec.gpu import Gpu
from l2tune.spec.record import Record, Tools

Validity = Literal["use", "recheck", "ignore"]


def judge(record: Record, gpu: Gpu, tools: Tools) -> Validity:
    """Say what a record is worth on this machine.

    | what differs | answer | why |
    | --- | --- | --- |
    | compute capability, or the kernel's target is not this GPU's | `ignore` | its machine code is for another chip |
    | multiprocessors, or name | `ignore` | tuned for another GPU; a MIG slice is one |
    | driver | `recheck` | another driver may schedule and clock otherwise |
    | compiler | `recheck` | the source would become other machine code than was proven |
    | l2tune | `recheck` | it launches kernels and holds the gate that proved this one |
    | torch | `recheck` | it is what the kernel was found to be faster than |
    | anything else, as memory size or host | `use` | no part of a proof or a timing rests on it |

    Args:
        record: From any cache.
        gpu: The GPU that is to run it.
        tools: What is installed here.

    Returns:
        `use`: its kernel may run. `recheck`: as good as missing until the gate and the clock have
        been through it again here. `ignore`: no record for this GPU, and never launched on it.
    """  # noqa: E501  # a table's rows cannot be folded
    target = record.outcome.timing.verified.compiled.source.arch
    if record.key.gpu != gpu or target != gpu.arch:
        return "ignore"
    return "use" if record.tools == tools else "recheck"
