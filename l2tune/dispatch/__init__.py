"""The hot path: `matmul` runs the kernel that the cache holds for a problem, else `torch.matmul`.

Nothing here compiles, verifies, times or tunes a kernel.
"""

from l2tune.dispatch.matmul import Pinned, matmul, reset, serve_natively
from l2tune.dispatch.native import NativeWarning
from l2tune.errors import DispatchWarning

matmul = serve_natively(matmul)

__all__ = ["DispatchWarning", "NativeWarning", "Pinned", "matmul", "reset"]
