import random

import torch

from l2tune.measure import host, operands
from l2tune.spec.gpu import H200
from l2tune.spec.key import GemmKey


def test_every_path_is_called_equally_often_on_changing_operands(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    key = GemmKey(m=16, n=16, k=16, gpu=H200)
    sets = operands.build(key, count=4, seed=0, device="cpu")
    seen: list[int] = []

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(a.data_ptr())
        return torch.matmul(a, b)

    samples = host.host_samples_us(
        {"torch": product, "kernel": product}, sets, calls=40, rng=random.Random(0)
    )
    assert [len(times) for times in samples.values()] == [40, 40]
    assert min(min(times) for times in samples.values()) > 0
    assert len(set(seen)) == 4
