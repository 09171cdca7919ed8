"""What the gate found of a kernel on one GPU model, so that another key need not find it again.

Holds only what a GPU has shown. A proof counts for the very machine code, GPU model and tools that
it was made with, and where no more examples are asked for than it tried.
"""

import warnings
from pathlib import Path

from l2tune.errors import CacheWarning
from l2tune.spec.gpu import Gpu
from l2tune.spec.outcome import CheckPassed, Compiled, Frozen
from l2tune.spec.record import SCHEMA_VERSION, Tools
from l2tune.store.database import Database, DatabaseError
from l2tune.store.files import private_directory


class KernelProof(Frozen):
    """The checks of the gate that hold for a kernel whatever its key.

    Attributes:
        checks: All of them, passed.
        tools: What they were run with.
        max_examples: Hypothesis examples that each property was asked for.
    """

    checks: tuple[CheckPassed, ...]
    tools: Tools
    max_examples: int


class Proofs:
    """Kernels' proofs of one cache directory; a database of their own, which may be deleted."""

    def __init__(self, root: Path) -> None:
        """Make the directory.

        Raises:
            CacheError: If it cannot be made or written, or others may write to it.
        """
        self._database = Database(private_directory(root) / "proofs")

    def get(
        self, compiled: Compiled, gpu: Gpu, *, tools: Tools, max_examples: int
    ) -> tuple[CheckPassed, ...] | None:
        """Return the checks that this machine code passed on this GPU model, if it was proven.

        Never raises: what cannot be read is missing, with a `CacheWarning`.
        """
        try:
            text = self._database.get(_name(compiled, gpu))
            proof = None if text is None else KernelProof.model_validate_json(text)
        except (DatabaseError, ValueError) as error:
            said = str(error).splitlines()[0]
            warnings.warn(f"a proof is made again: {said}", CacheWarning, stacklevel=2)
            return None
        if proof is None or proof.tools != tools or proof.max_examples < max_examples:
            return None
        return proof.checks

    def put(self, compiled: Compiled, gpu: Gpu, proof: KernelProof) -> None:
        """Keep a proof. Never raises: one that cannot be kept is made again."""
        try:
            self._database.put(_name(compiled, gpu), proof.model_dump_json())
        except DatabaseError as error:
            warnings.warn(f"a proof is not kept: {error}", CacheWarning, stacklevel=2)


def _name(compiled: Compiled, gpu: Gpu) -> str:
    code = "-".join(cubin[:16] for cubin in compiled.cubins)
    return f"proof/{SCHEMA_VERSION}/{gpu}/{compiled.source.digest}/{code}"
