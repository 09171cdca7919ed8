"""The `[verified]` table of an exported file: what was proven and measured, where and by what.

It is a claim that travels with the file, never a proof: whoever imports the file runs the gate.
"""

import re

from l2tune.spec.outcome import Admitted
from l2tune.spec.record import Record

_Value = str | int | float | bool


def verified_table(record: Record) -> str:
    """TOML text, the header line included."""
    lines = [f"{name} = {_toml(value)}" for name, value in _facts(record).items()]
    timing = record.outcome.timing
    times = {name: round(found.us, 3) for name, found in sorted(timing.baselines.items())}
    inside = ", ".join(f"{_toml(name)} = {_toml(us)}" for name, us in times.items())
    return "\n".join(["[verified]", *lines, f"baselines_us = {{ {inside} }}", ""])


def _facts(record: Record) -> dict[str, _Value]:
    timing = record.outcome.timing
    verified, torch = timing.verified, timing.baselines["torch"]
    source = verified.compiled.source
    eager, graph = "torch", "torch"
    if isinstance(record.outcome, Admitted):
        eager, graph = record.outcome.eager, record.outcome.graph
    return {
        "key": str(record.key),
        "arch": source.arch,
        "dtype": source.dtype,
        "layout": source.layout,
        "acc": source.acc,
        "source_sha256": source.digest,
        "cubin_sha256": verified.compiled.cubins[0],
        "bound_ratio": max((check.worst_ratio for check in verified.checks), default=0.0),
        "examples": verified.examples,
        "us": timing.gpu.us,
        "us_lo": timing.gpu.lo,
        "us_hi": timing.gpu.hi,
        "torch_us": torch.us,
        "torch_us_lo": torch.lo,
        "torch_us_hi": torch.hi,
        "speedup": timing.speedup,
        "host_us": timing.host.us,
        "torch_host_us": timing.torch_host.us,
        "floor_us": timing.floor_us,
        "eager_choice": eager,
        "graph_choice": graph,
        **_circumstances(record),
    }


def _circumstances(record: Record) -> dict[str, _Value]:
    timing, gpu = record.outcome.timing, record.key.gpu
    return {
        "clock_mhz": timing.clock_mhz,
        "power_w": timing.power_w,
        "method": timing.method,
        "run_id": timing.run_id,
        "gpu": gpu.name,
        "sms": gpu.sms,
        "compiler": timing.verified.compiled.compiler,
        "driver": record.tools.driver,
        "torch": record.tools.torch,
        "l2tune": record.tools.l2tune,
        "date": record.created,
    }


def _toml(value: _Value) -> str:
    """One TOML value on one line that cannot end the comment it stands in."""
    if isinstance(value, str):
        return '"' + re.sub(r'[\\"\x00-\x1f\x7f-\x9f/\u2028\u2029]', _escape, value) + '"'
    return repr(round(value, 4)) if isinstance(value, float) else repr(value)


def _escape(match: re.Match[str]) -> str:
    # A slash is harmless but for the `*/` that it could complete.
    before = match.string[match.start() - 1 : match.start()]
    return "/" if match[0] == "/" and before != "*" else f"\\u{ord(match[0]):04x}"
