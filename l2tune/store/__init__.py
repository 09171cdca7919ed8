"""What outlives a process: records, refusals, proofs, cubins, in one private directory; and packs.

Owns every file below `L2TUNE_CACHE_DIR`, the form of a pack, and the rule by which a record still
holds. It is the only importer of diskcache. It compiles, launches and measures nothing.
"""

from l2tune.store.artifacts import Artifacts
from l2tune.store.pack import Pack
from l2tune.store.pending import Pending, waiting_keys
from l2tune.store.proofs import KernelProof, Proofs
from l2tune.store.registry import Registry, Store
from l2tune.store.searches import Chosen, Measured, Ranked, Searches
from l2tune.store.validity import Validity, judge

__all__ = [
    "Artifacts", "Chosen", "KernelProof", "Measured", "Pack", "Pending", "Proofs", "Ranked",
    "Registry", "Searches", "Store", "Validity", "judge", "waiting_keys",
]  # fmt: skip
