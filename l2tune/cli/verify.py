"""`l2tune verify FILE`: take one kernel file through the gate, on a GPU or on the emulator."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from l2tune import pipeline
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
from l2tune.errors import HeaderError, UnsupportedProblemError
from l2tune.export import is_export
from l2tune.runtime.device import detect
from l2tune.runtime.pool import map_over
from l2tune.runtime.worker import NO_GPU, Worker
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import Header, parse
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, CompileFailed, Declined, Refuted, Verified


@dataclasses.dataclass(frozen=True)
class NotJudged:
    """Nothing is said of the kernel; why, in a sentence."""

    reason: str


Verdict = Admitted | Declined | Verified | NotJudged | Refuted | CompileFailed


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
    """Take a kernel file through the gate; without a GPU on the emulator, and nothing is timed.

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
    verdicts = _judge_all(trials, device=NO_GPU if gpu is None else device)
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


def _judge_all(trials: list[Trial], *, device: int) -> list[Verdict]:
    with pipeline.Bench.open(device=device) as bench, progress_bar() as progress:
        task = progress.add_task("starting", total=len(trials))

        def judge(worker: Worker, trial: Trial) -> Verdict:
            progress.update(task, description=f"{trial.key.gpu.arch} {trial.key.label}")
            own = bench
            if not bench.has_gpu:  # one trial on each emulator
                own = dataclasses.replace(bench, worker=worker, emulators=[worker])
            try:
                return pipeline.evaluate(trial.text, trial.key, bench=own)
            except UnsupportedProblemError as error:
                return NotJudged(str(error))
            finally:
                progress.advance(task)

        return map_over([bench.worker] if bench.has_gpu else bench.emulators, judge, trials)


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
        case NotJudged():
            data |= {"verdict": "not judged", "detail": verdict.reason}
        case Verified():
            used = verdict.compiled.resources.items()
            data |= {
                "verdict": "verified",
                "processor": "emulator",
                "examples": verdict.examples,
                "checks": [check.model_dump(mode="json") for check in verdict.checks],
                "resources": {name: each.model_dump() for name, each in used},
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
        tell("no GPU here: the gate ran on the emulator, on small problems, and nothing was timed")


def _words(data: dict[str, Any]) -> str:
    match data["verdict"]:
        case "refuted":
            said = f"{data['stage']}/{data['check']}: {data['finding']}: {data['detail'].strip()}"
            case = " ".join(f"{name}={value}" for name, value in data.get("case", {}).items())
            return f"{said}; counterexample: {case}" if case else said
        case "not judged":
            return str(data["detail"])
        case "verified":
            return f"{_emulator_words(data)}; {_resource_words(data['resources'])}"
    return f"{data['us']:.2f} us, torch {data['torch_us']:.2f} us, {data['examples']} examples"


def _emulator_words(data: dict[str, Any]) -> str:
    worst = max(check["worst_ratio"] for check in data["checks"])
    return f"emulator: {data['examples']} runs, error at most {worst:.3g} of bound"


def _resource_words(resources: dict[str, dict[str, int]]) -> str:
    return "; ".join(
        f"{name}: {used['registers']} registers, {used['smem_static_bytes']} bytes of"
        f" static shared memory, {used['spill_bytes']} spilled"
        for name, used in resources.items()
    )
