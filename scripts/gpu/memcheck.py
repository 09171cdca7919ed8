"""Run each distinct kernel of a pack under compute-sanitizer's memcheck.

    python scripts/gpu/memcheck.py PACK RESULT.csv RESULT.log

Starts itself again under the tool, which ends no process at an error, and counts what it says while
each kernel runs. Kernels run on the problems that the gate emulates, without torch's caching
allocator, so that each operand is an allocation of its own.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

MARK = "l2tune-kernel "
COLUMNS = ("kernel", "layout", "dtype", "cases", "errors", "first")


def main(pack: str, result: Path, log: Path) -> int:
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}
    inner = subprocess.Popen(
        ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no",
         sys.executable, __file__, "inside", pack],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    assert inner.stdout is not None
    found: list[tuple[list[str], list[str]]] = []  # of each kernel: its words, and its errors
    with log.open("w") as kept, result.open("w", newline="") as file:
        for line in inner.stdout:
            kept.write(line)
            if line.startswith(MARK):
                found.append((line.removeprefix(MARK).split(), []))
            elif found and line.startswith(("========= Invalid", "========= Error", "failed ")):
                found[-1][1].append(line.strip("= \n"))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([*words, len(errors), *(errors[:1] or [""])] for words, errors in found)
    status = inner.wait()
    wrong = [(words[0], errors) for words, errors in found if errors]
    for kernel, errors in wrong:
        print(f"{kernel}: {len(errors)} errors: {errors[0]}")
    print(f"{len(found)} kernels, {len(wrong)} with errors; the tool ended with {status}")
    return 1 if wrong or status else 0


def inside(name: str) -> None:
    """What runs under the tool."""
    from l2tune import settings
    from l2tune.runtime.executable import Executable
    from l2tune.runtime.processor import CudaProcessor
    from l2tune.spec.outcome import Compiled
    from l2tune.stages import compile_for, source_for
    from l2tune.store import Artifacts, Pack
    from l2tune.store.files import private_directory
    from l2tune.store.pack import find
    from l2tune.verify.emulated import emulated_cases
    from l2tune.verify.trial import Bench, KernelFailed

    pack = Pack.read(find(name))
    artifacts = Artifacts(private_directory(settings.current().cache_dir))
    done = set()
    for entry in pack.entries:
        kernel = (entry.kernel, entry.key.layout, entry.key.dtype)
        if kernel in done:
            continue
        done.add(kernel)
        source = source_for(pack.source(entry).text, entry.key)
        compiled = compile_for(source, entry.key, artifacts)
        if not isinstance(compiled, Compiled):
            print(f"{source.name} did not compile")
            continue
        executable = Executable(compiled, artifacts)
        bench = Bench(CudaProcessor(executable), entry.key.gpu, launch_timeout_s=60.0)
        cases = emulated_cases(source, entry.key, entry.key.gpu, seed=0)
        print(f"{MARK}{source.name} {entry.key.layout} {entry.key.dtype} {len(cases)}")
        for case in cases:
            try:
                bench.attempt(case)
            except KernelFailed as failure:
                print(f"failed {case}: {failure}")


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        inside(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
