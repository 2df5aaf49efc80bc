"""Predicts remaining times of jobs trained on CPU that share the cores of a node (`algorithms.md` 5.2, 5.6).

All jobs of a node are trained to their end in a fluid model: cores are divided by water-filling, and a job that ends
leaves its cores to the others. FlowCon's limits are not assumed for the future: they change every few seconds, leave no
usable core idle and do not follow a move. Called by CPU policies and the simulator. Pure; seconds from now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from adaptive_scheduler.models.prediction import assumed_s, cross_host_s, reshape_cost_s, time_left_s
from adaptive_scheduler.profiles.profiles import LARGEST, Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

SAME = 1e-9  # relative tolerance within which jobs end together
ROUNDED = 6  # decimals of a second that are compared; below are only rounding errors of sums


class CpuDemand(NamedTuple):
    """Work left of a job in core-seconds, and the most cores that it can use."""

    core_s: float
    cap: float


class PairPrediction(NamedTuple):
    """Predicted makespan and sum of some jobs together; the smaller is better (G4)."""

    makespan_s: float
    sum_s: float

    @classmethod
    def from_seconds(cls, seconds: Mapping[str, float]) -> PairPrediction:
        ends = seconds.values()
        return cls(round(max(ends, default=0.0), ROUNDED), round(math.fsum(ends), ROUNDED))


def cpu_demands(snapshot: ClusterSnapshot, node: str) -> dict[str, CpuDemand]:
    """Return the demands of all jobs trained on this node, or about to be. A job of unknown rate is assumed to have
    been measured on the share that present limits leave it."""
    jobs = snapshot.on_cpu[node]
    shares = water_fill(snapshot.node[node].cores, [_present_cap(job) for job in jobs])
    return {job.id: CpuDemand(_core_s(job, share), job.demand) for job, share in zip(jobs, shares, strict=True)}


def incoming_demand(snapshot: ClusterSnapshot, node: str, job: Job) -> CpuDemand:
    """Return the demand of a job that is not on the node yet, so that its rate there is unknown."""
    return CpuDemand(_core_s(job, min(job.demand, snapshot.node[node].cores)), job.demand)


def completion_times(cores: float, jobs: Mapping[str, CpuDemand]) -> dict[str, float]:
    """Return when each job ends if jobs only leave by ending. O(n² log n)."""
    left, ends, now = dict(jobs), dict[str, float](), 0.0
    while left:
        shares = dict(zip(left, water_fill(cores, [p.cap for p in left.values()]), strict=True))
        needs = {job: p.core_s / shares[job] if shares[job] > 0 else LARGEST for job, p in left.items()}
        first = min(needs.values())
        now = min(now + first, LARGEST)
        ending = [job for job, seconds in needs.items() if seconds <= first * (1 + SAME)]
        ends |= dict.fromkeys(ending, now)
        left = {job: CpuDemand(p.core_s - shares[job] * first, p.cap) for job, p in left.items() if job not in ends}
    return ends


def move_cost_s(profiles: Profiles, job: Job) -> float:
    """Return the seconds that a move takes, measured or from its profile, plus the unsaved work that is repeated."""
    return reshape_cost_s(profiles, job) + cross_host_s(profiles, job) + job.unsaved_s


class MovePrediction(NamedTuple):
    """Predicted outcome of one move for the jobs of both nodes together (5.5)."""

    before: PairPrediction
    after: PairPrediction
    job_s: float  # remaining time of the job itself
    sure: bool

    @property
    def gains(self) -> bool:
        return self.after < self.before


class MovePredictions:
    """Predicted outcomes of moving one job, computed once per node; its own node means no move."""

    def __init__(self, snapshot: ClusterSnapshot, job: Job) -> None:
        self._snapshot = snapshot
        self._job = job
        self._home = job.node or ""
        self._demands = cpu_demands(snapshot, self._home)
        self._now = self._completion_times(self._home, self._demands)
        without = {other: demand for other, demand in self._demands.items() if other != job.id}
        self._without = self._completion_times(self._home, without)
        self._known: dict[str, MovePrediction] = {}

    def to(self, node: str) -> MovePrediction:
        if node not in self._known:
            self._known[node] = self._try(node)
        return self._known[node]

    def _try(self, node: str) -> MovePrediction:
        jobs, sure = self._snapshot.on_cpu, all_known(self._snapshot.on_cpu[self._home])
        if node == self._home:
            return MovePrediction(
                PairPrediction.from_seconds(self._now),
                PairPrediction.from_seconds(self._now),
                self._now[self._job.id],
                sure,
            )
        there = cpu_demands(self._snapshot, node)
        before = self._now | self._completion_times(node, there)
        after = self._without | self._completion_times(node, {**there, self._job.id: self._demands[self._job.id]})
        after[self._job.id] += move_cost_s(self._snapshot.profiles, self._job)
        return MovePrediction(
            PairPrediction.from_seconds(before),
            PairPrediction.from_seconds(after),
            after[self._job.id],
            sure and all_known(jobs[node]),
        )

    def _completion_times(self, node: str, jobs: Mapping[str, CpuDemand]) -> dict[str, float]:
        return completion_times(self._snapshot.node[node].cores, jobs)


def all_known(jobs: Iterable[Job]) -> bool:
    """Return whether predictions for these jobs rest on known lengths and rates."""
    return all(job.iterations_left is not None and job.rate is not None for job in jobs)


def _present_cap(job: Job) -> float:
    return job.demand if job.cpu_limit is None else min(job.demand, job.cpu_limit)


def _core_s(job: Job, share: float) -> float:
    """Remaining seconds times the cores it has: its rate is proportional to its cores (5.2)."""
    most_s = min(time_left_s(job), LARGEST)
    if job.iterations_left is None or not job.rate:
        return min(assumed_s(job), most_s) * (job.share or share)
    return min(max(job.iterations_left, 0.0) / job.rate, most_s) * (job.share or share)


def water_fill(capacity: float, caps: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Divide cores by water-filling: return each job's cores; all rise until capped or `capacity` is used up (5.6).
    Each cap is the smaller of what a job can use and its limit, perhaps `inf`. Rates rise alike, or in proportion to
    `weights` (above 0). The simulator and FlowCon share this function, since they must agree."""
    shares = [0.0] * len(caps)
    weighs = [1.0] * len(caps) if weights is None else weights
    left, weight = capacity, math.fsum(weighs)
    for i in sorted(range(len(caps)), key=lambda i: (caps[i] / weighs[i], i)):
        shares[i] = min(caps[i], left * weighs[i] / max(weight, weighs[i]))
        left -= shares[i]
        weight -= weighs[i]
    return shares
