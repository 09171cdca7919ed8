"""What the documents say of the cost model is what scripts/estimates.py found."""

import csv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_documents_quote_the_range_that_was_found() -> None:
    with (ROOT / "docs/results/nvidia-h200/estimates.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        ratio = float(row["estimate_us"]) / float(row["measured_us"])
        assert abs(ratio - float(row["estimate_over_measured"])) < 0.01
    ratios = sorted(row["estimate_over_measured"] for row in rows)
    said = f"{ratios[0]} to {ratios[-1]}"
    measuring = (ROOT / "docs/measuring.md").read_text()
    assert f"the {len(rows)} instances" in measuring
    assert f"estimate / measured is {said}" in measuring
    assert f"from {ratios[0]} to {ratios[-1]} of {len(rows)}" in " ".join(
        (ROOT / "README.md").read_text().split()
    )
