"""The hot path: `matmul` runs the kernel that the cache holds for a problem, else `torch.matmul`.

Nothing here compiles, verifies, times or tunes.
"""

from l2tune.dispatch.matmul import matmul, pinned, reset
from l2tune.dispatch.plan import DispatchWarning

__all__ = ["DispatchWarning", "matmul", "pinned", "reset"]
