"""Measures how often the intervals of predicted starts and ends hold, on a workload that differs from its profiles.

Drawn are each job's speed relative to its profile, and for each type the durations of launch, stop and start relative
to the assumed ones: log-normal factors of median 1. Jobs arrive as in the workload; no prediction knows future ones. A
forecast is made at each call of the policy, so before each decision, for all present jobs. Each seed begins without
history, so with the prior alone.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.forecasts.forecast import forecast
from coordinator.forecasts.intervals import Interval, WhenExpected
from coordinator.forecasts.live_state import LiveState
from coordinator.forecasts.prediction_log import PredictionLog
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, NoWorkload, PolicySetup, Workload
from simulator.state import SimulatedJob

PACE = COSTS = 0.2
"""Spread of the factors' logarithms: two thirds of all jobs lie within a fifth of their profile, one in twenty is off
by more than two fifths."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """An interval that was shown, and what happened."""

    what: str  # start, or end
    first: bool  # at the job's submission
    interval: Interval
    at: float
    came: float

    @property
    def verdict(self) -> str:
        return "held" if self.interval.holds(self.came) else "early" if self.came < self.interval.earliest else "late"


def measure(workload: Workload, pace: float = PACE, costs: float = COSTS) -> list[Said]:
    """Simulate the workload under its last policy, and return all intervals shown meanwhile."""
    if any(job.cpu is not None for job in workload.jobs):
        raise NoWorkload(f"{workload.name} has jobs that train on CPU; only those on GPUs are forecast.")
    world, policy_setup = _drawn(workload, pace, costs)
    watch = _Watch(policy_setup)
    watch.cluster = SimulatedCluster(world, replace(policy_setup, plan=watch.plan))
    watch.cluster.run()
    return list(watch.said())


def summary(said: Iterable[Said]) -> list[Row]:
    """Return the share of the intervals that held, and their width, by what they predict."""
    groups: dict[str, list[Said]] = {}
    for one in said:
        names = ("all", f"{one.what}s", *((f"{one.what}s, as the job is submitted",) if one.first else ()))
        for name in names:
            groups.setdefault(name, []).append(one)
    return [_row(name, groups[name]) for name in sorted(groups, key=lambda name: (name != "all", name))]


def _row(name: str, group: list[Said]) -> Row:
    verdicts = Counter(one.verdict for one in group)
    widths = [one.interval.latest - one.interval.earliest for one in group]
    shares = {verdict: verdicts[verdict] / len(group) for verdict in ("held", "early", "late")}
    return {
        "of": name, "intervals": len(group), **shares, "median_width_s": median(widths),
        "median_to_go_s": median(one.came - one.at for one in group),
    }  # fmt: skip


def _drawn(workload: Workload, pace: float, costs: float) -> tuple[Workload, PolicySetup]:
    rng, policy_setup = random.Random(f"coverage {workload.seed}"), workload.policy_setups[-1]
    jobs = tuple(replace(job, pace=math.exp(rng.gauss(0.0, pace))) for job in workload.jobs)
    types = sorted({job.type for job in jobs})
    drawn = {kind: _times(policy_setup.costs, math.exp(rng.gauss(0.0, costs))) for kind in types}
    return replace(workload, jobs=jobs), replace(policy_setup, costs_by_type=drawn)


def _times(costs: Costs, factor: float) -> Costs:
    steps = ("launch", "begin", "stop", "shrunk", "grown", "end", "leave")
    return replace(costs, **{f.name: factor * getattr(costs, f.name) for f in fields(costs) if f.name in steps})


class _Watch:
    """A policy that forecasts before it decides, as a coordinator does beside its decisions."""

    cluster: SimulatedCluster

    def __init__(self, policy_setup: PolicySetup) -> None:
        self._setup, self._log = policy_setup, PredictionLog()
        self._shown: list[tuple[float, str, bool, WhenExpected]] = []
        self._seen: set[str] = set()

    def plan(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        jobs = {job.given.id: job for job in self.cluster.outcome.jobs}
        for name in self._log.jobs:
            if (job := jobs[name]).finished_s is not None:
                self._log.completed(name, *self._came(job))
        for found in forecast(LiveState(snapshot, self._setup.settings).as_of(now, {})).jobs:
            started = jobs[found.job_id].trained_from_s is not None
            expected = self._log.add_forecast(found.job_id, found, now, started)
            self._shown.append((now, found.job_id, found.job_id not in self._seen, expected))
            self._seen.add(found.job_id)
        return self._setup.plan(snapshot, now)

    def said(self) -> Iterator[Said]:
        jobs = {job.given.id: self._came(job) for job in self.cluster.outcome.jobs}
        for at, name, first, expected in self._shown:
            for what, interval, came in zip(("start", "end"), (expected.start, expected.end), jobs[name], strict=True):
                if interval is not None:
                    yield Said(what, first, interval, at, came)

    def _came(self, job: SimulatedJob) -> tuple[float, float]:
        """Return when it started, and when it released its GPUs."""
        assert job.trained_from_s is not None and job.finished_s is not None
        ends_s = self._setup.costs_by_type[job.given.type].end
        return job.trained_from_s, job.finished_s + ends_s
