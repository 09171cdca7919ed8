"""What scripts/gpu/nearest.py draws and concludes; the clock is the GPU's."""

import csv
import sys
from pathlib import Path

import pytest
import tuned

from l2tune.generate.nearest import Nearest
from l2tune.spec.gpu import H200

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "gpu"
sys.path.insert(0, str(SCRIPTS))

import nearest as script  # noqa: E402
import off_grid  # noqa: E402
from off_grid import JUDGED_BY, LEARNED_FROM, draw  # noqa: E402


@pytest.mark.parametrize("seed", [JUDGED_BY, LEARNED_FROM])
def test_the_same_shapes_are_drawn_each_time_and_a_third_is_ragged(seed):
    keys = list(draw(H200, layout="nn", dtype="float16", seed=seed))
    assert keys == list(draw(H200, layout="nn", dtype="float16", seed=seed))
    sizes = [(key.m, key.n, key.k) for key in keys]
    assert len(set(sizes)) > 190
    assert sum(any(x % 8 for x in three) for three in sizes) == 66
    assert all(1 <= x <= 16384 for three in sizes for x in three)
    assert max(key.bytes_moved for key in keys) <= 2e9
    assert {key.align for key in keys} >= {2, 16}


def test_hardly_any_shape_that_is_learned_from_is_judged_by():
    learned, judged = (
        {(key.m, key.n, key.k) for key in draw(H200, layout="nn", dtype="float16", seed=seed)}
        for seed in (LEARNED_FROM, JUDGED_BY)
    )
    assert len(learned & judged) <= 2
    with (SCRIPTS / "off_grid.csv").open(newline="") as file:
        assert {tuple(int(row[x]) for x in "mnk") for row in csv.DictReader(file)} == learned
    assert off_grid.COUNT == 200


def timed(us: float, torch_us: float) -> dict[str, str]:
    found = {"error_ratio": "0.5"}
    for name, x in (("us", us), ("torch_us", torch_us)):
        found |= {name: f"{x}", f"{name}_lo": f"{0.99 * x}", f"{name}_hi": f"{1.01 * x}"}
    return found


def test_a_row_says_what_the_model_said_and_the_summary_what_came_of_it(tmp_path):
    keys = list(draw(H200, layout="nn", dtype="float16", seed=JUDGED_BY))
    sure = Nearest(tuned.records(torch_off=lambda _: 9.0))
    doubting = Nearest(tuned.records(torch_off=lambda _: 0.5))
    key = next(key for key in keys if key.align == 16)
    rows = [
        script.decided(key, sure.choose(key)) | timed(1.0, 4.0),
        script.decided(key, sure.choose(key)) | timed(2.0, 1.0),
        script.decided(key, doubting.choose(key)) | timed(1.0, 2.0),
        script.decided(key, None),
    ]
    assert [row["choice"] for row in rows] == ["kernel", "kernel", "torch", "torch"]
    assert float(rows[0]["predicted_torch_us"]) > float(rows[0]["predicted_us"])
    path = tmp_path / "nearest.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, script.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    assert script.read(path) == rows
    said = script.summary(rows)
    assert "4 shapes: 75.0 % at least as fast" in said
    assert "geometric mean 1.189; 2 served, geometric mean 1.414, 1 of them slower" in said
    assert "1 doubted, 1 of them faster" in said
