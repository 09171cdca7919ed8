"""Somebody else's kernel as a contestant: a Python callable, or a C function in a shared library.

It is the caller's own code and runs in the worker process with all that it may do there; nothing is
screened. `l2tune.measure.peer_check` finds out whether it computes the product.
"""

import ctypes
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from l2tune.errors import UnsupportedProblemError
from l2tune.measure.contestants import Contestant
from l2tune.measure.operands import OperandSets

_C_ARGUMENTS = [*[ctypes.c_void_p] * 3, *[ctypes.c_int] * 6, ctypes.c_void_p]


class PeerFailedError(Exception):
    """A peer cannot be loaded, raised, or returned what cannot be a product."""


@dataclass(frozen=True)
class Peer:
    """Where a peer's kernel is.

    Attributes:
        name: What its contestant is called, `peer_` and the given name.
        where: A module's name, or the path of a `.py` or `.so` file.
        symbol: The function in it.
    """

    name: str
    where: str
    symbol: str

    @classmethod
    def parse(cls, text: str) -> "Peer":
        """Read `NAME=WHERE:SYMBOL`.

        Raises:
            UnsupportedProblemError: If it is not of that form.
        """
        match = re.fullmatch(r"([A-Za-z0-9_]+)=(.+):([A-Za-z_]\w*)", text)
        if match is None:
            raise UnsupportedProblemError(
                f"peer {text!r}: needed NAME=MODULE:FUNCTION, NAME=FILE.py:FUNCTION or"
                " NAME=FILE.so:SYMBOL"
            )
        name, where, symbol = match.groups()
        if where.endswith((".py", ".so")):
            where = str(Path(where).resolve())
        return cls(f"peer_{name}", where, symbol)


def peer_contestant(
    peer: Peer, sets: OperandSets
) -> tuple[Contestant, Callable[[int], torch.Tensor]]:
    """Load a peer's function and bind it to the sets.

    Returns:
        The contestant, and what gives the result of its last launch on a set.

    Raises:
        PeerFailedError: If it cannot be loaded or does not take such operands; its launch raises it
            where the function fails.
    """
    function = _loaded(peer)
    returned: dict[int, torch.Tensor] = {}
    if peer.where.endswith(".so"):
        call = _c_call(function, sets)
    elif _takes_result(function):

        def call(index: int, _stream: int) -> None:
            function(sets.a[index], sets.b[index], sets.c[index])
    else:

        def call(index: int, _stream: int) -> None:
            # Kept: results that were freed would share memory, which stays in the L2.
            returned[index] = function(sets.a[index], sets.b[index])

    def launch(index: int, stream: int) -> None:
        try:
            call(index, stream)
        except PeerFailedError:
            raise
        except Exception as error:
            raise PeerFailedError(f"{type(error).__name__}: {error}") from error

    return Contestant(peer.name, peer.name, launch), lambda i: returned.get(i, sets.c[i])


def _loaded(peer: Peer) -> Callable[..., Any]:
    try:
        if peer.where.endswith(".so"):
            function: Callable[..., Any] = ctypes.CDLL(peer.where)[peer.symbol]
            return function
        if peer.where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(peer.name, peer.where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(peer.where)
        found: Callable[..., Any] = getattr(module, peer.symbol)
    except Exception as error:
        raise PeerFailedError(f"cannot load it: {type(error).__name__}: {error}") from error
    return found


def _takes_result(function: Callable[..., Any]) -> bool:
    """Whether it is called as `(a, b, c)`; a builtin without a signature returns its result."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return len(needed) >= 3


def _c_call(function: Any, sets: OperandSets) -> Callable[[int, int], None]:
    key = sets.key
    if key.batch > 1 or key.layout != "nn":
        raise PeerFailedError("a C function takes neither batches nor transposed operands")
    function.argtypes, function.restype = _C_ARGUMENTS, ctypes.c_int

    def call(index: int, stream: int) -> None:
        operands = sets.a[index], sets.b[index], sets.c[index]
        pointers = (x.data_ptr() for x in operands)
        status = function(*pointers, key.m, key.n, key.k, *(x.stride(0) for x in operands), stream)
        if status != 0:
            raise PeerFailedError(f"it returned {status}")

    return call
