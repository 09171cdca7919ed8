"""Device time by CUDA graphs.

A graph holds one launch for each operand set and is timed by events around one replay. Before it
the L2 is read full of other data, which also gives the host time to queue the replay, so that the
start event does not wait for the host.
"""

from collections.abc import Callable

import torch

from l2tune import settings
from l2tune.runtime import driver

_FLUSH_L2_MULTIPLE = 6  # 0.1 ms on an H200, enough for the host to queue a replay
_DELAY_CLOCKS = 200_000  # 0.1 ms on an H200, enough for the host to queue one launch
_SLOWEST_FLOPS_PER_S = 5e10
"""A kernel slower than this has hung: 1/10,000 of an H200's rate, and what the gate allows."""


class DeviceClock:
    """A side stream, two events, and what clears the L2.

    Attributes:
        stream: Everything timed runs on it.
    """

    def __init__(self, launch_flops: int, *, launches: int) -> None:
        """Allocate on the current device, and wait for all that was queued before.

        L2 lines that somebody set aside as persisting are given back.

        Args:
            launch_flops: Operations of one launch; they decide what counts as a hang.
            launches: Launches of one replay.
        """
        device = torch.cuda.current_device()
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._other_data = torch.zeros(
            _FLUSH_L2_MULTIPLE * l2_bytes // 4, dtype=torch.float32, device="cuda"
        )
        self._sink = torch.zeros((), dtype=torch.float32, device="cuda")
        spare_s = settings.current().launch_timeout_s
        self._launch_timeout_s = spare_s + launch_flops / _SLOWEST_FLOPS_PER_S
        self._replay_timeout_s = spare_s + launches * launch_flops / _SLOWEST_FLOPS_PER_S
        torch.cuda.synchronize()
        driver.reset_persisting_l2()

    def run_once(self, launch: Callable[[int], None], *, what: str) -> None:
        """Call `launch(stream)` outside any graph and wait for it.

        What a first launch does once (loading, library workspaces) is then done before a capture,
        where it may not happen.

        Raises:
            LaunchRefusedError: If the driver refuses the launch.
            KernelDied: If a kernel faulted or hung.
        """
        with torch.cuda.stream(self.stream):
            launch(self.stream.cuda_stream)
        driver.wait(self.stream.cuda_stream, timeout_s=self._launch_timeout_s, what=what)

    def capture(self, body: Callable[[int], None]) -> torch.cuda.CUDAGraph:
        """Record what `body(stream)` launches.

        Not through `torch.cuda.graph`, which empties the allocator's cache at every capture.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                body(self.stream.cuda_stream)
            finally:
                graph.capture_end()
        return graph

    def call_us(self, launch: Callable[[int], None], *, what: str) -> float:
        """Time `launch(stream)` outside any graph, microseconds; caches and clocks stay as found.

        A delay of one thread goes before, in which the host queues the launch; only where it takes
        longer than that is its time in the figure.

        Raises:
            LaunchRefusedError: If the driver refuses the launch.
            KernelDied: If a kernel faulted or hung.
        """
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(_DELAY_CLOCKS)  # type: ignore[no-untyped-call]
            self._start.record()
            launch(self.stream.cuda_stream)
            self._end.record()
        driver.wait(self.stream.cuda_stream, timeout_s=self._launch_timeout_s, what=what)
        return 1000.0 * float(self._start.elapsed_time(self._end))

    def replay_us(
        self,
        graph: torch.cuda.CUDAGraph,
        *,
        prepare: Callable[[], None],
        what: str,
        during: Callable[[], None] | None = None,
    ) -> float:
        """Time one replay, microseconds.

        Args:
            graph: What is timed.
            prepare: Queues work that comes before and is not timed, as poisoning the outputs.
            what: Names it in an error.
            during: Called on the host while the GPU is busy.

        Raises:
            KernelDied: If a kernel faulted or hung.
        """
        with torch.cuda.stream(self.stream):
            prepare()
            torch.sum(self._other_data, dim=0, out=self._sink)
            self._start.record()
            graph.replay()
            self._end.record()
        if during is not None:
            during()
        driver.wait(self.stream.cuda_stream, timeout_s=self._replay_timeout_s, what=what)
        return 1000.0 * float(self._start.elapsed_time(self._end))
