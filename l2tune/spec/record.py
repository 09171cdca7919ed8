"""What the cache stores for a key."""

from l2tune.spec.header import Origin
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Declined, Estimated, Frozen, Verified

SCHEMA_VERSION = 2


class Tools(Frozen):
    """Versions of all that made a record.

    A record made with another driver or product version is timed by something else than what runs
    now, so dispatch checks these; `store.validity` says what each difference means.
    """

    l2tune: str
    compiler: str
    driver: str
    torch: str


class Record(Frozen):
    """The best kernel known for a key, with its proof, timing and origin.

    `Declined` is stored too: it says that `torch.matmul` was measured to be the best choice.
    """

    schema_version: int = SCHEMA_VERSION
    key: GemmKey
    outcome: Admitted | Declined
    origin: Origin
    tools: Tools
    created: str

    @property
    def verified(self) -> Verified:
        """The kernel's proof."""
        return self.outcome.timing.verified


class EstimatedRecord(Frozen):
    """The kernel estimated to be the best for a key on a GPU that was not there.

    Kept apart from records, and never in the place of one.
    """

    schema_version: int = SCHEMA_VERSION
    key: GemmKey
    outcome: Estimated
    origin: Origin
    tools: Tools
    created: str

    @property
    def verified(self) -> Verified:
        """The kernel's proof, on the emulator."""
        return self.outcome.verified
