"""A timing run inside the worker process."""

import dataclasses
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import torch

from l2tune.errors import InfrastructureError
from l2tune.measure import contestants, operands
from l2tune.measure.clock import DeviceClock
from l2tune.measure.contestants import TORCH, Contestant
from l2tune.measure.host import call_count, host_samples_us
from l2tune.measure.libraries import AUTOTUNED, library_contestants
from l2tune.measure.peers import Peer, peer_contestant
from l2tune.measure.random_gaps import call_times
from l2tune.measure.rounds import Rounds
from l2tune.measure.statistics import choose_and_report, interval
from l2tune.measure.telemetry import Telemetry
from l2tune.measure.verdict import check_after_timing, refuse, too_fast
from l2tune.runtime import worker
from l2tune.runtime.driver import KernelDied, LaunchRefusedError
from l2tune.spec.key import GemmKey
from l2tune.spec.outcome import Compiled, Finding, HostPath, Interval, Refuted, Timing, Verified
from l2tune.spec.roofline import floor_us, physical_minimum_us


class Route(Protocol):
    """What a user's call would run for a kernel.

    Attributes:
        host_path: Which of the product's paths it is.
    """

    host_path: HostPath

    def __call__(self, a: torch.Tensor, b: torch.Tensor, /) -> torch.Tensor:
        """Multiply."""


Through = Callable[[Compiled, Path], Route]
"""A module-level function that makes a kernel's route; the path is the cache's."""
Baselines = Literal["torch", "all"]

TRITON = "triton"
_CANDIDATE, _KERNEL = "candidate ", "kernel"
_TUNING_SHARE = 1.0


@dataclasses.dataclass(frozen=True)
class Request:
    """What one run times.

    Attributes:
        key: What is computed.
        candidates: What is timed, each beside the baselines.
        cache_dir: Where their cubins are.
        through: Makes a kernel's host path; it is pickled, so by its name.
        baselines: `torch` for `torch.matmul` alone; `all` adds the vendor's libraries and `triton`.
        triton: The best Triton kernel known for the key, for `all`; known to be right.
        budget_s: Time for the rounds; autotuning the libraries may take as much again, and so
            may calls at random gaps.
        seed: Decides operands and order.
        peers: Further baselines, known to be right.
        gap_us: Mean gap of calls at random, microseconds; None times none.
    """

    key: GemmKey
    candidates: tuple[Verified, ...]
    cache_dir: Path
    through: Through
    baselines: Baselines
    triton: Compiled | None
    budget_s: float
    seed: int
    peers: tuple[Peer, ...] = ()
    gap_us: float | None = None


@dataclasses.dataclass(frozen=True)
class Died:
    """A kernel faulted or hung in the middle of a run.

    Attributes:
        name: The contestant's.
        what: The driver's words.
        hung: Whether it hung.
    """

    name: str
    what: str
    hung: bool


def candidate_position(name: str) -> int | None:
    """Which candidate a contestant is, None for a baseline."""
    return int(name.removeprefix(_CANDIDATE)) if name.startswith(_CANDIDATE) else None


def measure_here(request: Request) -> list[Timing | Refuted] | Died:
    """Run in the worker and answer for each candidate, or name the kernel that died.

    Raises:
        InfrastructureError: If a baseline's time is below the physical minimum.
    """
    run = _Run(request)
    try:
        with contestants.torch_sums_in(request.key.acc):
            return run.outcomes()
    except KernelDied as died:
        worker.retire_after_this_call(died)
        return Died(run.rounds.running if run.rounds else "library", str(died), died.hung)


class _Run:
    """One run's operands, clock and findings.

    Attributes:
        rounds: The interleaved rounds, once there are some.
    """

    def __init__(self, request: Request) -> None:
        self.rounds: Rounds | None = None
        self._request, self._key = request, request.key
        self._rng = random.Random(request.seed)
        self._minimum_us = physical_minimum_us(request.key)
        self._sets = operands.sized(request.key, seed=request.seed)
        self._clock = DeviceClock(request.key.flops, launches=self._sets.count)
        self._run_id = uuid.uuid4().hex
        self._refused: dict[str, Refuted] = {}
        self._missing: tuple[str, ...] = ()

    def outcomes(self) -> list[Timing | Refuted]:
        """Time everything, and judge each candidate.

        Raises:
            KernelDied: If a kernel faulted or hung.
        """
        entrants = [*self._baselines(), *self._candidates()]
        paired = any(entrant.overlaps for entrant in entrants)
        by_name = {entrant.name: entrant for entrant in entrants}
        rounds = self.rounds = Rounds(self._clock, self._sets, paired=paired, rng=self._rng)
        groups = self._enter(rounds, entrants)
        rounds.warm_up()
        telemetry = Telemetry()
        rounds.run(budget_s=self._request.budget_s, during=telemetry.sample, progress=worker.report)
        chosen = {
            group: choose_and_report({name: rounds.samples_us(name) for name in names})
            for group, names in groups.items()
        }
        intervals = {group: found for group, (_, found) in chosen.items()}
        fastest = {group: by_name[name] for group, (name, _) in chosen.items()}
        self._refuse_impossible_baselines(intervals)
        results: list[Timing | Refuted] = []
        for position, verified in enumerate(self._request.candidates):
            name = f"{_CANDIDATE}{position}"
            refuted = (
                self._refused.get(name)
                or too_fast(intervals[name], minimum_us=self._minimum_us)
                or check_after_timing(name, rounds, self._sets, self._clock, self._rng)
            )
            results.append(refuted or self._timing(verified, name, intervals, fastest, telemetry))
        return results

    def _timing(
        self,
        verified: Verified,
        name: str,
        intervals: dict[str, Interval],
        fastest: dict[str, Contestant],
        telemetry: Telemetry,
    ) -> Timing:
        assert self.rounds is not None
        route = self._request.through(verified.compiled, self._request.cache_dir)
        host_us = self._host_us(route, max(intervals[name].us, intervals[TORCH].us))
        return Timing(
            verified=verified,
            gpu=intervals[name],
            host=host_us[_KERNEL],
            host_path=route.host_path,
            baselines={
                group: found
                for group, found in intervals.items()
                if candidate_position(group) is None
            },
            missing_baselines=self._missing,
            torch_host=host_us[TORCH],
            server=self._server_us(name, fastest),
            floor_us=floor_us(self._key),
            clock_mhz=telemetry.clock_mhz,
            power_w=telemetry.power_w,
            samples=len(self.rounds.samples_us(name)),
            run_id=self._run_id,
        )

    def _baselines(self) -> list[Contestant]:
        found = [contestants.torch_matmul(self._sets)]
        if self._request.baselines == "torch":
            return found
        found.append(contestants.torch_full_precision(self._sets))
        libraries, missing = library_contestants(
            self._sets, self._clock, tuning_s=_TUNING_SHARE * self._request.budget_s
        )
        found += libraries
        triton = self._request.triton
        if triton is None:
            missing += (TRITON,)
        else:
            found.append(self._kernel(triton, TRITON))
        found += [peer_contestant(peer, self._sets)[0] for peer in self._request.peers]
        self._missing = missing
        return found

    def _candidates(self) -> list[Contestant]:
        found = []
        for position, verified in enumerate(self._request.candidates):
            name = f"{_CANDIDATE}{position}"
            try:
                found.append(self._kernel(verified.compiled, name))
            except (LaunchRefusedError, ValueError) as error:
                self._refused[name] = _launch_refused(error)
            except torch.OutOfMemoryError:
                detail = "Its workspace does not fit beside the timed operands."
                self._refused[name] = refuse("load", Finding.OUT_OF_MEMORY, detail)
        return found

    def _kernel(self, compiled: Compiled, name: str) -> Contestant:
        return contestants.kernel(
            compiled, self._sets, name=name, cache_dir=self._request.cache_dir
        )

    def _enter(self, rounds: Rounds, entrants: list[Contestant]) -> dict[str, list[str]]:
        """Enter all; return the names in each group, without candidates the driver refuses."""
        groups: dict[str, list[str]] = {}
        for entrant in entrants:
            try:
                rounds.enter(entrant)
            except LaunchRefusedError as error:
                if candidate_position(entrant.name) is None:
                    raise
                self._refused[entrant.name] = _launch_refused(error)
            else:
                groups.setdefault(entrant.group, []).append(entrant.name)
        return groups

    def _refuse_impossible_baselines(self, intervals: dict[str, Interval]) -> None:
        for name, found in intervals.items():
            if candidate_position(name) is None and found.us < self._minimum_us:
                raise InfrastructureError(
                    f"measuring {self._key}: {name} took {found.us:.3f} us, the physical minimum"
                    f" is {self._minimum_us:.3f} us; the clock or the minimum is wrong"
                )

    def _host_us(self, route: Route, slower_us: float) -> dict[str, Interval]:
        """Host-inclusive time of a kernel's route, with `torch.matmul` beside it."""
        samples = host_samples_us(
            {TORCH: torch.matmul, _KERNEL: route},
            self._sets,
            calls=call_count(slower_us),
            rng=self._rng,
        )
        return {name: interval(samples_us) for name, samples_us in samples.items()}

    def _server_us(self, candidate: str, fastest: dict[str, Contestant]) -> dict[str, Interval]:
        """Single calls at random gaps, of a candidate and what users would call in its place."""
        if self._request.gap_us is None:
            return {}
        assert self.rounds is not None
        names = {TORCH, AUTOTUNED, *(peer.name for peer in self._request.peers)} & set(fastest)
        entrants = {_KERNEL: fastest[candidate]} | {name: fastest[name] for name in sorted(names)}
        self.rounds.running = candidate
        return call_times(
            entrants, self._sets, self._clock, gap_us=self._request.gap_us,
            budget_s=self._request.budget_s, rng=self._rng,
        )  # fmt: skip


def _launch_refused(error: Exception) -> Refuted:
    return refuse("load", Finding.LAUNCH_REFUSED, f"The driver refused it: {error}.")
