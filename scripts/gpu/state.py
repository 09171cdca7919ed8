"""Packs what a search has found so far, without machine code.

    state.py CACHE_DIR FILE.tar.xz

Records, rough times, choices and proofs, and the texts of the kernels that were timed. Unpacked
over another machine's cache directory, the search goes on there; kernels are compiled again.
"""

import sys
import tarfile
from pathlib import Path

from l2tune.runtime.device import detect
from l2tune.store import Searches

DATABASES = ("records", "refusals", "searches", "proofs")


def main(root: Path, target: Path) -> None:
    """Write `target`."""
    gpu = detect()
    if gpu is None:
        sys.exit("found no GPU")
    texts = {one.text for ranked in Searches(root).all_ranked(gpu) for one in ranked.found}
    with tarfile.open(target, "w:xz", preset=1) as archive:
        for name in DATABASES:
            if (root / name).is_dir():
                archive.add(root / name, arcname=name)
        for digest in sorted(texts):
            path = root / "artifacts" / digest[:2] / digest
            if path.exists():  # of a search that another machine began, it may be missing
                archive.add(path, arcname=str(path.relative_to(root)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
