"""Verified -> Timing: device and host time beside the baselines, all in the same run.

Times a candidate in a worker process on cold, rotating operands, interleaved with `torch.matmul`
and the vendor's libraries, and checks its results again on the timed buffers. Whether a time is
good enough is `l2tune.admit`'s to say. Where there is no GPU, `count` and `estimate` model a time;
what they return is never taken for one.
"""

from l2tune.measure.cost_model import Estimate, estimate
from l2tune.measure.peer_check import check_peer
from l2tune.measure.peers import Peer
from l2tune.measure.ranking import Rough, quick_rank
from l2tune.measure.run import Baselines, Route, Through
from l2tune.measure.session import measure
from l2tune.measure.statistics import interval
from l2tune.measure.work import count

__all__ = [
    "Baselines", "Estimate", "Peer", "Rough", "Route", "Through", "check_peer", "count", "estimate",
    "interval", "measure", "quick_rank",
]  # fmt: skip
