"""Rows of a table of results."""

import csv
from pathlib import Path

import pytest
import seeds
from samples import interval

from l2tune.errors import CacheError
from l2tune.export import results
from l2tune.spec.outcome import Declined

HEADER = (
    "m,n,k,batch,layout,dtype,backend,kernel,us,us_lo,us_hi,torch_us,torch_us_lo,torch_us_hi,"
    "cublas_us,cublaslt_heuristic_us,cublaslt_autotuned_us,triton_us,floor_us,host_us,"
    "torch_host_us,eager_choice,graph_choice,clock_mhz,power_w,run_id,verified_examples"
)


def test_a_row_holds_what_the_record_says() -> None:
    record = seeds.hopper()
    timing = record.outcome.timing
    baselines = {**timing.baselines, "cublaslt_autotuned": interval(900.0)}
    timed = timing.model_copy(update={"baselines": baselines, "clock_mhz": 1755.0})
    record = record.model_copy(
        update={"outcome": record.outcome.model_copy(update={"timing": timed})}
    )
    row = results.row(record)
    assert ",".join(row) == HEADER
    assert (row["m"], row["n"], row["k"], row["batch"]) == ("512", "768", "512", "4")
    assert (row["us"], row["torch_us_hi"]) == ("1000.000", "1212.000")
    assert (row["cublas_us"], row["cublaslt_autotuned_us"]) == ("", "900.000")
    assert (row["eager_choice"], row["graph_choice"]) == ("torch", "kernel")
    assert (row["clock_mhz"], row["verified_examples"]) == ("1755", "2")


def test_a_declined_kernel_s_row_says_that_torch_runs() -> None:
    record = seeds.naive()
    outcome = Declined(timing=record.outcome.timing, reason="slower")
    row = results.row(record.model_copy(update={"outcome": outcome}))
    assert (row["eager_choice"], row["graph_choice"]) == ("torch", "torch")


def test_rows_are_appended_below_one_header(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    results.append(path, [seeds.naive()])
    results.append(path, [seeds.hopper(), seeds.triton()])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert path.read_text().splitlines()[0] == HEADER
    assert [row["backend"] for row in rows] == ["cuda", "cuda", "triton"]


def test_a_file_of_other_columns_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(CacheError, match="its columns are a,b"):
        results.append(path, [seeds.naive()])
    assert path.read_text() == "a,b\n1,2\n"


def test_a_folder_that_is_missing_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="No such file or directory; name another"):
        results.append(tmp_path / "missing" / "x.csv", [seeds.naive()])
