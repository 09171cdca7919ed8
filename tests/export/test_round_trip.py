"""What comes out of an exported file is the kernel that went in."""

import pytest
import samples
import seeds
from hypothesis import given
from hypothesis import strategies as st

from l2tune.errors import HeaderError
from l2tune.export import export, is_export, parse_export
from l2tune.export.regions import Regions, insert
from l2tune.spec.gpu import H200
from l2tune.spec.header import parse
from l2tune.spec.key import GemmKey
from l2tune.spec.record import Record

KEY = GemmKey.dense(512, 512, 512, gpu=H200)
EVERY = {"naive": seeds.naive, "split": seeds.split_k, "hopper": seeds.hopper,
         "triton": seeds.triton}  # fmt: skip


def source(record: Record):
    return record.outcome.timing.verified.compiled.source


@given(record=samples.records())
def test_parsing_an_export_gives_the_record_s_source(record: Record) -> None:
    text = export(record)
    assert is_export(text)
    assert not is_export(source(record).text)
    assert parse_export(text) == source(record)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_a_seed_s_export_parses_back_and_keeps_its_contract(make) -> None:
    record = make()
    text = export(record)
    assert parse_export(text) == source(record)
    backend, header = parse(text)
    assert backend == source(record).backend
    assert header.verified["key"] == str(record.key)
    assert header.model_copy(update={"verified": None}) == source(record).header


@given(
    marks=st.lists(
        st.sampled_from(
            [line for line in export(samples.record(KEY)).splitlines() if "----" in line]
            + ["// plain", "/*---l2tune", "---*/", '"quoted"']
        ),
        max_size=6,
    ),
    ending=st.sampled_from(["", "\n", "\n\n", " "]),
)
def test_marks_in_the_kernel_s_own_text_do_not_mislead(marks: list[str], ending: str) -> None:
    record = samples.record(KEY, samples.BODY + "".join(f"// {mark}\n" for mark in marks) + ending)
    assert parse_export(export(record)) == source(record)


def test_a_gpu_s_name_cannot_end_the_comment_that_holds_it() -> None:
    gpu = H200.model_copy(update={"name": 'x*/ int main() {} /*\n---*/ "\\ \U0001f600'})
    record = samples.record(GemmKey.dense(512, 512, 512, gpu=gpu))
    text = export(record)
    assert parse(text)[1].verified["gpu"] == gpu.name
    assert text.count("*/", 0, text.index("#ifndef")) == 1


def test_the_first_lines_hold_the_command_that_builds_and_runs_it() -> None:
    head = export(seeds.hopper()).splitlines()[:4]
    name = "512x768x512_b4_tn_float16_nvidia-h200_132sm"
    command = f"nvcc -std=c++17 -arch=sm_90a {name}.cu -o {name} && ./{name}"
    assert head[3] == f"#   {command}"


def test_a_kernel_that_claims_to_be_verified_already_is_refused() -> None:
    text = samples.cuda_file(launch=samples.LAUNCH + "[verified]\nus = 1\n")
    with pytest.raises(HeaderError, match="only exporting writes"):
        insert(text, Regions("", ""))


@pytest.mark.parametrize("mark", ["exported by", "the contract", "proven", "passes", "launcher"])
def test_a_file_without_one_of_its_regions_is_refused(mark: str) -> None:
    lines = export(samples.record(KEY)).splitlines(keepends=True)
    (index,) = [i for i, line in enumerate(lines) if "----" in line and mark in line]
    with pytest.raises(HeaderError, match="exported file: needed"):
        parse_export("".join(lines[:index] + lines[index + 1 :]))
