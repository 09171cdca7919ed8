"""What the cache stores for a key."""

from l2tune.spec.header import Origin
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Admitted, Declined, Frozen

SCHEMA_VERSION = 1


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
