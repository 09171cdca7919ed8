"""PTX written by hand, run on the emulator: a body of instructions and buffers."""

import numpy as np
import pytest

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.findings import EmulationStopped, EmulatorFinding, Fault
from l2tune.runtime.emulator.machine import Machine
from l2tune.runtime.emulator.parser import parse

HEAD = """
.version 9.0
.target sm_90a
.address_size 64
{variables}
.visible .entry test({params})
{{
  .reg .pred %p<8>;
  .reg .b16 %h<8>;
  .reg .b32 %r<16>;
  .reg .f32 %f<8>;
  .reg .b64 %a<8>, %d<16>;
  mov.u32 %r0, %tid.x;
{addresses}
{body}
  ret;
}}
"""


def machine(body: str, *buffers: np.ndarray, variables: str = "", **options) -> Machine:
    """A launch in which `%r0` is `%tid.x` and `%a0`, `%a1`, ... are the buffers' addresses.

    Args:
        body: Instructions.
        buffers: Global memory; those not writeable are inputs, the others outputs, in which
            zeros count as not written yet.
        variables: Declarations of the module.
        options: Of `Machine`, with `grid`, `block`, `cluster` and `smem_bytes` of one warp if left
            out.
    """
    memory, params = GlobalMemory(), []
    for index, buffer in enumerate(buffers):
        data = buffer.reshape(-1).view(np.uint8)
        kind = "output" if buffer.flags.writeable else "input"
        held = np.repeat(buffer.reshape(-1) != 0, buffer.itemsize)
        written = True if kind == "input" else held
        params.append(memory.add(f"buffer {index}", data, kind=kind, initialised=written))
    text = HEAD.format(
        variables=variables, body=body,
        params=", ".join(f".param .u64 p{i}" for i in range(len(params))),
        addresses="\n".join(f"  ld.param.u64 %a{i}, [p{i}];" for i in range(len(params))),
    )  # fmt: skip
    shape = {"grid": (1, 1, 1), "block": (32, 1, 1), "cluster": (1, 1, 1), "smem_bytes": 0}
    given = {**shape, **options}
    return Machine(
        parse(text), "test", *(given.pop(name) for name in shape),
        [p.to_bytes(8, "little") for p in params], memory, **given,
    )  # fmt: skip


def execute(body: str, *buffers: np.ndarray, **options) -> Machine:
    """Run a body to its end."""
    made = machine(body, *buffers, **options)
    made.run()
    return made


def fault(body: str, *buffers: np.ndarray, **options) -> EmulatorFinding:
    """The finding that ends a body's launch."""
    with pytest.raises(EmulationStopped) as stopped:
        execute(body, *buffers, **options)
    return stopped.value.finding


def is_fault(expected: Fault, body: str, *buffers: np.ndarray, **options) -> bool:
    """Whether a body's launch ends with a finding of a kind."""
    return fault(body, *buffers, **options).fault is expected
