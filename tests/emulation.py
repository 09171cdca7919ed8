"""Launches a few lines of PTX on the emulator: the preamble, the buffers and the parameters."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from l2tune.runtime.emulator.buffers import GlobalMemory
from l2tune.runtime.emulator.findings import EmulationStopped, EmulatorFinding, Fault
from l2tune.runtime.emulator.machine import Machine
from l2tune.runtime.emulator.ops.tensor_map import EmulatedMap
from l2tune.runtime.emulator.parser import parse

FINISH = "ret;"


@dataclasses.dataclass
class Box:
    """A tensor map over a buffer, to be placed when the buffer is."""

    buffer: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


def launch(
    body: str,
    *buffers: tuple[np.ndarray[Any, Any], str],
    threads: int = 32,
    cluster: int = 1,
    shared_bytes: int = 4096,
    maps: tuple[Box, ...] = (),
    target: str = "sm_90a",
    **options: Any,
) -> Machine:
    """Run `body` with buffer i's address in `%rd{i}`, map i's in `%rd{10 + i}`.

    Dynamic shared memory starts at 0 (`smem`); `%r0` is the thread, `%r1` the rank in the cluster.
    A buffer is an array and its kind, `input`, `output` or `scratch`.
    """
    text = _module(body, len(buffers), len(maps), target)
    memory = GlobalMemory()
    addresses = [
        memory.add(f"p{i}", a.reshape(-1).view(np.uint8), kind=kind, initialised=kind == "input")
        for i, (a, kind) in enumerate(buffers)
    ]
    params = [a.to_bytes(8, "little") for a in addresses]
    params += [(i + 1).to_bytes(8, "little") + bytes(120) for i in range(len(maps))]
    machine = Machine(
        parse(text), "k", (cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1), shared_bytes, params,
        memory, sms=cluster, **options,
    )  # fmt: skip
    for i, m in enumerate(maps):
        machine.tensor_maps[i + 1] = EmulatedMap(
            addresses[m.buffer], m.sizes, m.strides_bytes, m.box, m.swizzle
        )
    machine.run()
    return machine


def _module(body: str, buffers: int, maps: int, target: str) -> str:
    names = [f".param .u64 p{i}" for i in range(buffers)]
    names += [f".param .align 64 .b8 m{i}[128]" for i in range(maps)]
    loads = [f"ld.param.u64 %rd{i}, [p{i}];" for i in range(buffers)]
    loads += [f"mov.b64 %rd{10 + i}, m{i};\ncvta.param.u64 %rd{10 + i}, %rd{10 + i};"
              for i in range(maps)]  # fmt: skip
    return f"""
.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({", ".join(names)})
{{
  .reg .pred %p<16>;
  .reg .b16 %rs<16>;
  .reg .b32 %r<300>;
  .reg .b64 %rd<40>;
  .reg .f32 %f<300>;
  mov.u32 %r0, %tid.x;
  {"mov.u32 %r1, %cluster_ctarank;" if target != "sm_80" else ""}
  {" ".join(loads)}
{body}
  ret;
}}
"""


def finding(
    body: str, *buffers: tuple[np.ndarray[Any, Any], str], **options: Any
) -> EmulatorFinding:
    """What the emulator finds wrong with `body`."""
    with pytest.raises(EmulationStopped) as caught:
        launch(body, *buffers, **options)
    return caught.value.finding


def fault(body: str, *buffers: tuple[np.ndarray[Any, Any], str], **options: Any) -> Fault:
    """The kind of what the emulator finds wrong with `body`."""
    return finding(body, *buffers, **options).fault


def fill_shared(size_bytes: int, *, threads: int, source: int = 0, start: int = 0) -> str:
    """PTX that copies a buffer to shared memory, 16 bytes a thread at a time."""
    lines = [
        "shl.b32 %r290, %r0, 4;",
        "cvt.u64.u32 %rd30, %r290;",
        f"add.s64 %rd30, %rd30, %rd{source};",
    ]
    for place in range(0, size_bytes, threads * 16):
        lines += [
            f"ld.global.v4.u32 {{%r291, %r292, %r293, %r294}}, [%rd30+{place}];",
            f"st.shared.v4.u32 [%r290+{start + place}], {{%r291, %r292, %r293, %r294}};",
        ]
    return "\n".join(lines)


def store_words(registers: list[str], *, target: int = 1) -> str:
    """PTX that stores each thread's 32-bit registers, one thread after the other."""
    lines = [
        f"mul.wide.u32 %rd31, %r0, {4 * len(registers)};",
        f"add.s64 %rd31, %rd31, %rd{target};",
    ]
    lines += [f"st.global.b32 [%rd31+{4 * i}], {r};" for i, r in enumerate(registers)]
    return "\n".join(lines)
