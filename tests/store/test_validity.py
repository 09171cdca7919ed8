"""The rule by which a record made elsewhere, or earlier, still holds."""

import pytest
from samples import TOOLS, record

from l2tune.spec.gpu import A100, H200, Gpu
from l2tune.spec.key import GemmKey
from l2tune.store import judge

RECORD = record(GemmKey.dense(64, 64, 64, gpu=H200))


def changed(base: Gpu = H200, **fields: object) -> Gpu:
    return base.model_copy(update=fields)


@pytest.mark.parametrize(
    ("gpu", "tools", "verdict"),
    [
        (H200, {}, "use"),
        (changed(capability=(8, 0)), {}, "ignore"),
        (changed(capability=(10, 0)), {}, "ignore"),
        (changed(capability=(8, 9)), {}, "ignore"),
        (changed(sms=114), {}, "ignore"),
        (changed(name="NVIDIA H200 NVL"), {}, "ignore"),
        (A100, {}, "ignore"),
        (A100, {"driver": "12.4"}, "ignore"),
        (H200, {"driver": "13.1"}, "recheck"),
        (H200, {"driver": "none"}, "recheck"),
        (H200, {"compiler": "nvidia-cuda-nvrtc 13.1.1"}, "recheck"),
        (H200, {"l2tune": "0.2.0"}, "recheck"),
        (H200, {"torch": "2.12"}, "recheck"),
    ],
)
def test_each_difference_has_its_stated_verdict(gpu, tools, verdict):
    assert judge(RECORD, gpu, TOOLS.model_copy(update=tools)) == verdict


def test_machine_code_for_another_target_is_ignored_whatever_the_key_says():
    ampere = record(GemmKey.dense(64, 64, 64, gpu=A100))
    forged = ampere.model_copy(update={"key": RECORD.key})
    assert judge(forged, H200, TOOLS) == "ignore"
