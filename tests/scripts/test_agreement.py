"""scripts/agreement.py: the covering set, its committed rows, and how results are compared."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from l2tune import generate
from l2tune.runtime.emulator.processor import EmulatedProcessor
from l2tune.spec.header import parse

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import agreement  # noqa: E402
import covering_set  # noqa: E402
from covering_set import Entry  # noqa: E402

FAMILIES = sorted(set(generate.seed_texts()) - set(covering_set.LEFT_OUT))
CUDA_SEEDS = ("sm80/naive", "sm80/mma_multistage", "sm90a/wgmma_persistent")


@pytest.fixture(scope="module")
def drawn() -> list[Entry]:
    return covering_set.covering_set()


@pytest.fixture(scope="module")
def gpu_side() -> ModuleType:
    """scripts/gpu/agreement.py; it needs a GPU only when it runs."""
    spec = importlib.util.spec_from_file_location("gpu_side", SCRIPTS / "gpu" / "agreement.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_family_dtype_layout_and_kind_of_size_is_drawn(drawn: list[Entry]) -> None:
    found = {(e.family, e.dtype, e.layout, e.ragged) for e in drawn}
    kinds = [kind for kind in covering_set.RAGGED if kind != "waves"]
    wanted = set(itertools.product(
        FAMILIES, covering_set.DTYPES, covering_set.LAYOUTS, kinds
    ))  # fmt: skip
    persistent = (
        "sm80/mma_streamk", "sm90a/wgmma_persistent", "sm90a/wgmma_streamk", "triton/matmul",
    )  # fmt: skip
    wanted |= set(itertools.product(
        persistent, covering_set.DTYPES, covering_set.LAYOUTS, ["waves"]
    ))  # fmt: skip
    assert found == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_of_each_tunable_and_every_class_of_values_is_drawn(
    family: str, drawn: list[Entry]
) -> None:
    mine = [entry for entry in drawn if entry.family == family]
    offered = parse(generate.seed_text(family))[1].tune
    assert {name: {e.tunables[name] for e in mine} for name in offered} == {
        name: set(values) for name, values in offered.items()
    }
    for dtype in covering_set.DTYPES:
        met = {entry.case.values for entry in mine if entry.dtype == dtype}
        assert met == set(covering_set.VALUES)


def test_the_committed_rows_are_those_that_are_drawn(drawn: list[Entry]) -> None:
    assert [Entry.of_row(row) for row in agreement.read(agreement.EMULATED)] == drawn


@pytest.mark.parametrize("family", CUDA_SEEDS)
def test_emulated_again_a_row_has_its_committed_hash(
    family: str, gpu_side: ModuleType, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(
        row for row in agreement.read(agreement.EMULATED)
        if row["family"] == family and row["ragged"] == "tiny"
    )  # fmt: skip
    entry, artifacts = Entry.of_row(row), agreement.Artifacts(cache_dir)
    monkeypatch.setattr(agreement, "artifacts", lambda: artifacts)
    processor = EmulatedProcessor(agreement.build(entry), artifacts)
    found, _ = gpu_side.run_row(row, entry, processor)
    assert found["bits_equal"] == found["same_ptx"] == found["same_operands"] == "yes"


@pytest.mark.parametrize(
    ("ours", "theirs", "differing", "worst"),
    [
        ([1.0, 2.0], [1.0, 2.0], "0", "0"),
        ([1.0, 2.0], [1.0 + 2**-10, 2.0 - 2**-9], "2", "2"),
        ([0.0], [-0.0], "1", "0"),
        ([2.0**-24], [-(2.0**-24)], "1", "2"),
        ([65504.0], [torch.inf], "1", "1"),
        ([torch.nan, 1.0], [torch.nan, 1.0], "0", "0"),
        ([torch.nan], [1.0], "1", "inf"),
    ],
)
def test_results_are_apart_by_the_steps_between_neighbours(
    ours: list[float], theirs: list[float], differing: str, worst: str
) -> None:
    pair = (torch.tensor(values, dtype=torch.float16) for values in (ours, theirs))
    assert agreement.compare(*pair) == {"differing": differing, "worst_ulp": worst}


def test_the_table_in_the_document_is_up_to_date() -> None:
    assert agreement.write_table(check=True) == 0


def test_the_table_counts_the_rows_that_agree(drawn: list[Entry]) -> None:
    row = drawn[0].as_row() | {"values": "normal", "emulated_ratio": "0.5", "device_ratio": "0.75"}
    rows = [
        row | {"bits_equal": "yes", "worst_ulp": "0"}, row | {"bits_equal": "no", "worst_ulp": "3"},
    ]  # fmt: skip
    last = agreement.table(rows).splitlines()[-1]
    assert last.startswith(f"| `{drawn[0].family}` | 1 of 2 | 0 of 0 |")
    assert last.endswith("| 1 of 2 | 3 | 0.50 | 0.75 |")
