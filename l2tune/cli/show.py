"""`l2tune show`: what the cache holds: records, estimates, refused kernels, missed products."""

from typing import Annotated, Any

import typer

from l2tune import settings
from l2tune.cli import keys as options
from l2tune.cli.output import Json, print_json, print_table, tell
from l2tune.cli.records import estimate_row, print_estimates, print_records
from l2tune.export import results
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CompileFailed, Refuted, Verified
from l2tune.spec.record import EstimatedRecord, Record
from l2tune.store import Registry, waiting_keys

_DETAIL_CHARACTERS = 160


def show(
    wanted_product: Annotated[
        str | None, typer.Argument(metavar="[KEY or MxNxK]", help="Only this product.")
    ] = None,
    estimates: Annotated[
        bool, typer.Option(help="Only what was estimated without a GPU, and never timed.")
    ] = False,
    refused: Annotated[bool, typer.Option(help="Kernels that were refused, and why.")] = False,
    wanted: Annotated[bool, typer.Option(help="Products that calls did not find.")] = False,
    as_json: Json = False,
) -> None:
    """Show the cache's records, or with one product all that is known of it.

    Estimates stand in a table of their own; with --json they are printed for --estimates only.
    """
    if refused + wanted + estimates > 1:
        raise typer.BadParameter("needed at most one of --estimates, --refused and --wanted")
    cache_dir = settings.current().cache_dir
    registry = Registry(cache_dir)
    matches = options.matcher(wanted_product)
    if refused:
        _show_refused([x for x in registry.refusals() if matches(x[0])], as_json=as_json)
    elif wanted:
        missed = [entry for entry in registry.wanted() if matches(entry[0])]
        _show_wanted(missed, registry.served_by_nearest(), as_json=as_json)
    else:
        guessed = [record for record in registry.estimates() if matches(record.key)]
        if estimates:
            _show_estimates(guessed, whole=wanted_product is not None, as_json=as_json)
            return
        found = [record for record in registry.records() if matches(record.key)]
        if found or not guessed or as_json:
            _show_records(found, whole=wanted_product is not None, as_json=as_json)
        if as_json:
            return
        if guessed:
            _show_estimates(guessed, whole=wanted_product is not None, as_json=False)
        if waiting := sum(map(matches, waiting_keys(cache_dir))):
            tell(f"{waiting} keys of packs wait for their re-check; `l2tune pack install` makes it")


def _show_estimates(found: list[EstimatedRecord], *, whole: bool, as_json: bool) -> None:
    if as_json and whole:
        print_json([record.model_dump(mode="json") for record in found])
    elif as_json:
        print_json([estimate_row(record) for record in found])
    else:
        print_estimates(found)
        for record in found if whole else []:
            print_table(f"{record.key}, estimated", ("", ""), _guessed_facts(record).items())


def _show_records(found: list[Record], *, whole: bool, as_json: bool) -> None:
    if as_json and whole:
        print_json([record.model_dump(mode="json") for record in found])
    elif as_json:
        print_json([{"key": str(record.key), **results.row(record)} for record in found])
    elif not found:
        tell("the cache holds no such record; `l2tune tune` makes them")
    else:
        for gpu in sorted({record.key.gpu.name for record in found}):
            print_records(gpu, [record for record in found if record.key.gpu.name == gpu])
        for record in found if whole else []:
            print_table(str(record.key), ("", ""), _facts(record).items())


def _facts(record: Record) -> dict[str, str]:
    """What a row has no room for."""
    timing = record.outcome.timing
    missing = ", ".join(timing.missing_baselines) or "none"
    return {
        **_proof(record.verified),
        "interval": f"{timing.gpu.lo:.2f} to {timing.gpu.hi:.2f} us",
        "host": f"{timing.host.us:.2f} us, torch {timing.torch_host.us:.2f} us",
        "missing baselines": missing,
        "clock, power": f"{timing.clock_mhz:.0f} MHz, {timing.power_w:.0f} W",
        **_provenance(record),
    }


def _guessed_facts(record: EstimatedRecord) -> dict[str, str]:
    """Likewise of an estimate: what it is made of, and what the emulator did not do."""
    terms = record.outcome.terms_us.items()
    notes = {check.note for check in record.verified.checks if check.note}
    return {
        **_proof(record.verified),
        "left out on the emulator": "; ".join(sorted(notes)) or "nothing",
        "estimate": ", ".join(f"{name} {us:.2f}" for name, us in terms) + " us, none measured",
        **_provenance(record),
    }


def _proof(verified: Verified) -> dict[str, str]:
    source = verified.compiled.source
    checks = ", ".join(
        f"{check.check} {check.examples} ({check.worst_ratio:.2f})" for check in verified.checks
    )
    return {
        "kernel": source.name,
        "target": f"{source.arch} {source.dtype} {source.layout} acc {source.acc}",
        "digest": source.digest,
        "checks (error / bound)": checks,
    }


def _provenance(record: Record | EstimatedRecord) -> dict[str, str]:
    origin = record.origin
    return {
        "origin": f"{origin.kind} {origin.source} {origin.model}".strip(),
        "made by": ", ".join(f"{name} {value}" for name, value in record.tools),
        "created": record.created,
    }


def _show_refused(
    found: list[tuple[GemmKey, str, Refuted | CompileFailed]], *, as_json: bool
) -> None:
    if as_json:
        print_json([_refusal_data(*entry) for entry in found])
        return
    rows = [_refusal_cells(_refusal_data(*entry), entry[0]) for entry in found]
    print_table("Refused", ("product", "kernel", "stage", "check", "finding", "why"), rows)


def _refusal_data(key: GemmKey, digest: str, verdict: Refuted | CompileFailed) -> dict[str, Any]:
    if isinstance(verdict, CompileFailed):
        what = {"stage": "compile", "check": "compiler", "finding": verdict.kind,
                "detail": verdict.log, "case": {}}  # fmt: skip
    else:
        what = verdict.model_dump(mode="json")
    return {"key": str(key), "digest": digest, **what}


def _refusal_cells(data: dict[str, Any], key: GemmKey) -> list[str]:
    line = " ".join(str(data["detail"]).split())[:_DETAIL_CHARACTERS]
    return [key.label, data["digest"][:12], data["stage"], data["check"], data["finding"], line]


def _show_wanted(
    found: list[tuple[GemmKey, int]], nearest: dict[GemmKey, str], *, as_json: bool
) -> None:
    served = [(key, count, nearest.get(key, "torch.matmul")) for key, count in found]
    if as_json:
        print_json([{"key": str(k), "calls": count, "served_by": by} for k, count, by in served])
        return
    rows = [(key.label, key.gpu.name, str(count), by) for key, count, by in served]
    print_table("Asked for and not found", ("product", "GPU", "calls", "served by"), rows)
