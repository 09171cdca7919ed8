#!/usr/bin/env python3
"""Compiles what a search would time, on a machine without a GPU.

    scripts/compile_ahead.py [--shapes FILE | --layout nn|nt|tn|tt] [--gpu h200|a100] [--count N]

The cache (L2TUNE_CACHE_DIR) can then be carried to a machine with the GPU, where `l2tune tune`
finds each cubin by its hash and compiles only what its measurements ask for besides.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from l2tune import compile, generate, settings  # noqa: A004
from l2tune.cli.keys import PRETENDED, grid_keys, read_shapes
from l2tune.cli.output import progress_bar, tell
from l2tune.spec.kernel import KernelSource
from l2tune.spec.outcome import Compiled
from l2tune.stages import source_for
from l2tune.store import Artifacts
from l2tune.store.rough import shipped_rough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=Path, help="CSV of products; the CUDA-L2 grid by default")
    parser.add_argument("--layout", default="nn", help="of the grid's products")
    parser.add_argument("--gpu", default="h200", choices=sorted(PRETENDED))
    parser.add_argument("--count", type=int, default=40, help="candidates of each product")
    options = parser.parse_args()
    gpu = PRETENDED[options.gpu]
    model = generate.fit(shipped_rough(gpu))  # what a search begins with
    if options.shapes is not None:
        keys = read_shapes(options.shapes, gpu)
    else:
        keys = grid_keys("cuda-l2", gpu, layout=options.layout)
    artifacts = Artifacts(settings.current().cache_dir)
    found: dict[str, KernelSource] = {}
    for key in keys:
        for source in generate.shortlist(key, model, count=options.count):
            flat = source_for(source.text, key)
            found[flat.digest] = flat
    with progress_bar() as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = progress.add_task("compiling", total=len(found))
        failed = []
        for source, result in zip(
            found.values(),
            pool.map(lambda source: compile.compile_kernel(source, artifacts), found.values()),
            strict=True,
        ):
            if not isinstance(result, Compiled):
                failed.append(f"{source.name}: {result.log}")
            progress.advance(task)
    tell(f"{len(found) - len(failed)} kernels for {len(keys)} products are compiled")
    for line in failed:
        tell(line)


if __name__ == "__main__":
    main()
