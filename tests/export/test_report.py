"""From a table of results to a page: its numbers are computed here a second time."""

import csv
import html.parser
import re
from pathlib import Path
from typing import Any

import pytest
import seeds
from hypothesis import given
from samples import interval, record, records

from l2tune.errors import CacheError, UnsupportedProblemError
from l2tune.export import machine, published, results, summary, timed
from l2tune.export.report import report
from l2tune.spec.gpu import H200
from l2tune.spec.record import Record

PLAIN = {
    "batch": 1, "layout": "nn", "dtype": "float16", "backend": "cuda", "kernel": "sm80/x[A=1]",
    "host_us": 30, "torch_host_us": 33, "eager_choice": "kernel", "graph_choice": "kernel",
    "clock_mhz": 1700, "power_w": 500, "run_id": "r", "verified_examples": 10, "floor_us": 8,
}  # fmt: skip
TIMES = [
    # m, n, k, kernel's time, torch's, cuBLAS's, cuBLASLt autotuned, Triton's
    (64, 64, 8192, 10.0, 20.0, 18.0, 12.0, 15.0),
    (4096, 4096, 64, 40.0, 50.0, "", "", 39.5),
    (8192, 8192, 8192, 1600.0, 1700.0, 1650.0, 1640.0, 1800.0),
    (1000, 1000, 1000, 12.0, 10.0, 10.0, 9.5, 11.0),
]


def line(m: int, n: int, k: int, us: float, torch_us: float, *libraries: Any) -> dict[str, Any]:
    """A row whose times are known to 1 %; what is slower than torch is not served."""
    names = ("cublas_us", "cublaslt_autotuned_us", "triton_us")
    choice = {} if us < torch_us else {"graph_choice": "torch", "eager_choice": "torch"}
    return {
        "m": m, "n": n, "k": k, **PLAIN, **choice, "us": us, "us_lo": us * 0.99,
        "us_hi": us * 1.01, "torch_us": torch_us, "torch_us_lo": torch_us * 0.99,
        "torch_us_hi": torch_us * 1.01, **dict(zip(names, libraries, strict=True)),
        "cublaslt_heuristic_us": "",
    }  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


@pytest.fixture
def rows(tmp_path: Path) -> list[timed.Row]:
    return timed.read([write(tmp_path / "x.csv", [line(*times) for times in TIMES])])


class Page(html.parser.HTMLParser):
    """What a page holds: tags, tables as lists of rows, addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.addresses: list[str] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for name, v in attrs if name in ("href", "src", "xlink:href")]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        self._cell = tag in ("td", "th")
        if self._cell:
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[-1][-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._cell = False


def values(rows: list[timed.Row]) -> dict[str, str]:
    return {line.what: line.value for line in summary.summarise(rows)}


def test_the_summary_s_means_are_those_of_the_times(rows: list[timed.Row]) -> None:
    found = values(rows)
    # what is served: 10, 40, 1600 and torch's 10
    assert found["torch.matmul / l2tune"] == f"{(2 * 1.25 * 1.0625 * 1) ** (1 / 4):.3f}"
    best = (12 / 10) * (39.5 / 40) * (1640 / 1600) * (9.5 / 10)
    assert found["best of cuBLAS, cuBLASLt autotuned, Triton / l2tune"] == f"{best**0.25:.3f}"
    alone = 2 * 1.25 * 1.0625 * (10 / 12)
    assert found["torch.matmul / kernel, served or not"] == f"{alone**0.25:.3f}"
    floor = (10 / 8) * (40 / 8) * (1600 / 8) * (10 / 8)
    assert found["l2tune / floor"] == f"{floor**0.25:.3f}"
    host = (1.1 * 1.1 * 1.1 * 1) ** 0.25
    assert found["torch.matmul / l2tune, host included, eager calls"] == f"{host:.3f}"
    assert found["torch.matmul / l2tune, m and n <= 512, k >= 4096"] == "2.000"
    assert found["torch.matmul / l2tune, k <= 256, m * n >= 2^22"] == "1.250"
    assert found["cuBLAS / l2tune, 8192^3"] == f"{1650 / 1600:.3f}"
    assert found["cuBLAS / l2tune, 16384^3"] == "-"


def test_the_summary_counts_beyond_the_noise(rows: list[timed.Row]) -> None:
    found = values(rows)
    assert found["kernels slower than torch.matmul beyond the noise"] == "1 (25%)"
    assert found["of those, served in graphs"] == "0 (0%)"
    # the second is inside Triton's 39.5, the fourth is slower than torch
    won = "won by raw CUDA: beats torch.matmul and Triton beyond its interval"
    assert found[won] == "2 (50%)"


def test_a_page_needs_nothing_but_itself(rows: list[timed.Row]) -> None:
    text = report(rows, command="l2tune report <x>", facts={"GPU": "H200 & co"}, gpu=H200)
    page = Page(text)
    assert page.tags.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses), page.addresses
    assert not re.search(r"@import|url\((?!#)", text)
    assert "l2tune report &lt;x&gt;" in text
    assert "H200 &amp; co" in text
    assert report(rows, command="l2tune report <x>", facts={"GPU": "H200 & co"}, gpu=H200) == text


def test_a_page_shows_a_map_for_each_k_and_the_products_in_order(rows: list[timed.Row]) -> None:
    text = report(rows, command="", facts={})
    assert all(f">k = {k}<" in text for k in (64, 1000, 8192))
    summary_table, best, worst, facts, every = Page(text).tables
    assert ["torch.matmul / l2tune, k <= 256, m * n >= 2^22", "1.250", "1"] in summary_table
    order = ["64x64x8192", "4096x4096x64", "8192x8192x8192", "1000x1000x1000"]
    assert [row[0] for row in best[1:]] == order
    assert [row[0] for row in worst[1:]] == order[::-1]
    assert len(every) == 5
    assert dict(zip(best[0], best[1], strict=True))["torch / kernel"] == "2.000"
    assert ["machine", "not in the table of results"] in facts


def test_a_published_table_stands_beside_ours(rows: list[timed.Row], tmp_path: Path) -> None:
    (tmp_path / "them.csv").write_text(
        "mnk,torch.matmul,cuBLAS-tn,cuBLAS-max,cuBLASLt-auto-tuning-max\n"
        "64_64_8192,1.5,9,1.1,1.3\n1000_1000_1000,1.2,9,1.0,\n1_2_3,9,9,9,9\n"
    )
    them = published.read(tmp_path / "them.csv")
    assert them.speedups[64, 64, 8192] == {"torch": 1.5, "cublas": 1.1, "cublaslt_autotuned": 1.3}
    over_torch, over_cublas, over_lt = summary.beside(rows, them)
    means = f"{(2.0 * 1.0) ** 0.5:.3f}", f"{(1.5 * 1.2) ** 0.5:.3f}"
    assert over_torch == ("torch.matmul", *means, "50%", 2)
    assert over_cublas[:2] == ("cuBLAS", f"{(1.8 * 1.0) ** 0.5:.3f}")
    assert over_lt == ("cuBLASLt autotuned", "1.200", "1.300", "0%", 1)
    page = Page(report(rows, command="", facts={}, published=[them]))
    assert page.tables[1][1] == ["torch.matmul", *means, "50%", "2"]
    assert page.tables[-1][1][-1] == "1.500"


def test_a_published_table_may_be_plain_sizes_and_speed_ups(tmp_path: Path) -> None:
    (tmp_path / "them.csv").write_text("m,n,k,speedup\n64,128,256,1.25\n")
    assert published.read(tmp_path / "them.csv").speedups == {(64, 128, 256): {"torch": 1.25}}


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "mnk,torch.matmul\n64_64,1\n", "m,n,k\n1,2,3\n"])
def test_what_is_no_published_table_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "them.csv").write_text(text)
    with pytest.raises(CacheError, match="needed columns mnk,torch.matmul"):
        published.read(tmp_path / "them.csv")


def test_of_two_runs_of_a_product_the_later_counts(tmp_path: Path) -> None:
    first, second = line(*TIMES[0]), line(*TIMES[0])
    path = write(tmp_path / "x.csv", [first, {**second, "us": 9.0, "us_lo": 8.9}])
    (row,) = timed.read([path])
    assert row.gpu.us == 9.0


def test_a_table_of_something_else_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("m,n\n1,2\n")
    with pytest.raises(CacheError, match="no row of results"):
        timed.read([tmp_path / "x.csv"])
    with pytest.raises(UnsupportedProblemError, match="no row"):
        report([], command="", facts={})


@given(records())
def test_a_written_row_is_read_back(record: Record) -> None:
    timing = record.outcome.timing
    row = timed.from_line(results.row(record))
    assert (row.m, row.n, row.k, row.kernel) == (
        record.key.m, record.key.n, record.key.k, timing.verified.compiled.source.name
    )  # fmt: skip
    assert abs(row.gpu.us - timing.gpu.us) < 0.001
    assert row.server is None


def test_peers_and_calls_at_random_gaps_have_columns_of_their_own(tmp_path: Path) -> None:
    one = record(seeds.naive().key)
    timing = one.outcome.timing
    baselines = {**timing.baselines, "peer_them": interval(1100.0)}
    server = {"kernel": interval(1010.0), "torch": interval(1300.0), "peer_them": interval(990.0)}
    changed = timing.model_copy(update={"baselines": baselines, "server": server})
    one = one.model_copy(update={"outcome": one.outcome.model_copy(update={"timing": changed})})
    cells = results.row(one, peers=["peer_them", "peer_wrong"])
    results.append_rows(tmp_path / "x.csv", [cells], columns=list(cells))
    assert (cells["peer_them_us"], cells["peer_wrong_us"]) == ("1100.000", "")
    assert (cells["server_us"], cells["torch_server_us"]) == ("1010.000", "1300.000")
    assert cells["cublaslt_autotuned_server_us"] == ""
    (row,) = timed.read([tmp_path / "x.csv"])
    assert row.libraries == {"peer_them": 1100.0}
    assert row.server == 1010.0
    assert row.server_baselines == {"torch": 1300.0, "peer_them": 990.0}
    found = values([row])
    assert found["torch.matmul / kernel, calls at random gaps"] == f"{1300 / 1010:.3f}"
    assert found["peer_them / l2tune"] == "1.100"


def test_a_table_s_machine_is_written_beside_it(tmp_path: Path) -> None:
    assert machine.read(tmp_path / "x.csv") is None
    results.append(tmp_path / "x.csv", [seeds.hopper()])
    found = machine.read(tmp_path / "x.csv")
    assert found is not None
    assert found.gpu == seeds.hopper().key.gpu
    assert found.facts()["torch"] == seeds.hopper().tools.torch
    machine.path_beside(tmp_path / "x.csv").write_text("{}")
    with pytest.raises(CacheError, match=r"x\.machine\.json"):
        machine.read(tmp_path / "x.csv")
