"""Timing -> Admitted | Declined: the rule for replacing `torch.matmul`, and nothing else."""

from l2tune.admit.rule import admit

__all__ = ["admit"]
