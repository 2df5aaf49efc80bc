"""Implements the policies of Voda (github.com/heyfey/vodascheduler), rebuilt from its source code.

Each reallocates all GPUs when a job arrives or ends, at most once per `LIMIT_S` as in Voda's measured runs (branch
`exp`), by its own rule: elastic FIFO and SRJF; FfDL's dynamic program (Saxena et al., MASCOTS 2020); AFS-L (Hwang et
al., NSDI 2021); elastic Tiresias (Wu et al., TPDS 2021) on the queues of Tiresias-L (Gu et al., NSDI 2019). Called by
name and by `validation/voda_figures.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.snapshot import ClusterSnapshot
from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest, next_count, speed_up, step_gain
from reshape_papers.comparison_policies.allotment_policy import allotment_requests, total, towards
from reshape_papers.comparison_policies.tiresias_queues import TiresiasQueues
from simulator.scenario import Planner, Workload

LIMIT_S = 120.0

COMPACTION = 4
"""Elastic Tiresias: with more waiting jobs than this, the lower queue gets smallest counts (branch `exp`)."""

Rule = Callable[[Sequence[AllotmentRequest], int, TiresiasQueues], Allotment]
"""A rule: from the jobs by submission, the number of GPUs and the queues of Tiresias."""


def elastic_fifo(jobs: Sequence[AllotmentRequest], gpus: int, queues: TiresiasQueues) -> Allotment:
    """Serve by submission; assign the rest in turn."""
    return _in_turn(jobs, gpus)


def elastic_srjf(jobs: Sequence[AllotmentRequest], gpus: int, queues: TiresiasQueues) -> Allotment:
    """Serve the shortest remaining job first; assign the rest in turn."""
    return _in_turn(sorted(jobs, key=_length), gpus)


def ffdl(jobs: Sequence[AllotmentRequest], gpus: int, queues: TiresiasQueues) -> Allotment:
    """Maximise the sum of speed-ups over as many of the first jobs as fit. O(jobs x GPUs x counts)."""
    running = _that_fit(jobs, gpus)
    best = [0.0] * (gpus + 1)  # sum of speed-ups of the jobs so far, by their total GPUs
    chosen: list[list[int]] = []
    for job in running:
        gains = {n: speed_up(job, n) for n in job.counts}
        # Ties go to the smaller count, as in Voda's loop.
        picks = [
            max(((best[k - n] + gains[n], -n) for n in job.counts if n <= k), default=(-math.inf, 0))
            for k in range(gpus + 1)
        ]
        best = [value for value, _ in picks]
        chosen.append([-count for _, count in picks])
    result: dict[str, int] = {}
    for job, counts in zip(reversed(running), reversed(chosen), strict=True):
        result[job.id] = counts[gpus]
        gpus -= counts[gpus]
    return dict(reversed(result.items()))


def afs_l(jobs: Sequence[AllotmentRequest], gpus: int, queues: TiresiasQueues) -> Allotment:
    """Assign single steps: to the shorter job, unless the longer one gains more by it."""
    result, open_ = dict.fromkeys((job.id for job in jobs), 0), list(jobs)
    while gpus and open_:
        top = open_[0]
        for other in open_[1:]:
            top = _preferred(top, other, result)
        has = result[top.id]
        more = next_count(top, has)
        if more is None or more - has > gpus:
            open_.remove(top)
        else:
            result[top.id], gpus = more, gpus - (more - has)
    return result


def elastic_tiresias(jobs: Sequence[AllotmentRequest], gpus: int, queues: TiresiasQueues) -> Allotment:
    """Serve by queue with requested counts; shrink the lower queue if many jobs wait; assign the rest by gain."""
    result = dict.fromkeys((job.id for job in jobs), 0)
    for job in sorted(jobs, key=lambda j: queues.level(j.id)):
        if job.asked <= gpus:
            result[job.id], gpus = job.asked, gpus - job.asked
    if sum(not count for count in result.values()) > COMPACTION:
        for job in jobs:
            if queues.level(job.id) and result[job.id]:
                gpus += result[job.id] - job.counts[0]
                result[job.id] = job.counts[0]
    open_ = list(jobs)
    while gpus and open_:
        top = min(open_, key=lambda j: (-step_gain(j, result[j.id]), queues.level(j.id)))
        has = result[top.id]
        more = next_count(top, has)
        if more is None or more - has > gpus:
            open_.remove(top)
        elif step_gain(top, has) <= 0:
            break
        else:
            result[top.id], gpus = more, gpus - (more - has)
    return result


class Voda:
    """Applies one rule at the times at which Voda would. Keeps the last allotment; one object per run."""

    def __init__(self, name: str, rule: Rule, workload: Workload, limit_s: float = LIMIT_S) -> None:
        self._name, self._rule, self._limit_s = name, rule, limit_s
        self._asked = {job.id: job.fixed_gpus for job in workload.jobs}
        self._queues = TiresiasQueues()
        self._jobs: frozenset[str] = frozenset()
        self._gpus = 0
        self._wanted: Allotment = {}
        self._due = False
        self._blocked_until = -math.inf

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        known = frozenset(job.id for job in snapshot.jobs), total(snapshot)
        changed = self._rule is elastic_tiresias and self._queues.look(snapshot, now)
        self._due = self._due or changed or known != (self._jobs, self._gpus)
        self._jobs, self._gpus = known
        if self._due and now >= self._blocked_until:
            self._due, self._blocked_until = False, now + self._limit_s
            self._wanted = self._rule(allotment_requests(snapshot, now, self._asked), self._gpus, self._queues)
        return towards(snapshot, self._wanted, self._name)

    def next_look_s(self, now: float) -> float | None:
        """Return when the rate limit ends, or when a job next changes its queue."""
        if not self._jobs:
            return None
        looks = [self._blocked_until] if self._due else []
        if self._rule is elastic_tiresias:
            looks.append(self._queues.next_change_s)
        return min((max(now, look) for look in looks if look < math.inf), default=None)


def _factory(name: str, rule: Rule) -> Callable[[Workload], Planner]:
    return lambda workload: Voda(name, rule, workload)


RULES: Mapping[str, Rule] = {
    "elastic-fifo": elastic_fifo,
    "elastic-srjf": elastic_srjf,
    "ffdl": ffdl,
    "afs-l": afs_l,
    "elastic-tiresias": elastic_tiresias,
}

PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {name: _factory(name, rule) for name, rule in RULES.items()}


def _in_turn(jobs: Sequence[AllotmentRequest], gpus: int) -> Allotment:
    """Give each job its smallest count while GPUs last, then one step to each in turn."""
    result: dict[str, int] = {}
    for job in jobs:
        if job.counts[0] <= gpus:
            result[job.id], gpus = job.counts[0], gpus - job.counts[0]
    moved = True
    while moved:
        moved = False
        for job in jobs:
            has = result.get(job.id, 0)
            more = next_count(job, has) if has else None
            if more is not None and more - has <= gpus:
                result[job.id], gpus, moved = more, gpus - (more - has), True
    return result


def _that_fit(jobs: Sequence[AllotmentRequest], gpus: int) -> list[AllotmentRequest]:
    """Return the first jobs whose smallest counts fit together."""
    running: list[AllotmentRequest] = []
    for job in jobs:
        gpus -= job.counts[0]
        if gpus < 0:
            break
        running.append(job)
    return running


def _preferred(top: AllotmentRequest, other: AllotmentRequest, result: Allotment) -> AllotmentRequest:
    """Return which of two jobs AFS-L prefers (NSDI 2021, Algorithm 1)."""
    if not result[top.id] and not result[other.id]:
        return other if _length(top) >= _length(other) else top
    # Of equally long jobs, the later one counts as shorter, as printed.
    is_longer = _seconds(top, result) >= _seconds(other, result)
    shorter, longer = (other, top) if is_longer else (top, other)
    return longer if _worth_to_longer(longer, result) > _worth_to_shorter(shorter, result) else shorter


def _length(job: AllotmentRequest) -> float:
    return job.seconds(job.counts[0])


def _seconds(job: AllotmentRequest, result: Allotment) -> float:
    """Return the remaining seconds on the assigned GPUs; infinity without GPUs."""
    return job.seconds(result[job.id]) if result[job.id] else math.inf


def _worth_to_shorter(job: AllotmentRequest, result: Allotment) -> float:
    """Return the gain of the next step relative to the current speed."""
    has = result[job.id]
    return step_gain(job, has) / speed_up(job, has) if has else math.inf


def _worth_to_longer(job: AllotmentRequest, result: Allotment) -> float:
    """Return the gain of the next step relative to the speed after it."""
    more = next_count(job, result[job.id])
    return 0.0 if more is None else step_gain(job, result[job.id]) / speed_up(job, more)
