"""The side file of an export: what another program must know to launch the kernel, as JSON data."""

import re
from typing import Any

from l2tune.spec import geometry
from l2tune.spec.header import ShortDtype
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled
from l2tune.spec.record import EstimatedRecord, Record

_LICENCE = "Apache-2.0"
_LONG: dict[ShortDtype, str] = {"f16": "float16", "bf16": "bfloat16"}


def file_stem(record: Record | EstimatedRecord) -> str:
    """A file name without its suffix, from the key and the kernel; safe to type in a shell."""
    key = record.key
    batch = f"_b{key.batch}" if key.batch > 1 else ""
    shared = f"_shared_{key.shared}" if key.shared else ""
    align = f"_align{key.align}" if key.align < 16 else ""
    sizes = f"{key.m}x{key.n}x{key.k}{batch}{shared}"
    timed = "_estimated" if isinstance(record, EstimatedRecord) else ""
    gpu = f"{key.gpu.slug or 'gpu'}_{key.gpu.sms}sm"
    name = f"{sizes}_{key.layout}_{key.dtype}{align}_{gpu}{timed}"
    return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)


def describe(record: Record | EstimatedRecord) -> dict[str, Any]:
    """Everything a launcher must know, and what the kernel is good for.

    `launches` are the values for the record's key; `requires` says for which other problems the
    kernel is right, and the contract in the exported file has the expressions behind the values.
    """
    compiled = record.verified.compiled
    source, header, key = compiled.source, compiled.source.header, record.key
    problem = key.problem()
    return {
        "id": header.id,
        "summary": header.summary,
        "key": str(key),
        "timed": isinstance(record, Record),
        "backend": source.backend,
        "functions": sorted({launch.kernel for launch in header.launch}),
        "launches": _launches(compiled, key),
        "tensor_maps": [
            vars(found) for found in geometry.tensor_maps(compiled, problem, key.gpu).values()
        ],
        "workspace_bytes": geometry.workspace_bytes(compiled, problem, key.gpu),
        "workspace_zeroed": header.workspace_zeroed,
        "defines": source.defines,
        "arch": source.arch,
        "requires": [condition.text for condition in header.requires],
        "dtype": source.dtype,
        "layout": source.layout,
        "accumulate": source.acc,
        "kernel_offers": {
            "arch": header.arch,
            "dtype": [_LONG[short] for short in header.dtype],
            "layout": header.layout,
        },
        "deterministic": header.deterministic,
        "origin": header.origin.model_dump(),
        "licence": licence(record),
    }


def _launches(compiled: Compiled, key: GemmKey) -> list[dict[str, Any]]:
    return [
        {
            "function": launch.kernel,
            "grid": launch.grid,
            "block": launch.block,
            "cluster": launch.cluster,
            "smem_bytes": launch.smem_bytes,
            "programmatic_dependent_launch": launch.pdl,
            "args": launch.args,
        }
        for launch in geometry.launches(compiled, key.problem(), key.gpu)
    ]


def licence(record: Record | EstimatedRecord) -> str:
    """The licence of an exported file; a kernel written elsewhere has its author's."""
    if record.origin.kind in ("seed", "search"):
        return _LICENCE
    return f"kernel: its author's; host launcher: {_LICENCE}"
