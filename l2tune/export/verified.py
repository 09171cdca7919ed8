"""The `[verified]` table of an exported file: what was proven and measured, where and by what.

It is a claim that travels with the file, never a proof: whoever imports the file runs the gate.
An estimate's table says that an emulator did the proving, and holds no time: a model's guess is
nothing that should travel.
"""

import re

from l2tune.spec.outcome import Admitted
from l2tune.spec.record import EstimatedRecord, Record

_Value = str | int | float | bool


def verified_table(record: Record | EstimatedRecord) -> str:
    """TOML text, the header line included."""
    facts = _proof(record)
    if isinstance(record, EstimatedRecord):
        notes = sorted({check.note for check in record.verified.checks if check.note})
        facts |= {"processor": "emulator", "timed": False, "left_out": "; ".join(notes)}
        facts |= _circumstances(record)
        return "\n".join(["[verified]", *_lines(facts), ""])
    facts |= {**_times(record), **_circumstances(record)}
    baselines = record.outcome.timing.baselines
    times = {name: round(found.us, 3) for name, found in sorted(baselines.items())}
    inside = ", ".join(f"{_toml(name)} = {_toml(us)}" for name, us in times.items())
    return "\n".join(["[verified]", *_lines(facts), f"baselines_us = {{ {inside} }}", ""])


def _lines(facts: dict[str, _Value]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in facts.items()]


def _proof(record: Record | EstimatedRecord) -> dict[str, _Value]:
    verified = record.verified
    source = verified.compiled.source
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
    }


def _times(record: Record) -> dict[str, _Value]:
    timing = record.outcome.timing
    torch = timing.baselines["torch"]
    eager, graph = "torch", "torch"
    if isinstance(record.outcome, Admitted):
        eager, graph = record.outcome.eager, record.outcome.graph
    return {
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
        "clock_mhz": timing.clock_mhz,
        "power_w": timing.power_w,
        "method": timing.method,
        "run_id": timing.run_id,
    }


def _circumstances(record: Record | EstimatedRecord) -> dict[str, _Value]:
    gpu = record.key.gpu
    return {
        "gpu": gpu.name,
        "sms": gpu.sms,
        "compiler": record.verified.compiled.compiler,
        "driver": record.tools.driver,
        "torch": record.tools.torch,
        "l2tune": record.tools.l2tune,
        "date": record.created,
    }


def _toml(value: _Value) -> str:
    """One TOML value on one line that cannot end the comment it stands in."""
    if isinstance(value, str):
        return '"' + re.sub(r'[\\"\x00-\x1f\x7f-\x9f/\u2028\u2029]', _escape, value) + '"'
    if isinstance(value, bool):
        return str(value).lower()
    return repr(round(value, 4)) if isinstance(value, float) else repr(value)


def _escape(match: re.Match[str]) -> str:
    # A slash is harmless but for the `*/` that it could complete.
    before = match.string[match.start() - 1 : match.start()]
    return "/" if match[0] == "/" and before != "*" else f"\\u{ord(match[0]):04x}"
