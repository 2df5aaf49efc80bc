"""Reads from a snapshot what the planner needs of each GPU job: its seconds on every count, its costs, and its freedom.

Also finds the jobs that the end of all work hangs on, and which ones are judged together (`algorithms.md` 1.12). Called
by `planner.py`. Pure; seconds from now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adaptive_scheduler.candidates import change_obstacle, nodes_for
from adaptive_scheduler.models.prediction import assumed_s, cross_host_s, reshape_delay_s, time_left_s
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, is_placed

LEAST_S = 0.001
"""A job takes at least this long, so that no logarithm or quotient of a time is infinite."""
SLACK = 1.1
"""A job is late if 1.1 times its fastest run reaches the end of all work."""
BISECTIONS = 12
"""The end of all work is found to 1/4096 of its bracket."""

Seconds = Mapping[int, float]
"""Remaining seconds by GPU count; without counts that are no faster than a smaller one."""


@dataclass(slots=True)
class PlannedJob:
    """One job on GPUs. `host` is a position in `PlannedCluster.names`, -1 while it waits."""

    job: Job
    host: int
    num_gpus: int
    seconds: tuple[Seconds, ...]  # by kind of GPU
    here_s: float  # remaining seconds as it is placed now; infinite while it waits
    start_s: float  # from the decision to its first iteration, of a waiting one
    begin_s: float  # of that: from its launch to its first iteration
    reshape_s: float  # that it stands still for a reshape
    move_s: float  # that it stands still for a move
    least_growth_gain_s: float  # that a growth must save beyond its standstill
    least_move_gain_s: float  # that a move must save beyond its standstill
    trains_at_s: float  # until its operation under way ends
    changes_at_s: float  # until it may be changed; infinite: never
    age_s: float  # since it was submitted
    group: int = 0  # position in `PlannedCluster.groups`
    weight: float = 1.0  # its completion time counts so often; on average 1 over the jobs of its owner
    counts: tuple[tuple[int, ...], ...] = ()  # of `seconds`, ascending
    late: bool = False
    fastest_s: float = field(init=False)
    least_gpu_s: float = field(init=False)
    size_gpu_s: float = field(init=False)  # on its smallest count

    def __post_init__(self) -> None:
        self.counts = tuple(tuple(sorted(row)) for row in self.seconds)
        self.fastest_s = min(value for row in self.seconds for value in row.values())
        self.least_gpu_s = min(count * value for row in self.seconds for count, value in row.items())
        self.size_gpu_s = min(min(row) * row[min(row)] for row in self.seconds if row)

    @property
    def waits(self) -> bool:
        return self.host < 0

    def gains_enough(self, seconds: float, host: int) -> bool:
        """Return whether a running job may grow, or move to this host, to take so many seconds there from now on."""
        least_s = self.least_growth_gain_s if host == self.host else self.least_move_gain_s
        return self.here_s - seconds - self.standstill_s(host) > least_s

    def standstill_s(self, host: int) -> float:
        """Return how long a start, a reshape or a move to this host keeps it from training."""
        if self.waits:
            return self.start_s
        return self.reshape_s if host == self.host else self.move_s


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """Jobs that a plan is judged by together: one sum of completion times, and one last end."""

    makespan_weight: float
    weighted: bool  # whether the owners of its jobs have given them different weights
    num_jobs: int


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """The nodes with GPUs, by position, and the jobs."""

    names: tuple[str, ...]
    kinds: tuple[int, ...]  # by node: position of its GPU type in `PlannedJob.seconds`
    gpus: tuple[int, ...]  # by node: those that work
    idle: tuple[int, ...]  # by node: those that can be given away now
    is_open: tuple[bool, ...]  # by node: whether jobs may start or grow there
    jobs: tuple[PlannedJob, ...]
    moves: bool  # whether jobs may move to another node
    groups: tuple[PlanGroup, ...]

    def may_be_on(self, job: int, host: int) -> bool:
        """Return whether the job is pinned to no other node, and has a count with a known speed there."""
        one = self.jobs[job]
        return one.job.pinned in (None, self.names[host]) and bool(one.counts[self.kinds[host]])


def read_cluster(snapshot: ClusterSnapshot, now: float, settings: Settings) -> PlannedCluster | None:
    """Return the cluster as the planner sees it. None if a job has no known speed: it has to be measured first."""
    nodes = [node for node in snapshot.nodes if node.gpus]
    types = sorted({node.gpu_type for node in nodes})
    largest = [max(len(node.gpus) for node in nodes if node.gpu_type == name) for name in types]
    positions = {node.name: position for position, node in enumerate(nodes)}
    kinds = tuple(types.index(node.gpu_type) for node in nodes)
    tables: dict[object, tuple[Seconds, ...]] = {}
    jobs = list[PlannedJob]()
    for job in snapshot.jobs:
        if job.uses_cpu or not (is_placed(job) or _may_wait(snapshot, job)):
            continue
        key = job.type, job.optional, job.gpu_type
        if key not in tables:
            tables[key] = _seconds_per_iteration(snapshot, job, types, largest)
        if not any(tables[key]):
            return None
        planned = _planned(snapshot, job, now, positions, types, kinds, tables[key], settings.min_gain_factor)
        if planned is None:
            return None
        jobs.append(planned)
    return PlannedCluster(
        names=tuple(node.name for node in nodes),
        kinds=kinds,
        gpus=tuple(node.healthy for node in nodes),
        idle=tuple(node.idle for node in nodes),
        is_open=tuple(node.open for node in nodes),
        jobs=tuple(jobs),
        moves=settings.moves and len(nodes) > 1,
        groups=_group_jobs(jobs, snapshot.shares, settings.makespan_weight),
    )


def _group_jobs(jobs: Sequence[PlannedJob], shares: Shares, makespan_weight: float) -> tuple[PlanGroup, ...]:
    """Write into each job its group and its scaled weight, and return the groups.

    Jobs of queues with another `makespan_weight` are apart, and so are those of owners who weight their jobs: no plan
    may cost one group anything for the gain of another. Weights count among the jobs of one owner alone, so they are
    scaled to a mean of 1. `makespan_weight`: of queues that have none of their own.
    """
    own_weights = {queue.makespan_weight for queue in shares.queues.values()} - {None, makespan_weight}
    if not own_weights and all(one.job.weight == 1.0 for one in jobs):
        return (PlanGroup(makespan_weight, False, len(jobs)),)
    jobs_of: dict[JobOwner, list[PlannedJob]] = {}
    for one in jobs:
        jobs_of.setdefault(shares.owner_of(one.job.queue, one.job.owner), []).append(one)
    members: dict[tuple[float, bool], list[PlannedJob]] = {}
    for owner, own_jobs in jobs_of.items():
        own_weight = shares.queue(owner.queue).makespan_weight
        weighted = len({one.job.weight for one in own_jobs}) > 1
        if weighted:
            mean = math.fsum(one.job.weight for one in own_jobs) / len(own_jobs)
            for one in own_jobs:
                one.weight = one.job.weight / mean
        kind = (makespan_weight if own_weight is None else own_weight, weighted)
        members.setdefault(kind, []).extend(own_jobs)
    for group, together in enumerate(members.values()):
        for one in together:
            one.group = group
    return tuple(PlanGroup(*kind, len(together)) for kind, together in members.items())


def _may_wait(snapshot: ClusterSnapshot, job: Job) -> bool:
    """Return whether it waits for GPUs that some node has. One that can never start has no part in any plan."""
    if job.state != "submitted" or job.busy or job.suspended or not job.optional:
        return False
    return any(node.open and job.optional[0] <= node.healthy for node in nodes_for(snapshot, job))


def _seconds_per_iteration(
    snapshot: ClusterSnapshot, job: Job, types: Sequence[str], largest: Sequence[int]
) -> tuple[Seconds, ...]:
    """Return by kind of GPU the seconds per iteration of the counts that are faster than each smaller one."""
    rows = list[Seconds]()
    for gpu_type, most in zip(types, largest, strict=True):
        row = dict[int, float]()
        best_s = math.inf
        for count in job.optional if job.gpu_type in (None, gpu_type) else ():
            speed = snapshot.profiles.speed(job.type, gpu_type, count) if 0 < count <= most else None
            if speed is not None and speed.seconds < best_s:
                row[count] = best_s = speed.seconds
        rows.append(row)
    return tuple(rows)


def _planned(
    snapshot: ClusterSnapshot,
    job: Job,
    now: float,
    positions: Mapping[str, int],
    types: Sequence[str],
    kinds: Sequence[int],
    table: tuple[Seconds, ...],
    gain_factor: float,
) -> PlannedJob | None:
    """Return the job, or None if it is placed on an unknown node, or where no speed of it is known."""
    profiles = snapshot.profiles
    overheads = profiles.overheads(job.type)
    host = -1
    present_s = None
    if is_placed(job):
        host = positions.get(job.node or "", -1)
        if host < 0:
            return None
        speed = profiles.speed(job.type, types[kinds[host]], job.num_gpus)
        if speed is None:
            return None
        present_s = speed.seconds
    iterations = job.iterations_left
    if iterations is None:
        iterations = assumed_s(job) / (present_s or _first_seconds(table))
    most_s = time_left_s(job)
    reshape_s = reshape_delay_s(profiles, job)
    start_s = overheads.k8s_init + overheads.proc_init
    move_s = reshape_s + cross_host_s(profiles, job)
    cost_s = reshape_s if job.reshape_cost_s is None else job.reshape_cost_s  # as Algorithm 2 counts it
    return PlannedJob(
        job=job,
        host=host,
        num_gpus=job.num_gpus,
        seconds=tuple(
            {count: _bounded(min(each * iterations, most_s)) for count, each in row.items()} for row in table
        ),
        here_s=math.inf if present_s is None else _bounded(min(present_s * iterations, most_s)),
        start_s=start_s,
        begin_s=overheads.proc_init,
        reshape_s=reshape_s,
        move_s=move_s,
        least_growth_gain_s=gain_factor * cost_s,
        least_move_gain_s=gain_factor * (cost_s + move_s - reshape_s),
        trains_at_s=_until_it_trains(job, start_s, reshape_s),
        changes_at_s=_until_it_changes(job, now, start_s, reshape_s),
        age_s=max(0.0, now - job.submit_s),
    )


def _first_seconds(table: tuple[Seconds, ...]) -> float:
    """Return the seconds per iteration of the smallest count on the first kind that the job may use."""
    row = next(row for row in table if row)
    return row[min(row)]


def _bounded(value: float) -> float:
    return min(max(value, LEAST_S), LARGEST)


def _until_it_trains(job: Job, start_s: float, reshape_s: float) -> float:
    """Return how long an operation under way takes at most: the snapshot does not say when it began."""
    if not job.busy:
        return 0.0
    return start_s if job.state in ("initializing", "initialized") else reshape_s


def _until_it_changes(job: Job, now: float, start_s: float, reshape_s: float) -> float:
    if job.rigid or job.wanted is not None:
        return math.inf
    if job.busy:
        return _until_it_trains(job, start_s, reshape_s)
    if job.num_gpus and change_obstacle(job):
        return math.inf
    return max(0.0, job.cooling_until - now)


def mark_late(cluster: PlannedCluster) -> None:
    """Mark the jobs that the end of all work hangs on.

    The end of all work is the least time in which each job has a count that ends within it, and their least GPU-seconds
    fit on all GPUs together (a dual approximation). GPUs of all types count alike: on mixed ones it is too early.
    """
    jobs = cluster.jobs
    total = float(sum(cluster.gpus))
    if not jobs or not total:
        return
    options = [sorted((value, count * value) for row in one.seconds for count, value in row.items()) for one in jobs]
    low = high = max(one.fastest_s for one in jobs)
    while _gpu_s_within(options, high * 1.0000001) > total * high:
        high = high * 1.3 + 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _gpu_s_within(options, middle) > total * middle:
            low = middle
        else:
            high = middle
    end_s = high + max(one.start_s for one in jobs)
    for one in jobs:
        one.late = one.fastest_s * SLACK + (one.start_s if one.waits else 0.0) >= end_s


def _gpu_s_within(options: Sequence[Sequence[tuple[float, float]]], limit_s: float) -> float:
    """Return the least GPU-seconds with which every job ends within `limit_s`; infinite if one cannot."""
    total = 0.0
    for of_job in options:
        least = math.inf
        for value, gpu_s in of_job:
            if value > limit_s:
                break
            least = min(least, gpu_s)
        total += least
    return total
