"""Kernels, keys and records for tests, drawn by Hypothesis or made plain."""

from typing import Any

from hypothesis import strategies as st

from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.header import Origin
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import (
    Admitted,
    CheckPassed,
    Compiled,
    Declined,
    Estimated,
    Interval,
    KernelResources,
    LaunchData,
    Timing,
    Verified,
)
from l2tune.spec.record import EstimatedRecord, Record, Tools

CONTRACT = """\
id       = "test/naive"
arch     = ["sm_80", "sm_90a"]
dtype    = ["f16", "bf16"]
layout   = ["nn", "nt", "tn", "tt"]
"""
LAUNCH = """\
[[launch]]
kernel   = "gemm"
grid     = ["min(cdiv(m * n * batch, 256), 2147483647)", 1, 1]
block    = [256, 1, 1]
args     = ["c", "m"]
"""
BODY = 'extern "C" __global__ void gemm(short* c, int m) { if (m) c[threadIdx.x] = 1; }\n'
TOOLS = Tools(l2tune="0.1.0", compiler="nvidia-cuda-nvrtc 13.0.88", driver="13.0", torch="2.11")


def cuda_file(contract: str = CONTRACT, launch: str = LAUNCH, body: str = BODY) -> str:
    """A whole kernel file."""
    return f"/*---l2tune\n{contract}{launch}---*/\n{body}"


def interval(us: float) -> Interval:
    """A time known to 1 %."""
    return Interval(us=us, lo=us * 0.99, hi=us * 1.01)


def verified(key: GemmKey, body: str = BODY) -> Verified:
    """A proof, as the gate would write it."""
    source = KernelSource(
        text=cuda_file(body=body), arch=key.gpu.arch, dtype=key.dtype, layout=key.layout
    )
    compiled = Compiled(
        source=source,
        cubins=("0" * 64,),
        launches=(LaunchData(kernel="gemm"),),
        resources={
            "gemm": KernelResources(registers=32, smem_static_bytes=0, spill_bytes=0, stack_bytes=0)
        },
        compiler=TOOLS.compiler,
    )
    return Verified(
        key=key, compiled=compiled, checks=(CheckPassed(check="x", examples=1, seed=0),)
    )


def timing(key: GemmKey, **changes: Any) -> Timing:
    """A kernel of 1000 us beside a torch of 1200 us, on the GPU and with the host."""
    fields = {
        "verified": verified(key),
        "gpu": interval(1000.0),
        "host": interval(1000.0),
        "host_path": "python",
        "baselines": {"torch": interval(1200.0)},
        "torch_host": interval(1200.0),
        "floor_us": 1.0,
        "samples": 30,
        "run_id": "run",
    }
    return Timing(**{**fields, **changes})


def record(key: GemmKey, body: str = BODY) -> Record:
    """An admitted record."""
    outcome = Admitted(
        timing=timing(key, verified=verified(key, body)), eager="kernel", graph="kernel"
    )
    return Record(key=key, outcome=outcome, origin=Origin(), tools=TOOLS, created="2026-11-30")


def estimated(key: GemmKey, body: str = BODY, us: float = 3.0) -> EstimatedRecord:
    """A kernel that was never timed."""
    outcome = Estimated(
        verified=verified(key, body), estimate_us=us, terms_us={"launch": 2.0, "tensor": us - 2.0},
        floor_us=2.5,
    )  # fmt: skip
    return EstimatedRecord(
        key=key, outcome=outcome, origin=Origin(), tools=TOOLS, created="2026-11-30"
    )


sizes = st.integers(1, 2**31)
gpus = st.builds(
    Gpu,
    name=st.text(min_size=1),
    capability=st.sampled_from([(8, 0), (8, 9), (9, 0)]),
    sms=st.integers(1, 200),
) | st.sampled_from([H200, A100])


@st.composite
def keys(draw: st.DrawFn, *, gpu: st.SearchStrategy[Gpu] = gpus) -> GemmKey:
    """Any key that a float32-accumulating kernel may serve."""
    return GemmKey(
        m=draw(sizes), n=draw(sizes), k=draw(sizes), batch=draw(sizes),
        layout=draw(st.sampled_from(["nn", "nt", "tn", "tt"])),
        shared=draw(st.sampled_from(["", "a", "b", "ab"])),
        dtype=draw(st.sampled_from(["float16", "bfloat16"])),
        align=draw(st.sampled_from([2, 4, 8, 16])),
        gpu=draw(gpu),
    )  # fmt: skip


times_us = st.floats(0.001, 1e6)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record the product could write."""
    key = draw(keys())
    baselines = draw(st.dictionaries(st.text(max_size=9), times_us.map(interval), max_size=3))
    timed = timing(
        key,
        verified=verified(key, BODY + "// " + draw(st.text("ab é\t\"'\\", max_size=30))),
        gpu=interval(draw(times_us)),
        baselines={**baselines, "torch": interval(draw(times_us))},
        run_id=draw(st.text(max_size=9)),
    )
    sides = st.sampled_from(["kernel", "torch"])
    outcome = draw(
        st.builds(Admitted, timing=st.just(timed), eager=sides, graph=sides)
        | st.builds(Declined, timing=st.just(timed), reason=st.text())
    )
    return Record(
        key=key, outcome=outcome, tools=TOOLS, created="2026-11-30",
        origin=draw(st.builds(Origin, kind=st.sampled_from(["seed", "llm"]), model=st.text())),
    )  # fmt: skip
