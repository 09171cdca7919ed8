"""`l2tune pack`: make a pack of the cache, check one, install one on the GPU that it is for."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from l2tune import compile, generate, settings  # noqa: A004
from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, progress_bar, say, tell
from l2tune.cli.records import print_records
from l2tune.errors import InfrastructureError, PackError
from l2tune.export import results
from l2tune.pipeline import Bench, Failure, recheck
from l2tune.runtime.device import detect
from l2tune.runtime.versions import tools
from l2tune.spec.gpu import Gpu
from l2tune.spec.kernel import KernelSource
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, CompileFailed
from l2tune.spec.record import Record
from l2tune.stages import compile_for
from l2tune.store import Artifacts, Pack, Pending, Registry, Searches, judge
from l2tune.store.files import private_directory
from l2tune.store.pack import find, write
from l2tune.store.rough import read_rough, write_rough

_RECHECK_BUDGET_S = 3.0
_Compilations = dict[GemmKey, Compiled | Failure]

app = typer.Typer(
    help="Kernels and timings of one GPU model as text, to keep in git and to carry elsewhere.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="DIR|NAME", help="A folder, or a shipped pack.")]


@app.command()
def build(
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the pack goes.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="As nvidia-h200; by default the one that is here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the cache's records of one GPU model, and their kernels, as a pack.

    A pack that is there already is replaced; the same records make the same files then.
    """
    registry = Registry(settings.current().cache_dir)
    quarantined = registry.quarantined()
    records = list(registry.records())
    chosen = _chosen_gpu(gpu, [record.key.gpu for record in records])
    headers = generate.include_dir()
    pack = write(
        folder, chosen,
        [r for r in records
         if r.key.gpu == chosen and r.verified.compiled.source.digest not in quarantined],
        [compile.flatten(text, headers) for text in generate.seed_texts().values()],
    )  # fmt: skip
    write_rough(folder, Searches(settings.current().cache_dir).all_ranked(chosen))
    _report(pack, as_json=as_json)


@app.command()
def check(
    name: Name,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile every kernel too; needs no GPU.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that a pack is whole: its form, each kernel's hash, contract and key, unused files."""
    pack = Pack.read(find(name))
    read_rough(pack.folder, pack.gpu)
    sources, wrong = _sources(pack)
    wrong += [f"{path}: no record names it" for path in pack.unused()]
    facts: dict[str, Any] = {}
    if compiled:
        outcomes = _compile_all(_compilable(sources))
        made = {key: result for key, result in outcomes.items() if isinstance(result, Compiled)}
        facts["compiled"] = len({result.source.digest for result in made.values()})
        facts["same_machine_code"] = sum(
            entry.key in made and made[entry.key].cubins == pack.kernels[entry.kernel].cubins
            for entry in pack.entries
        )
        for key, result in outcomes.items():
            if not isinstance(result, Compiled):
                wrong.append(f"{key.label}: {_why(result)}")
    _report(pack, **facts, wrong=wrong, as_json=as_json)
    if wrong:
        raise typer.Exit(1)


@app.command()
def install(
    name: Name,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Re-check so many now, the others when a call wants them."),
    ] = None,
    budget_s: Annotated[
        float, typer.Option(help="Seconds of timing for each key.")
    ] = _RECHECK_BUDGET_S,
    device: options.Device = 0,
    as_json: Json = False,
) -> None:
    """Re-check a pack's kernels on this GPU, one by one; those that pass and are faster serve.

    Fixed cases of the gate and a short timing beside torch.matmul; only on the GPU model that the
    pack is for. Can be stopped and started again.
    """
    pack = Pack.read(find(name))
    gpu = options.needed_gpu(
        device, why=f"a pack's kernels serve after a re-check on the {pack.gpu.name} it is for"
    )
    if gpu != pack.gpu:
        raise PackError(
            f"{pack.folder} is for {pack.gpu}, and this is {gpu}; `l2tune tune --from-pack {name}`"
            " proves and times its kernels here"
        )
    sources, wrong = _sources(pack)
    if wrong:
        raise PackError("; ".join(wrong))
    sources = _compilable(sources)
    cache_dir = settings.current().cache_dir
    pending, registry = Pending(cache_dir), Registry(cache_dir)
    valid = {r.key for r in registry.records() if judge(r, gpu, tools()) == "use"}
    for key, source in sources.items():
        if key not in valid:
            pending.put(key, source.text)
    waiting = [key for key in sources if key not in valid]
    now = waiting if limit is None else waiting[:limit]
    found: list[Record] = []
    refused: dict[GemmKey, str] = {}
    if now:
        _compile_all({key: sources[key] for key in now})
        with _only_one(pending, wait=True), _bench(device, budget_s) as bench:
            found, refused = _recheck_each(now, pending, bench)
    _tell_installed(found, refused, skipped=len(valid & sources.keys()),
                    left=len(waiting) - len(now), as_json=as_json)  # fmt: skip
    if refused:
        raise typer.Exit(1)


@app.command(hidden=True)
def recheck_wanted(device: options.Device = 0) -> None:
    """Re-check what calls have asked for; l2tune.matmul starts this in the background."""
    pending = Pending(settings.current().cache_dir)
    with _only_one(pending, wait=False) as alone:
        gpu = detect(device)
        if not alone or gpu is None or not pending.asked():
            return
        with _bench(device, _RECHECK_BUDGET_S) as bench:
            while asked := [key for key in pending.asked() if key.gpu == gpu]:
                _recheck_each(asked[:1], pending, bench)


def _chosen_gpu(name: str | None, found: list[Gpu]) -> Gpu:
    """The GPU whose records are wanted, of those that there are records of."""
    here = detect()
    if name is not None:
        found = [gpu for gpu in found if name in (gpu.slug, str(gpu))]
    elif here in found:
        return here
    distinct = sorted({str(gpu) for gpu in found})
    if len(distinct) != 1:
        raise InfrastructureError(
            f"needed records of one GPU, found {', '.join(distinct) or 'none'};"
            " name one with --gpu, or fill the cache with `l2tune tune`"
        )
    return found[0]


def _sources(pack: Pack) -> tuple[dict[GemmKey, KernelSource], list[str]]:
    """The kernel of each key, and what is wrong with the others."""
    sources: dict[GemmKey, KernelSource] = {}
    wrong: list[str] = []
    for entry in pack.entries:
        try:
            sources[entry.key] = pack.source(entry)
        except PackError as error:
            wrong.append(str(error))
    return sources, wrong


def _compilable(sources: dict[GemmKey, KernelSource]) -> dict[GemmKey, KernelSource]:
    """Those whose compiler is installed; says how many are not."""
    here = {key: source for key, source in sources.items() if compile.is_available(source)}
    if len(here) < len(sources):
        missing = len(sources) - len(here)
        say(
            f"{missing} keys are left out: their compiler, Triton, is not installed", style="yellow"
        )
    return here


def _compile_all(sources: dict[GemmKey, KernelSource]) -> _Compilations:
    """Screen and compile, each distinct kernel once, as many at a time as there are cores."""
    artifacts = Artifacts(settings.current().cache_dir)
    groups: dict[str, list[GemmKey]] = {}
    for key, source in sources.items():
        groups.setdefault(source.digest, []).append(key)

    def compile_group(keys: list[GemmKey]) -> _Compilations:
        return {key: compile_for(sources[key], key, artifacts) for key in keys}

    made: _Compilations = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress_bar() as progress:
        done = pool.map(compile_group, groups.values())
        for group in progress.track(done, total=len(groups), description="compiling"):
            made |= group
    return made


def _recheck_each(
    keys: Iterable[GemmKey], pending: Pending, bench: Bench
) -> tuple[list[Record], dict[GemmKey, str]]:
    """Re-check what waits for each key; one that is answered for waits no longer."""
    found: list[Record] = []
    refused: dict[GemmKey, str] = {}
    with progress_bar() as progress:
        for key in progress.track(list(keys), description="re-checking"):
            text = pending.get(key)
            if text is not None:
                outcome = recheck(text, key, bench=bench)
                if isinstance(outcome, Record):
                    found.append(outcome)
                else:
                    refused[key] = _why(outcome)
            pending.remove(key)
    return found, refused


@contextmanager
def _only_one(pending: Pending, *, wait: bool) -> Iterator[bool]:
    """Whether no other process re-checks for this cache; its clock would be disturbed."""
    with (private_directory(pending.directory) / "recheck.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _bench(device: int, budget_s: float) -> Bench:
    """A GPU without emulators: a pack's kernels have been on one where the pack was made."""
    return Bench.open(device=device, budget_s=budget_s, emulators=0)


def _why(failure: Failure) -> str:
    if isinstance(failure, CompileFailed):
        return f"does not compile ({failure.kind}): {failure.log.strip()[:200]}"
    return f"{failure.check}: {failure.finding}: {failure.detail}"


def _report(pack: Pack, *, as_json: bool, wrong: Iterable[str] = (), **facts: Any) -> None:
    found: dict[str, Any] = {
        "pack": str(pack.folder),
        "gpu": str(pack.gpu),
        "keys": len(pack.entries),
        "kernels": len(pack.kernels),
        "files": len({kernel.file for kernel in pack.kernels.values()}),
        **facts,
    }
    if as_json:
        print_json({**found, "wrong": list(wrong)})
        return
    tell(
        f"{pack.folder}: {found['keys']} keys, {found['kernels']} kernels in {found['files']} files"
        f" for {pack.gpu.name}"
    )
    if facts:
        tell(
            f"{facts['compiled']} kernels were compiled; {facts['same_machine_code']} keys have"
            " the very machine code that was timed"
        )
    for said in wrong:
        say(said, style="red")


def _tell_installed(
    found: list[Record], refused: dict[GemmKey, str], *, skipped: int, left: int, as_json: bool
) -> None:
    if as_json:
        reasons = [{"key": str(key), "reason": said} for key, said in refused.items()]
        rows = [results.row(record) for record in found]
        print_json({"rechecked": rows, "refused": reasons, "skipped": skipped, "left": left})
        return
    print_records("Re-checked", found)
    serving = sum(isinstance(record.outcome, Admitted) for record in found)
    tell(
        f"{serving} kernels serve, {len(found) - serving} are not faster than torch.matmul here,"
        f" {len(refused)} were refused; {skipped} keys had a valid record, {left} wait for a call"
    )
    for key, said in refused.items():
        say(f"{key.label}: {said}", style="red")
