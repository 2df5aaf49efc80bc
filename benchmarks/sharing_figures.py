"""Measures one simulated run of several users: how long owners wait for what they are entitled to, and how evenly GPUs
are shared.

Called by `sharing.py`. Slow-down: a job's completion time against its time where its owner has its own part of the
cluster and nobody else is there. Jain index: of GPU-seconds against entitlement, by hour, over the owners with jobs;
entitlement is by weight and guarantee alone here, whatever was used before.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from adaptive_scheduler.decision import Decision, Start
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from reshape_papers.workloads.owner_workloads import LooksAgain
from simulator.cluster import SimulatedCluster
from simulator.scenario import Submission, Workload
from simulator.state import SimulationOutcome

WINDOW_S = 3600.0
LEAST_ENTITLED = 0.25
"""GPUs in the mean of a window below which an owner is not counted in it."""
MOST_COUNTED = 4.0
"""Times its entitlement that an owner's use counts at most: who takes idle GPUs takes them from nobody."""

Shown = Callable[[ClusterSnapshot], ClusterSnapshot]


class Figures(NamedTuple):
    """Holds what one run came to; times in seconds."""

    makespan: float
    mean_jct: float
    worst_slow_down: float
    jain: float
    longest_claim: float  # of a job whose owner was entitled to its smallest count all the while
    waits: Mapping[str, float]  # by job: from its submission to its first start
    suspensions: int


# policies beside ours: they see less


def with_rights(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    return snapshot


def without_rights(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot as if all jobs were of one owner."""
    jobs = tuple(replace(job, owner="", queue="") for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs, shares=Shares(), used={})


def suspend_only(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot in which no job can shrink while a job of another owner waits, as where GPUs are taken back
    by stopping whole jobs."""
    waiting = {snapshot.shares.owner_of(job.queue, job.owner) for job in snapshot.queue}

    def as_shown(job: Job) -> Job:
        if not job.num_gpus or not waiting - {snapshot.shares.owner_of(job.queue, job.owner)}:
            return job
        return replace(job, optional=tuple(count for count in job.optional if count >= job.num_gpus))

    return replace(snapshot, jobs=tuple(map(as_shown, snapshot.jobs)))


POLICIES: Mapping[str, Shown] = {"rights": with_rights, "no rights": without_rights, "suspend only": suspend_only}


@dataclass
class ObservedPlan:
    """The policy of a workload, watched: it sees what `shown` shows, while rights are told by the true owners."""

    watched: LooksAgain
    shown: Shown
    claims: list[float] = field(default_factory=list)  # seconds that each had waited as it started
    entitled: list[tuple[float, Mapping[JobOwner, float]]] = field(default_factory=list)  # GPUs, from a time on
    _since: dict[str, float] = field(default_factory=dict)

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        self._note_claims(snapshot, now)
        bare = Rights(replace(snapshot, used={}), now, DEFAULTS)
        owners = bare.who.owners if bare.binds else ()
        self.entitled.append((now, {owner: bare.standing(owner).entitled for owner in owners}))
        decisions = self.watched(self.shown(snapshot), now)
        for decision in decisions:
            if isinstance(decision, Start) and decision.job in self._since:
                self.claims.append(now - self._since.pop(decision.job))
        return decisions

    def _note_claims(self, snapshot: ClusterSnapshot, now: float) -> None:
        rights = Rights(snapshot, now, DEFAULTS)
        for job in snapshot.queue:
            if rights.binds and rights.claim(job).any:
                self._since.setdefault(job.id, now)
            else:
                self._since.pop(job.id, None)

    def next_look_s(self, now: float) -> float | None:
        return self.watched.next_look_s(now)


def measure(workload: Workload, shown: Shown, alone: Mapping[str, float]) -> Figures:
    """Simulate a workload with its first policy. `alone`: completion times by job, as of `alone_times`."""
    setup = workload.policy_setups[0]
    assert isinstance(setup.plan, LooksAgain)
    observed = ObservedPlan(setup.plan, shown)
    outcome = SimulatedCluster(workload, replace(setup, plan=observed)).run()
    jct = completion_times(outcome)
    return Figures(
        makespan=max(job.finished_s or 0.0 for job in outcome.jobs),
        mean_jct=statistics.mean(jct.values()),
        worst_slow_down=max(jct[name] / alone[name] for name in alone),
        jain=_mean_jain(workload, outcome, observed.entitled),
        longest_claim=max(observed.claims, default=0.0),
        waits={job.given.id: (job.began_s or 0.0) - job.given.arrival_s for job in outcome.jobs},
        suspensions=outcome.requeues,
    )


def completion_times(outcome: SimulationOutcome) -> dict[str, float]:
    """Return by job the seconds from its submission to its end."""
    return {job.given.id: (job.finished_s or 0.0) - job.given.arrival_s for job in outcome.jobs}


# alone on one's own part


def alone_times(workload: Workload) -> dict[str, float]:
    """Return the completion time of each job where its owner has nothing but its part of the GPUs by weight."""
    found: dict[str, float] = {}
    shares = workload.shares
    setup = workload.policy_setups[0]
    assert isinstance(setup.plan, LooksAgain)
    bare = replace(setup, plan=setup.plan.plan)  # nobody else is there whom a look could help
    jobs: dict[JobOwner, list[Submission]] = defaultdict(list)
    for job in workload.jobs:
        jobs[shares.owner_of(job.queue, job.owner)].append(job)
    queues = {owner.queue for owner in jobs}
    all_weights = math.fsum(shares.queue(name).weight for name in queues)
    for owner, own in jobs.items():
        users = sum(other.queue == owner.queue for other in jobs)
        part = shares.queue(owner.queue).weight / all_weights / users
        nodes = _part_of(workload.nodes, part, max(min(job.optional) for job in own))
        most = max(len(node.gpus) for node in nodes)
        there = (replace(job, optional=_counts_up_to(job.optional, most)) for job in own)
        smaller = replace(workload, jobs=tuple(there), nodes=nodes)
        found |= completion_times(SimulatedCluster(smaller, bare).run())
    return found


def _part_of(nodes: Sequence[Node], part: float, least: int) -> tuple[Node, ...]:
    """Return one node of each GPU type with this part of its GPUs, rounded down to at least `least`."""
    gpus = {
        node.gpu_type: [gpu for other in nodes if other.gpu_type == node.gpu_type for gpu in other.gpus]
        for node in nodes
    }
    return tuple(
        Node(str(gpu_type), gpu_type, tuple(found[: max(least, math.floor(len(found) * part))]))
        for gpu_type, found in gpus.items()
    )


def _counts_up_to(optional: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(count for count in optional if count <= most)


# how even


def jain_index(values: Sequence[float]) -> float:
    """Return 1 if all are equal, down to 1 / n if one has everything (Jain, Chiu and Hawe, 1984)."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def _mean_jain(
    workload: Workload, outcome: SimulationOutcome, entitled: Sequence[tuple[float, Mapping[JobOwner, float]]]
) -> float:
    """Return the mean of the index over the windows in which at least two owners are entitled to something."""
    owner = {job.id: workload.shares.owner_of(job.queue, job.owner) for job in workload.jobs}
    used = _Windows()
    for one in outcome.held:
        used.add(owner[one.job], one.begin_s, one.end_s, 1.0)
    due = _Windows()
    ends = [at_s for at_s, _ in entitled[1:]]
    for (begin_s, parts), end_s in zip(entitled, ends, strict=False):
        for who, gpus in parts.items():
            due.add(who, begin_s, end_s, gpus)
    found = list[float]()
    for window, parts in due.gpu_s.items():
        counted = {who: gpu_s for who, gpu_s in parts.items() if gpu_s > LEAST_ENTITLED * WINDOW_S}
        if len(counted) > 1:
            has = used.gpu_s[window]
            found.append(jain_index([min(has[who] / gpu_s, MOST_COUNTED) for who, gpu_s in counted.items()]))
    return statistics.mean(found) if found else 1.0


class _Windows:
    """GPU-seconds by window and owner."""

    def __init__(self) -> None:
        self.gpu_s: dict[int, dict[JobOwner, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, owner: JobOwner, begin_s: float, end_s: float, gpus: float) -> None:
        at_s = begin_s
        while at_s < end_s:
            window = int(at_s // WINDOW_S)
            until_s = min(end_s, (window + 1) * WINDOW_S)
            self.gpu_s[window][owner] += (until_s - at_s) * gpus
            at_s = until_s
