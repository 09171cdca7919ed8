"""The exceptions l2tune raises: the caller's faults and the machine's.

A kernel's own fault is no exception but a value (`CompileFailed`, `Refuted` in `l2tune.spec`).
"""


class L2TuneError(Exception):
    """Base of every exception raised by l2tune itself."""


class HeaderError(L2TuneError, ValueError):
    """A kernel file's contract does not parse, or says something impossible."""


class ExpressionError(L2TuneError, ValueError):
    """An integer expression of a contract is malformed, or has no value for a problem."""


class KeyFormatError(L2TuneError, ValueError):
    """A string is not the canonical form of a `GemmKey`, or its fields contradict each other."""


class PackError(L2TuneError, ValueError):
    """A pack's text is not what l2tune writes, or it is for another GPU."""


class CacheError(L2TuneError, OSError):
    """The cache directory cannot be used: it is not writable, or others could write to it."""


class CacheWarning(UserWarning):
    """Something in the cache could not be used and counts as missing; `torch.matmul` answers."""


class DispatchWarning(UserWarning):
    """A cached kernel could not be used; `torch.matmul` answers instead."""


class UnsupportedProblemError(L2TuneError, ValueError):
    """The caller asked to tune something that no kernel of l2tune can serve."""


class InfrastructureError(L2TuneError, RuntimeError):
    """The machine failed, not a kernel: a worker died, a compiler is missing. Never scored."""
