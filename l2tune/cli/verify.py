"""`l2tune verify FILE`: take one kernel file through the gate, as far as this machine can."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from l2tune import compile, pipeline, settings  # noqa: A004
from l2tune import verify as gate
from l2tune.cli import keys as options
from l2tune.cli.instance import (
    LONG_DTYPE,
    REFERENCE_GPU,
    Shape,
    assignment,
    read_kernel,
    settle,
    source_of,
)
from l2tune.cli.output import Json, print_json, print_table, progress_bar, tell
from l2tune.errors import HeaderError
from l2tune.export import is_export
from l2tune.runtime.device import detect
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import Header, parse
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import (
    Admitted,
    CheckPassed,
    Compiled,
    CompileFailed,
    Declined,
    Refuted,
)
from l2tune.store import Artifacts

_NEED_GPU = "sandbox, properties, repeat and time"
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Emulated:
    """A kernel that went as far as it can without a GPU.

    Attributes:
        compiled: The kernel.
        check: What the emulator tried; no example if it cannot run the kernel.
    """

    compiled: Compiled
    check: CheckPassed


Verdict = Emulated | Admitted | Declined | Refuted | CompileFailed


@dataclasses.dataclass(frozen=True)
class Trial:
    """One target, dtype and layout of the file."""

    text: str
    key: GemmKey


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A kernel file, .cu or .py.")],
    shape: options.Shape = None,
    layout: Annotated[str | None, typer.Option(help="Only this layout.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this dtype.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Settle a tunable.")
    ] = None,
    device: options.Device = 0,
    as_json: Json = False,
) -> None:
    """Take a kernel file through the gate: every stage on a GPU, the first four without one.

    Each dtype and layout that the contract offers is tried. Tunables that `--set` leaves open get
    the first values that the contract admits.
    """
    text = read_kernel(file)
    header = parse(text)[1]
    values = dict(map(assignment, assignments or []))
    gpu = detect(device)
    gpus = [gpu] if gpu is not None else [REFERENCE_GPU[arch] for arch in header.arch]
    trials = [
        trial
        for one in gpus
        for trial in _trials(*settle(text, values, one, shape), one, layout, dtype)
    ]
    verdicts = _judge_all(trials, on_gpu=gpu is not None, device=device)
    data = [_data(trial, verdict) for trial, verdict in zip(trials, verdicts, strict=True)]
    if as_json:
        print_json({"file": str(file), "gpu": gpu and gpu.name, "verdicts": data})
    else:
        _print(header, trials, data, exported=is_export(text), gpu=gpu)
    if any(isinstance(verdict, Refuted | CompileFailed) for verdict in verdicts):
        raise typer.Exit(1)


def _trials(
    text: str, shape: Shape, gpu: Gpu, layout: str | None, dtype: str | None
) -> list[Trial]:
    header = parse(text)[1]
    offered = [
        (LONG_DTYPE[short], order)
        for short in header.dtype
        for order in header.layout
        if dtype in (None, LONG_DTYPE[short]) and layout in (None, order)
    ]
    if not offered:
        raise HeaderError(
            f"{header.id}: offers dtypes {list(header.dtype)} and layouts {list(header.layout)},"
            f" asked for were {dtype or 'all'} and {layout or 'all'}"
        )
    keys = [
        options.make_key(gpu, *shape, layout=order, dtype=long).model_copy(
            update={"acc": source_of(text, gpu.arch or "sm_80", long, order).acc}
        )
        for long, order in offered
    ]
    return [Trial(text, key) for key in keys]


def _judge_all(trials: list[Trial], *, on_gpu: bool, device: int) -> list[Verdict]:
    verdicts: list[Verdict] = []
    with contextlib.ExitStack() as opened:
        bench = opened.enter_context(pipeline.Bench.open(device=device)) if on_gpu else None
        worker = None if on_gpu else opened.enter_context(Worker(device=NO_GPU, spares=0))
        progress = opened.enter_context(progress_bar())
        task = progress.add_task("starting", total=len(trials))
        for trial in trials:
            progress.update(task, description=f"{trial.key.gpu.arch} {trial.key.label}")
            if bench is not None:
                verdicts.append(pipeline.evaluate(trial.text, trial.key, bench=bench))
            elif worker is not None:
                verdicts.append(_judge_here(trial, worker))
            progress.advance(task)
    return verdicts


def _judge_here(trial: Trial, worker: Worker) -> Emulated | Refuted | CompileFailed:
    """The stages that need no GPU: contract, screen, compile with resources, emulator."""
    key = trial.key
    source = source_of(trial.text, key.gpu.arch or "sm_80", key.dtype, key.layout)
    refuted = gate.check_contract(source, key) or gate.screen(source)
    if refuted is not None:
        return refuted
    compiled = compile.compile_kernel(source, Artifacts(settings.current().cache_dir))
    if isinstance(compiled, CompileFailed):
        return compiled
    refuted = gate.check_resources(compiled, key)
    if refuted is not None:
        return refuted
    folder = settings.current().cache_dir
    found = gate.emulate(worker, compiled, key, cache_dir=folder, seed=_SEED)
    return found if isinstance(found, Refuted) else Emulated(compiled, found)


def _data(trial: Trial, verdict: Verdict) -> dict[str, Any]:
    """A verdict for JSON and for the table."""
    key = trial.key
    data: dict[str, Any] = {"key": str(key), "arch": key.gpu.arch, "product": key.label}
    match verdict:
        case Refuted():
            data |= {"verdict": "refuted", **verdict.model_dump(mode="json")}
        case CompileFailed():
            data |= {"verdict": "refuted", "stage": "compile", "check": "compiler"}
            data |= {"finding": verdict.kind, "detail": verdict.log}
        case Emulated():
            used = verdict.compiled.resources.items()
            data |= {"resources": {name: each.model_dump() for name, each in used}}
            data |= {
                "verdict": "emulated" if verdict.check.examples else "compiled",
                "emulator": verdict.check.model_dump(mode="json"),
            }
        case Admitted() | Declined():
            timing = verdict.timing
            data |= {
                "verdict": "admitted" if isinstance(verdict, Admitted) else "declined",
                "us": timing.gpu.us,
                "torch_us": timing.baselines["torch"].us,
                "examples": timing.verified.examples,
            }
    return data


def _print(
    header: Header,
    trials: list[Trial],
    data: list[dict[str, Any]],
    *,
    exported: bool,
    gpu: Gpu | None,
) -> None:
    if exported:
        tell("an exported file: judged is the kernel in it, not its host launcher")
    if any(isinstance(choices, tuple) for choices in header.tune.values()):
        for settled in dict.fromkeys(trial.text for trial in trials):
            values = " ".join(f"{n}={v}" for n, v in parse(settled)[1].tune.items())
            tell(f"an instance of {header.id}: {values} (--set NAME=VALUE picks others)")
    rows = [(str(d["arch"]), d["product"], d["verdict"], _words(d)) for d in data]
    print_table(header.id, ("target", "product", "verdict", ""), rows)
    if gpu is None:
        stages = "contract, screen, compile and emulator"
        tell(f"no GPU here: {stages} were checked; {_NEED_GPU} need a GPU")


def _words(data: dict[str, Any]) -> str:
    match data["verdict"]:
        case "refuted":
            return f"{data['stage']}/{data['check']}: {data['finding']}: {data['detail'].strip()}"
        case "compiled" | "emulated":
            return f"{_emulator_words(data['emulator'])}; {_resource_words(data['resources'])}"
    return f"{data['us']:.2f} us, torch {data['torch_us']:.2f} us, {data['examples']} examples"


def _emulator_words(stage: dict[str, Any]) -> str:
    if stage["note"]:
        return str(stage["note"])
    return f"emulator: {stage['examples']} runs, error at most {stage['worst_ratio']:.3g} of bound"


def _resource_words(resources: dict[str, dict[str, int]]) -> str:
    return "; ".join(
        f"{name}: {used['registers']} registers, {used['smem_static_bytes']} bytes of"
        f" static shared memory, {used['spill_bytes']} spilled"
        for name, used in resources.items()
    )
