"""Runs Tiresias, SRTF, Optimus, Pollux and EDF in the simulator, in rounds or at each event.

Promises that a policy sees the true GPU time and restarts of jobs. One object per run. Voda's policies, which limit
their own frequency, are in `voda.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.snapshot import ClusterSnapshot
from reshape_papers.comparison_policies.allotment import Allot, Allotment, AllotmentRequest
from reshape_papers.comparison_policies.allotment_policy import allotment_requests, total, towards
from reshape_papers.comparison_policies.optimus import optimus
from reshape_papers.comparison_policies.pollux import Pollux
from reshape_papers.comparison_policies.single_order import edf, srtf
from reshape_papers.comparison_policies.tiresias import Tiresias
from simulator.scenario import Planner, Workload


@dataclass(frozen=True, slots=True)
class RoundPolicy:
    """A policy factory and the length of its rounds; 0 seconds: it decides at every event."""

    policy: Callable[[], Allot]
    round_s: float
    whole: bool = False  # a job runs only on its requested count


POLICIES: Mapping[str, RoundPolicy] = {
    "tiresias": RoundPolicy(Tiresias, 60.0, whole=True),
    "srtf": RoundPolicy(lambda: srtf, 0.0, whole=True),
    "optimus": RoundPolicy(lambda: optimus, 600.0),
    "pollux": RoundPolicy(Pollux, 60.0),
    "edf": RoundPolicy(lambda: edf, 0.0),
}
"""Rounds of their authors: Pollux, and Tiresias in Pollux's simulator, 60 s; Optimus ten minutes (its section 5)."""


class RoundScheduler:
    """One policy on one run. Between rounds it continues to carry out the last allotment."""

    def __init__(self, name: str, round_policy: RoundPolicy, workload: Workload) -> None:
        self._name, self._round_policy, self._allot = name, round_policy, round_policy.policy()
        self._asked = {job.id: job.fixed_gpus for job in workload.jobs}
        self._attained: dict[str, float] = {}
        self._had: dict[str, int] = {}  # GPUs at the last look
        self._changes: Counter[str] = Counter()
        self._seen_s = 0.0
        self._next_s = -math.inf
        self._wanted: Allotment = {}

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        self._look(snapshot, now)
        if now >= self._next_s:
            self._next_s = now + self._round_policy.round_s
            jobs = [self._with_restarts(job) for job in allotment_requests(snapshot, now, self._asked, self._attained)]
            self._wanted = self._allot(jobs, total(snapshot), now)
        return towards(snapshot, self._wanted, self._name, self._round_policy.whole)

    def next_look_s(self, now: float) -> float | None:
        """Return the time of the next round."""
        return self._next_s if self._round_policy.round_s else None

    def _look(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Update GPU time and restarts. GPU time counts from the assignment, as in Tiresias and Pollux."""
        for job in snapshot.jobs:
            had = self._had.get(job.id, 0)
            self._attained[job.id] = self._attained.get(job.id, 0.0) + had * (now - self._seen_s)
            self._changes[job.id] += job.num_gpus > 0 and job.num_gpus != had
        self._had = {job.id: job.num_gpus for job in snapshot.jobs}
        self._seen_s = now

    def _with_restarts(self, job: AllotmentRequest) -> AllotmentRequest:
        return replace(job, restarts=max(0, self._changes[job.id] - 1))


def _factory(name: str, round_policy: RoundPolicy) -> Callable[[Workload], Planner]:
    return lambda workload: RoundScheduler(name, round_policy, workload)


PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {
    name: _factory(name, round_policy) for name, round_policy in POLICIES.items()
}
