"""Verified -> Timing: device and host time beside the baselines, all in the same run.

Times a candidate in a worker process on cold, rotating operands, interleaved with `torch.matmul`
and the vendor's libraries, and checks its results again on the timed buffers. Whether a time is
good enough is `l2tune.admit`'s to say.
"""

from l2tune.measure.ranking import quick_rank
from l2tune.measure.run import Baselines, Route, Through
from l2tune.measure.session import measure
from l2tune.measure.statistics import interval

__all__ = ["Baselines", "Route", "Through", "interval", "measure", "quick_rank"]
