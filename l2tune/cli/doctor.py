"""`l2tune doctor`: what would stop l2tune from working here, and what to do about it."""

from typing import Annotated

import typer

from l2tune.cli import health
from l2tune.cli.output import Json, print_json, print_table, progress_bar, say, tell
from l2tune.dispatch import native
from l2tune.runtime.device import detect

Build = Annotated[
    bool, typer.Option("--build", help="First build the native path of l2tune.matmul.")
]


def doctor(build: Build = False, as_json: Json = False) -> None:
    """Check GPU, driver, compilers, libraries and cache, and say what to do where one is broken.

    Without a GPU the machine can only compile kernels, so only what that needs counts as broken.
    """
    if build:
        say(f"built {native.build()}; processes that start from now on use it")
    gpu = detect()
    findings = []
    with progress_bar() as progress:
        for check in progress.track(health.CHECKS, description="checking"):
            findings += check(gpu)
    broken = [finding for finding in findings if finding.state == "broken"]
    if as_json:
        print_json({"ok": not broken, "findings": [vars(finding) for finding in findings]})
    else:
        rows = [(f.state, f.what, f.found, f.to_do) for f in findings]
        print_table("l2tune doctor", ("state", "what", "found", "what to do"), rows)
        tell(f"{len(broken)} broken" if broken else "nothing stands in the way")
    if broken:
        raise typer.Exit(1)
