"""A kernel's proof counts for what it was made with, and for nothing else."""

import pytest
from samples import TOOLS, verified

from l2tune.errors import CacheWarning
from l2tune.spec.gpu import A100, H200
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import CheckPassed
from l2tune.store import KernelProof, Proofs

COMPILED = verified(GemmKey.dense(64, 64, 64, gpu=H200)).compiled
CHECKS = (CheckPassed(check="integers", examples=40, seed=0),)
PROOF = KernelProof(checks=CHECKS, tools=TOOLS, max_examples=40)


@pytest.fixture
def proofs(cache_dir):
    found = Proofs(cache_dir)
    found.put(COMPILED, H200, PROOF)
    return found


def test_a_proof_is_found_again_by_another_process(proofs, cache_dir):
    again = Proofs(cache_dir)
    assert again.get(COMPILED, H200, tools=TOOLS, max_examples=40) == CHECKS
    assert again.get(COMPILED, H200, tools=TOOLS, max_examples=5) == CHECKS


@pytest.mark.parametrize("tool", ["l2tune", "compiler", "driver", "torch"])
def test_it_does_not_count_with_other_tools(tool, proofs):
    other = TOOLS.model_copy(update={tool: "another"})
    assert proofs.get(COMPILED, H200, tools=other, max_examples=40) is None


def test_it_does_not_count_for_another_gpu_other_code_or_more_examples(proofs):
    rebuilt = COMPILED.model_copy(update={"cubins": ("1" * 64,)})
    mig = H200.model_copy(update={"sms": 16})
    assert proofs.get(rebuilt, H200, tools=TOOLS, max_examples=40) is None
    assert proofs.get(COMPILED, A100, tools=TOOLS, max_examples=40) is None
    assert proofs.get(COMPILED, mig, tools=TOOLS, max_examples=40) is None
    assert proofs.get(COMPILED, H200, tools=TOOLS, max_examples=41) is None


def test_what_cannot_be_read_is_missing_with_a_warning(proofs):
    (name,) = proofs._database.names("proof/")
    proofs._database.put(name, '{"checks": []')
    with pytest.warns(CacheWarning, match="made again"):
        assert proofs.get(COMPILED, H200, tools=TOOLS, max_examples=40) is None
