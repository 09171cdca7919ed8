"""What outlives a process: records, refusals, proofs, cubins, in one private directory.

Owns every file below `L2TUNE_CACHE_DIR`, and the rule by which a record still holds. It is the only
importer of diskcache. It compiles, launches and measures nothing.
"""

from l2tune.store.artifacts import Artifacts
from l2tune.store.proofs import KernelProof, Proofs
from l2tune.store.registry import Registry, Store
from l2tune.store.validity import Validity, judge

__all__ = ["Artifacts", "KernelProof", "Proofs", "Registry", "Store", "Validity", "judge"]
