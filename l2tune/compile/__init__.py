"""KernelSource -> Compiled | CompileFailed: flattening, child compilers, inspection."""

from l2tune.compile.compiler import compile_kernel, compiler_version, is_available
from l2tune.compile.flatten import Origin, flatten, origins

__all__ = [
    "Origin", "compile_kernel", "compiler_version", "flatten", "is_available", "origins",
]  # fmt: skip
