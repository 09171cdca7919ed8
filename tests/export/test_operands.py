"""Where an exported program's operands start."""

from l2tune.export import operands
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey


def test_operands_start_where_the_key_s_alignment_class_says() -> None:
    key = GemmKey.dense(512, 512, 512, gpu=H200)
    assert operands.offset_elements(key.problem()) == 0
    unaligned = key.model_copy(update={"align": 4})
    assert operands.offset_elements(unaligned.problem()) == 2
