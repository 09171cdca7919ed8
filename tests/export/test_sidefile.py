"""The JSON beside an export says what another program needs to launch the kernel."""

import json
import re

import samples
import seeds
from hypothesis import given

from l2tune.export import describe, file_stem
from l2tune.spec.record import Record


def test_it_states_launch_target_rules_and_licence() -> None:
    data = json.loads(json.dumps(describe(seeds.hopper())))
    (launch,) = data["launches"]
    assert launch["function"] == "gemm"
    assert launch["grid"] == [96, 1, 1]
    assert launch["block"] == [384, 1, 1]
    assert launch["cluster"] == [2, 1, 1]
    assert launch["smem_bytes"] == 4 * 128 * (128 + 128) + 34816
    assert data["functions"] == ["gemm"]
    assert data["arch"] == "sm_90a"
    assert "align >= 16" in data["requires"]
    assert (data["dtype"], data["layout"], data["accumulate"]) == ("float16", "tn", "float32")
    assert data["licence"] == "Apache-2.0"
    assert [table["operand"] for table in data["tensor_maps"]] == ["a", "b", "c"]


@given(record=samples.records())
def test_a_file_s_name_is_safe_in_a_shell(record: Record) -> None:
    assert re.fullmatch(r"[0-9][A-Za-z0-9._-]*", file_stem(record))


def test_a_model_s_kernel_does_not_get_our_licence() -> None:
    record = seeds.naive()
    origin = record.origin.model_copy(update={"kind": "llm"})
    assert "author" in describe(record.model_copy(update={"origin": origin}))["licence"]
