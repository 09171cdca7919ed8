"""`l2tune emulate FILE`: run one kernel on the CPU and say what is wrong with it, and what it did.

The kernel is compiled anew with line information, so that findings and accesses name the lines of
the file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from l2tune import compile, settings  # noqa: A004
from l2tune.cli import keys as options
from l2tune.cli.instance import REFERENCE_GPU, Shape, assignment, read_kernel, settle, source_of
from l2tune.cli.listing import Listing
from l2tune.cli.output import Json, print_json, print_table, say, tell
from l2tune.errors import HeaderError, InfrastructureError
from l2tune.runtime.emulator.findings import EmulationStopped, EmulatorFinding
from l2tune.runtime.emulator.parser import PtxSyntaxError
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.runtime.emulator.program import UnsupportedInstructionError
from l2tune.runtime.emulator.statistics import Statistics
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import parse
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled, CompileFailed
from l2tune.store import Artifacts
from l2tune.verify.case import Case
from l2tune.verify.trial import Bench, KernelFailed
from l2tune.verify.values import CLASSES

_MOST_ROWS = 24
_LINE_INFO = ("-lineinfo",)


def emulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A kernel file, .cu or .py.")],
    shape: Annotated[Shape, typer.Option(metavar="M N K", help="The product's sizes.")],
    batch: options.Batch = 1,
    layout: options.Layout = "nn",
    dtype: options.Dtype = "float16",
    arch: Annotated[
        str | None, typer.Option(help="sm_80 or sm_90a; by default the newest of the contract.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Settle a tunable.")
    ] = None,
    sms: Annotated[int, typer.Option(min=1, help="Multiprocessors of the pretended GPU.")] = 4,
    values: Annotated[str, typer.Option(help=f"One of {', '.join(CLASSES)}.")] = "integers",
    seed: Annotated[int, typer.Option(help="What the operands are drawn from.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a kernel file once on the emulator, which needs no GPU.

    Prints the first finding, or the mix of instructions and how shared and global memory were
    accessed. Status 1 tells that something is wrong with the kernel.
    """
    if values not in CLASSES:
        raise typer.BadParameter(f"--values {values}: needed one of {', '.join(CLASSES)}")
    text = read_kernel(file)
    gpu = _pretended(text, arch, sms)
    wanted = dict(map(assignment, assignments or []))
    settled, _ = settle(text, wanted, gpu, shape, layout=layout)
    problem = options.make_key(gpu, *shape, batch=batch, layout=layout, dtype=dtype)
    source = source_of(settled, gpu.arch or "sm_80", problem.dtype, layout)
    listing = Listing(file, text, settled)
    case = Case(*shape, batch=batch, values=values, seed=seed)
    data = _run(source, gpu, case, listing)
    if as_json:
        print_json({"file": str(file), "case": case.as_data(), **data})
    else:
        _print(data, case, listing)
    if data["verdict"] != "passed":
        raise typer.Exit(1)


def _pretended(text: str, arch: str | None, sms: int) -> Gpu:
    """The GPU whose limits hold."""
    header = parse(text)[1]
    offered: dict[str, Gpu] = {
        name: gpu for name, gpu in REFERENCE_GPU.items() if name in header.arch
    }
    wanted = arch or next(iter(offered))
    if wanted not in offered:
        raise HeaderError(f"{header.id}: is for {list(header.arch)}, asked for was {arch}")
    return offered[wanted].model_copy(update={"sms": sms})


def _run(source: KernelSource, gpu: Gpu, case: Case, listing: Listing) -> dict[str, Any]:
    """Compile and emulate; what came of it, as data."""
    artifacts = Artifacts(settings.current().cache_dir)
    compiled = compile.compile_kernel(source, artifacts, options=_LINE_INFO)
    if isinstance(compiled, CompileFailed):
        return {"verdict": "refuted", "finding": {"fault": compiled.kind, "message": compiled.log}}
    processor = EmulatedProcessor(compiled, artifacts)
    listing.read(processor.ptx.values())
    bench = Bench(processor, gpu, settings.current().launch_timeout_s)
    data: dict[str, Any] = {"verdict": "passed"}
    ran: Sequence[Statistics] | None = None
    try:
        bench.attempt(case)
    except EmulationStopped as stopped:
        data = {"verdict": "refuted", "finding": _finding(stopped.finding, listing)}
        ran = stopped.statistics
    except KernelFailed as failure:
        found = {"fault": failure.finding.value, "message": str(failure)}
        data = {"verdict": "refuted", "finding": found}
    except (UnsupportedInstructionError, PtxSyntaxError) as error:
        raise InfrastructureError(f"not emulated: {error}") from error
    if ran is None:
        ran = processor.last.statistics if processor.last else ()
    return data | {
        "kernel": source.name,
        "resources": _resources(compiled),
        "worst_ratio": bench.worst_ratio,
        "launches": [_launch(one, listing) for one in ran],
    }


def _finding(found: EmulatorFinding, listing: Listing) -> dict[str, Any]:
    where = listing.origin(found.source_line)
    return {
        "fault": found.fault.value,
        "message": found.message,
        "source": where and {"file": where[0], "line": where[1]},
        "ptx_line": found.line,
        "instruction": found.instruction,
        "kernel": found.kernel,
        "block": found.block,
        "thread": found.thread,
        "address": found.address,
    }


def _resources(compiled: Compiled) -> dict[str, Any]:
    return {name: used.model_dump() for name, used in compiled.resources.items()}


def _launch(ran: Statistics, listing: Listing) -> dict[str, Any]:
    """What one launch executed; accesses with the most needless traffic first."""
    accesses = sorted(ran.accesses.items(), key=lambda item: (-item[1].ratio, item[0]))
    return {
        "kernel": ran.kernel,
        "blocks": ran.blocks,
        "steps": ran.steps,
        "mix": ran.mix,
        "accesses": [
            {
                "where": listing.where(line),
                "ptx_line": line,
                "space": count.space,
                "instruction": count.text,
                "executed": count.executed,
                "ratio": round(count.ratio, 3),
            }
            for line, count in accesses
        ],
    }


def _print(data: dict[str, Any], case: Case, listing: Listing) -> None:
    if "finding" in data:
        for line in _diagnostic(data["finding"], listing):
            tell(line)
    for launch in data.get("launches", ()):
        _print_launch(launch)
    if data["verdict"] == "passed":
        error = f"error {data['worst_ratio']:.3g} of its bound"
        tell(f"{data['kernel']}: no finding; {case.values} at {_size(case)}, {error}")
    else:
        say(f"refuted: {data['finding']['fault']}", style="red")


def _size(case: Case) -> str:
    return f"{case.m}x{case.n}x{case.k}" + (f" x{case.batch}" if case.batch > 1 else "")


def _diagnostic(found: dict[str, Any], listing: Listing) -> list[str]:
    """A finding as compilers write theirs: place, kind, sentence; then the lines concerned."""
    where = found.get("source")
    place = f"{where['file']}:{where['line']}" if where else str(listing.file)
    lines = [f"{place}: {found['fault']}: {found['message'].strip()}"]
    if where and (shown := listing.line(where["file"], where["line"])):
        lines.append(f"{where['line']:6} | {shown}")
    if found.get("ptx_line"):
        lines.append(f"{'ptx ' + str(found['ptx_line']):>6} | {found['instruction']}")
    if found.get("kernel"):
        who = f"kernel {found['kernel']}"
        if found["block"] is not None:
            who += f", block {tuple(found['block'])}"
        if found["thread"] is not None:
            who += f", thread {found['thread']}"
        if found["address"] is not None:
            who += f", address {found['address']:#x}"
        lines.append(f"       = {who}")
    return lines


def _print_launch(launch: dict[str, Any]) -> None:
    steps = max(launch["steps"], 1)
    mix = list(launch["mix"].items())
    rows = [(name, str(n), f"{100 * n / steps:.1f} %") for name, n in mix[:_MOST_ROWS]]
    if rest := mix[_MOST_ROWS:]:
        total = sum(n for _, n in rest)
        rows.append((f"({len(rest)} others)", str(total), f"{100 * total / steps:.1f} %"))
    title = (
        f"{launch['kernel']}: {launch['steps']} instructions of warps, {launch['blocks']} blocks"
    )
    print_table(title, ("instruction", "executed", "share"), rows)
    print_table(
        "memory accesses: passes over the banks of shared memory, or sectors of global memory, for"
        " each that the bytes need",
        ("where", "space", "executed", "ratio", "instruction"),
        [
            (a["where"], a["space"], str(a["executed"]), f"{a['ratio']:.2f}", a["instruction"])
            for a in launch["accesses"][:_MOST_ROWS]
        ],
    )
    if (left := len(launch["accesses"]) - _MOST_ROWS) > 0:
        tell(f"{left} more, with lower ratios; --json has them all")
