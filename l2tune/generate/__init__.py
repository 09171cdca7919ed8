"""GemmKey -> kernel files worth trying: seeds and their instances, CUDA and Triton.

Nothing here compiles or runs anything.
"""

from l2tune.generate.cost import estimate_us
from l2tune.generate.fitted import Fitted
from l2tune.generate.seeds import include_dir, seed_text, seed_texts, seeds_digest
from l2tune.generate.space import candidates, completed, fit, shortlist

__all__ = [
    "Fitted", "candidates", "completed", "estimate_us", "fit", "include_dir", "seed_text",
    "seed_texts", "seeds_digest", "shortlist",
]  # fmt: skip
