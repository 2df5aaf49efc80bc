"""Finds the best schedule of a few jobs that run without any change, by exhaustive search that knows all arrivals.

Serves as a reference for policies without reshapes on small cases: least makespan, then least sum of completion times,
over all orders of starts, counts and nodes, pruned by bounds. Exponential: at most `MOST_JOBS` jobs. Pure. Called as a
comparison policy, and by tests of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.decision import Decision, Explanation, Start
from adaptive_scheduler.snapshot import ClusterSnapshot
from simulator.scenario import NoWorkload, Planner, Workload

MOST_JOBS = 7


@dataclass(frozen=True, slots=True)
class UninterruptedJob:
    """A job, and its seconds from start to last iteration by GPU type and count."""

    id: str
    arrival_s: float
    seconds: Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class NodeTimeline:
    """A node, and when each of its GPUs becomes free."""

    name: str
    gpu_type: str
    free_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """One start of the schedule, in seconds on the jobs' clock."""

    job: str
    node: str
    num_gpus: int
    start_s: float
    end_s: float


Cost = tuple[float, float]
"""Last end and the sum of all ends."""


def schedule(
    jobs: Sequence[UninterruptedJob], places: Sequence[NodeTimeline], fixed: Mapping[str, int] | None = None
) -> list[PlannedStart]:
    """Return the starts of the best schedule. `fixed`: counts given by job. Raises `NoWorkload` above `MOST_JOBS`.

    Tries starts in the order of their times, each as early as possible. A best schedule is among these, since free
    GPUs are interchangeable.
    """
    if len(jobs) > MOST_JOBS:
        raise NoWorkload(f"the exact search takes at most {MOST_JOBS} jobs, not {len(jobs)}; take a smaller workload.")
    search = _Search(tuple(jobs), fixed or {})
    search.go(tuple(jobs), tuple(places), 0.0, (0.0, 0.0), ())
    return list(search.best)


class _Search:
    def __init__(self, jobs: tuple[UninterruptedJob, ...], fixed: Mapping[str, int]) -> None:
        self._ways = {
            job.id: [(way, s) for way, s in job.seconds.items() if fixed.get(job.id, way[1]) == way[1]] for job in jobs
        }
        self._shortest = {job: min((s for _, s in ways), default=math.inf) for job, ways in self._ways.items()}
        self._cost: Cost = (math.inf, math.inf)
        self.best: tuple[PlannedStart, ...] = ()

    def go(
        self,
        left: tuple[UninterruptedJob, ...],
        places: tuple[NodeTimeline, ...],
        last_s: float,
        cost: Cost,
        done: tuple[PlannedStart, ...],
    ) -> None:
        """Try all ways to start the remaining jobs, none before `last_s`."""
        if not left:
            if cost < self._cost:
                self._cost, self.best = cost, done
            return
        ends = [max(last_s, job.arrival_s) + self._shortest[job.id] for job in left]
        if (max(cost[0], *ends), math.fsum([cost[1], *ends])) >= self._cost:
            return
        for job in left:
            rest = tuple(other for other in left if other is not job)
            for planned, place in self._starts(job, places, last_s):
                after = tuple(place if p.name == place.name else p for p in places)
                new = (max(cost[0], planned.end_s), cost[1] + planned.end_s)
                self.go(rest, after, planned.start_s, new, (*done, planned))

    def _starts(
        self, job: UninterruptedJob, places: tuple[NodeTimeline, ...], last_s: float
    ) -> list[tuple[PlannedStart, NodeTimeline]]:
        starts = []
        for (kind, count), seconds in self._ways[job.id]:
            for place in places:
                if place.gpu_type == kind and count <= len(place.free_s):
                    free = sorted(place.free_s)
                    start = max(last_s, job.arrival_s, free[count - 1])
                    end = start + seconds
                    after = NodeTimeline(place.name, kind, (*free[count:], *(end,) * count))
                    starts.append((PlannedStart(job.id, place.name, count, start, end), after))
        # The earliest end first: a good schedule found early prunes most others.
        return sorted(starts, key=lambda way: way[0].end_s)


class OptimalSchedulePolicy:
    """Carries out the best schedule; one object per run."""

    def __init__(self, workload: Workload) -> None:
        if workload.outages:
            raise NoWorkload("the exact search plans every start ahead; take another policy where nodes fail.")
        self._starts = schedule(uninterrupted_jobs(workload), [_place(workload, i) for i in range(len(workload.nodes))])

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        waiting, idle = {job.id for job in snapshot.queue}, {node.name: node.idle for node in snapshot.nodes}
        decisions: list[Decision] = []
        while self._starts and self._starts[0].start_s <= now + 1e-6:
            planned = self._starts[0]
            if planned.job not in waiting or idle[planned.node] < planned.num_gpus:
                break
            idle[planned.node] -= planned.num_gpus
            sentence = f"{planned.job} starts on {gpus(planned.num_gpus)} of {planned.node}: best of all schedules."
            because = Explanation("exact", sentence)
            decisions.append(Start(planned.job, planned.node, planned.num_gpus, because))
            del self._starts[0]
        return tuple(decisions)

    def next_look_s(self, now: float) -> float | None:
        """Return the time of the next start."""
        return self._starts[0].start_s if self._starts else None


def uninterrupted_jobs(workload: Workload) -> list[UninterruptedJob]:
    """Return the workload's jobs at the costs of its last policy, with counts up to the largest node per GPU type."""
    ours = workload.policy_setups[-1]
    largest: dict[str, int] = {}
    for node in workload.nodes:
        largest[node.gpu_type] = max(largest.get(node.gpu_type, 0), len(node.gpus))
    # A start may wait until the process before it has saved and ended.
    begin = max(ours.costs.launch, ours.costs.end) + ours.costs.begin
    jobs = []
    for job in workload.jobs:
        ways = [(kind, n) for kind, most in largest.items() for n in job.optional if 0 < n <= most]
        speeds = {way: ours.profiles.speed(job.type, *way) for way in ways}
        seconds = {way: begin + job.iterations * speed.seconds for way, speed in speeds.items() if speed}
        jobs.append(UninterruptedJob(job.id, job.arrival_s, seconds))
    return jobs


def _place(workload: Workload, index: int) -> NodeTimeline:
    node = workload.nodes[index]
    return NodeTimeline(node.name, node.gpu_type, (0.0,) * len(node.gpus))


PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {"exact": OptimalSchedulePolicy}
