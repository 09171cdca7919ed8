"""`l2tune verify FILE`: take one kernel file through the gate, as far as this machine can."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from l2tune import compile, pipeline, settings  # noqa: A004
from l2tune import verify as gate
from l2tune.cli import keys as options
from l2tune.cli.instance import LONG_DTYPE, REFERENCE_GPU, Shape, settle, source_of
from l2tune.cli.output import Json, print_json, print_table, progress_bar, tell
from l2tune.errors import HeaderError
from l2tune.export import is_export
from l2tune.runtime.device import detect
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import Header, parse
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, CompileFailed, Declined, Refuted
from l2tune.store import Artifacts

_NEED_GPU = "sandbox, properties, repeat and time"
Verdict = Compiled | Admitted | Declined | Refuted | CompileFailed


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
    """Take a kernel file through the gate: every stage on a GPU, the first three without one.

    Each dtype and layout that the contract offers is tried. Tunables that `--set` leaves open get
    the first values that the contract admits.
    """
    text = _read(file)
    header = parse(text)[1]
    values = dict(map(_assignment, assignments or []))
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


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None


def _assignment(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.lstrip("-").isdecimal():
        raise typer.BadParameter(f"--set {text}: needed NAME=VALUE with a whole number")
    return name, int(value)


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
    with progress_bar() as progress:
        task = progress.add_task("starting", total=len(trials))
        verdicts: list[Verdict] = []
        bench = pipeline.Bench.open(device=device) if on_gpu else None
        try:
            for trial in trials:
                progress.update(task, description=f"{trial.key.gpu.arch} {trial.key.label}")
                verdicts.append(
                    _judge_here(trial)
                    if bench is None
                    else pipeline.evaluate(trial.text, trial.key, bench=bench)
                )
                progress.advance(task)
        finally:
            if bench is not None:
                bench.worker.close()
    return verdicts


def _judge_here(trial: Trial) -> Compiled | Refuted | CompileFailed:
    """The stages that need no GPU: contract, screen, compile with resources."""
    key = trial.key
    source = source_of(trial.text, key.gpu.arch or "sm_80", key.dtype, key.layout)
    refuted = gate.check_contract(source, key) or gate.screen(source)
    if refuted is not None:
        return refuted
    compiled = compile.compile_kernel(source, Artifacts(settings.current().cache_dir))
    if isinstance(compiled, CompileFailed):
        return compiled
    return gate.check_resources(compiled, key) or compiled


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
        case Compiled():
            resources = {name: used.model_dump() for name, used in verdict.resources.items()}
            data |= {"verdict": "compiled", "resources": resources}
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
        tell(f"no GPU here: contract, screen and compile were checked; {_NEED_GPU} need a GPU")


def _words(data: dict[str, Any]) -> str:
    match data["verdict"]:
        case "refuted":
            return f"{data['stage']}/{data['check']}: {data['finding']}: {data['detail'].strip()}"
        case "compiled":
            return "; ".join(
                f"{name}: {used['registers']} registers, {used['smem_static_bytes']} bytes of"
                f" static shared memory, {used['spill_bytes']} spilled"
                for name, used in data["resources"].items()
            )
    return f"{data['us']:.2f} us, torch {data['torch_us']:.2f} us, {data['examples']} examples"
