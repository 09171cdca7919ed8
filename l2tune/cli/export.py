"""`l2tune export`: write the cache's kernels as self-contained files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from l2tune import settings
from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, progress_bar, tell
from l2tune.errors import CacheError, InfrastructureError
from l2tune.export import describe, file_stem
from l2tune.export import export as export_text
from l2tune.runtime.device import detect
from l2tune.spec.outcome import Admitted
from l2tune.spec.record import EstimatedRecord, Record
from l2tune.store import Registry
from l2tune.store.files import write_whole


def export(
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the files go.")
    ] = Path("exported"),
    key: Annotated[str | None, typer.Option(help="Only the record for this key.")] = None,
    shape: options.Shape = None,
    estimates: Annotated[
        bool, typer.Option(help="Those that were estimated without a GPU, and never timed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the cache's kernels as self-contained files that build, check and time themselves.

    All that beat torch.matmul on this machine's GPU (of any GPU, on a machine without one); or
    those of a key or shape, whether they beat it or not. A JSON file beside each describes it.
    With --estimates, in their place those that were proven on the emulator; their files say so.
    """
    if key is not None and shape is not None:
        raise typer.BadParameter("needed at most one of --key and --shape")
    asked = key if shape is None else "x".join(map(str, shape))
    registry = Registry(settings.current().cache_dir)
    chosen = _estimated(asked, registry) if estimates else _choose(asked, registry)
    if not chosen:
        what = "estimate" if estimates else "kernel"
        others = "" if estimates else ", --estimates exports what was never timed"
        raise InfrastructureError(
            f"the cache holds no {what} for {asked or 'this machine'}; `l2tune show` lists what it"
            f" holds, `l2tune tune` makes more{others}"
        )
    with progress_bar() as progress:
        written = [
            _write(record, folder) for record in progress.track(chosen, description="exporting")
        ]
    if as_json:
        print_json(
            [{"key": str(r.key), "file": str(p)} for r, p in zip(chosen, written, strict=True)]
        )
        return
    for path in written:
        tell(str(path))


def _estimated(asked: str | None, registry: Registry) -> list[Record | EstimatedRecord]:
    matches = options.matcher(asked)
    return [record for record in registry.estimates() if matches(record.key)]


def _choose(asked: str | None, registry: Registry) -> list[Record | EstimatedRecord]:
    matches = options.matcher(asked)
    gpu = detect()
    found = [record for record in registry.records() if matches(record.key)]
    if asked is None:
        found = [record for record in found if isinstance(record.outcome, Admitted)]
    if gpu is not None and not (asked or "").startswith("gemm/"):
        found = [record for record in found if record.key.gpu == gpu]
    return list(found)


def _write(record: Record | EstimatedRecord, folder: Path) -> Path:
    backend = record.verified.compiled.source.backend
    path = folder / f"{file_stem(record)}.{'cu' if backend == 'cuda' else 'py'}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(f"cannot make {folder}: {error.strerror}; name another folder") from None
    write_whole(path, export_text(record).encode())
    write_whole(path.with_suffix(".json"), json.dumps(describe(record), indent=2).encode())
    return path
