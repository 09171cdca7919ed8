"""Many keys on many workers, on top of the steps that tune one.

Threads of this process drive worker processes on this machine's GPUs; what each step finds is in
the cache, so another run goes on where one was stopped.
"""

from l2tune.fleet.benches import Benches
from l2tune.fleet.tuning import Outcome, Watch, tune_all

__all__ = ["Benches", "Outcome", "Watch", "tune_all"]
