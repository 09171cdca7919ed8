"""Exported files compile: whole with nvcc, and their device half with NVRTC."""

import subprocess
from pathlib import Path

import pytest
import seeds

from l2tune.compile.compiler import include_folders
from l2tune.export import export, file_stem
from l2tune.spec.record import Record


def build(record: Record, folder: Path) -> Path:
    """Write an export and build it by the command in its first lines, without running it."""
    text = export(record)
    (folder / f"{file_stem(record)}.cu").write_text(text)
    command = text.splitlines()[3].removeprefix("#").partition("&&")[0]
    done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "warning" not in done.stderr
    return folder / file_stem(record)


@pytest.mark.nvcc
@pytest.mark.parametrize("make", [seeds.split_k, seeds.hopper])
def test_the_command_in_its_first_lines_builds_it(make, tmp_path: Path) -> None:
    program = build(make(), tmp_path)
    done = subprocess.run(
        [str(program)],
        env={"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(": found no GPU, needed one that runs code for sm_90a\n")


@pytest.mark.parametrize("make", [seeds.naive, seeds.split_k, seeds.hopper])
def test_the_same_file_compiles_with_nvrtc(make) -> None:
    from cuda.bindings import nvrtc

    options = ["-arch=sm_90a", "-std=c++17", *(f"-I{folder}" for folder in include_folders())]
    _, program = nvrtc.nvrtcCreateProgram(export(make()).encode(), b"x.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size + 1)  # never one byte: CPython shares those, and NVRTC writes into it
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    assert nvrtc.nvrtcGetCUBINSize(program)[1] > 0


def test_an_export_includes_nothing_of_torch_or_of_l2tune() -> None:
    for make in (seeds.naive, seeds.hopper):
        text = export(make())
        assert '#include "' not in text
        assert "torch/" not in text
