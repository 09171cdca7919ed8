"""Exported files build with nvcc and pass their own check on the GPU."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import TOOLS, timing

from l2tune.export import export, file_stem
from l2tune.spec.gpu import Gpu
from l2tune.spec.header import Origin
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Compiled, Verified
from l2tune.spec.record import Record

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]
CASES = [
    ("sm80/naive", (100, 99, 98), {"batch": 3, "layout": "tt"}, {}),
    ("sm80/mma_multistage", (512, 64, 16384), {"layout": "nt"}, {"SPLIT": 4}),
    ("sm80/mma_multistage", (1000, 1000, 1000), {"layout": "tn"}, {}),
    ("sm80/skinny", (8, 4096, 4096), {"layout": "nt"}, {"TILE_K": 256, "SPLIT": 4}),
    ("sm90a/wgmma_persistent", (4096, 4096, 4096), {}, {"CLUSTER": 2}),
    ("sm90a/wgmma_split", (512, 64, 16384), {}, {"SPLIT": 8}),
    ("sm90a/wgmma_persistent", (1000, 1000, 1000), {"dtype": "bfloat16"}, {"CLUSTER": 1}),
    ("sm90a/wgmma_persistent", (512, 512, 512), {"batch": 16, "layout": "tt"}, {}),
]


def record_of(compiled: Compiled, key: GemmKey) -> Record:
    timed = timing(key, verified=Verified(key=key, compiled=compiled, checks=()))
    return Record(
        key=key, outcome=Admitted(timing=timed, eager="kernel", graph="kernel"), origin=Origin(),
        tools=TOOLS, created="2026-11-30",
    )  # fmt: skip


def run(text: str, stem: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / f"{stem}.cu").write_text(text)
    command = text.splitlines()[3].removeprefix("#")
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("seed_id", "sizes", "options", "changes"), CASES)
def test_it_builds_and_passes_its_own_check(
    seed_id: str, sizes: tuple[int, int, int], options: dict[str, object],
    changes: dict[str, int], gpu: Gpu, compiled: Callable[..., Compiled], tmp_path: Path,
) -> None:  # fmt: skip
    key = GemmKey.dense(*sizes, gpu=gpu, **options)
    record = record_of(compiled(seed_id, key, **changes), key)
    done = run(export(record), file_stem(record), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS max error ratio 0.")
    assert f"us on {gpu.name}; tuned for {gpu.name}" in done.stdout
    assert "warning" not in done.stderr


def test_it_notices_a_kernel_that_is_wrong(
    gpu: Gpu, compiled: Callable[..., Compiled], tmp_path: Path
) -> None:
    key = GemmKey.dense(100, 99, 98, gpu=gpu)
    record = record_of(compiled("sm80/naive", key), key)
    text = export(record)
    wrong = text.replace("p < k; ++p", "p < k - 1; ++p")
    assert wrong != text
    done = run(wrong, file_stem(record), tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL max error ratio")
