"""Predicts when waiting jobs start and placed ones end if nothing is reshaped: shown to people, never decided on.

Simulates the queue in its order, each job on the fewest GPUs that it may start on, as running jobs free GPUs on nodes
open to it. Computed anew from each snapshot. Called by the coordinator's API service. Pure; seconds from now."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from adaptive_scheduler.candidates import min_start_gpus, nodes_for
from adaptive_scheduler.models.prediction import end_is_certain, is_certain, t_keep, t_new, time_left_s
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

MOST = 200
"""Waiting jobs whose start is predicted; further back in a queue a prediction means nothing."""


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """The start of a waiting job, the end of a placed one; None if unknown."""

    start_s: float | None = None
    end_s: float | None = None
    guesses: tuple[str, ...] = ()  # jobs of unknown length or speed on which this rests

    @property
    def guess(self) -> bool:
        """True if the prediction rests on an unknown length or speed."""
        return bool(self.guesses)


@dataclass(frozen=True, slots=True, order=True)
class _Completion:
    """The end of a job and the GPUs that it then frees."""

    at_s: float
    job: str
    leaves: tuple[tuple[str, int], ...]
    certain: bool


def expected_times(
    snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS, bound: Collection[str] = ()
) -> dict[str, ExpectedTimes]:
    """Return the expected times by job; none for jobs trained on CPU, which share cores. `now` as in `decide`. `bound`:
    waiting jobs that idle GPUs do not start, such as those whose budget is used up; their start is unknown."""
    world = replace(snapshot, profiles=snapshot.profiles.scaled(settings.batch_scaling))
    running = [_end(world, job) for job in world.placed]
    placed = {e.job: ExpectedTimes(end_s=e.at_s) if e.certain else ExpectedTimes(guesses=(e.job,)) for e in running}
    queue = [job for job in Queue(now, settings).in_order(world) if not job.uses_cpu and job.id not in bound]
    return placed | dict(_starts(world, running, queue[:MOST], settings))


def _starts(
    world: ClusterSnapshot, running: list[_Completion], queue: list[Job], settings: Settings
) -> Iterator[tuple[str, ExpectedTimes]]:
    idle = {node.name: node.idle for node in world.nodes}
    nodes = {job.id: [n for n in nodes_for(world, job) if n.open] for job in queue}
    names = {job_id: frozenset(node.name for node in there) for job_id, there in nodes.items()}
    counts = {job.id: min_start_gpus(world, job, settings) for job in queue}
    ends, seen, at_s = sorted(running), list(running), 0.0
    freed: frozenset[str] | None = None  # nodes with GPUs freed in the last round; None: all
    while queue:
        waiting = []
        for job in queue:
            there = nodes[job.id]
            if freed is not None and job.max_workers <= 1:
                there = [world.node[name] for name in freed & names[job.id]]
            place = _place(job, counts[job.id], there, idle)
            if not place:
                waiting.append(job)
                continue
            yield job.id, ExpectedTimes(start_s=at_s, guesses=_rests_on(nodes[job.id], seen) if at_s > 0 else ())
            started = _started(world, job, place, at_s)
            heapq.heappush(ends, started)
            seen.append(started)
            for name, count in place.items():
                idle[name] -= count
        queue = waiting
        if not ends:
            return
        ended = heapq.heappop(ends)
        at_s = ended.at_s
        for name, count in ended.leaves:
            idle[name] = idle.get(name, 0) + count
        freed = frozenset(name for name, _ in ended.leaves)


def _rests_on(nodes: list[Node], seen: list[_Completion]) -> tuple[str, ...]:
    """Return jobs of unknown length on these nodes: each may end at any time and so start waiting jobs earlier."""
    names = {node.name for node in nodes}
    return tuple(e.job for e in seen if not e.certain and any(name in names for name, _ in e.leaves))


def _place(job: Job, count: int, nodes: list[Node], idle: Mapping[str, int]) -> dict[str, int]:
    """Place `count` idle GPUs of one type on as few nodes as possible, at most `max_workers`; empty if impossible."""
    if count <= 0:
        return {}
    for kind in sorted({node.gpu_type for node in nodes}):
        names = sorted((n.name for n in nodes if n.gpu_type == kind), key=lambda name: (-idle[name], name))
        taken: dict[str, int] = {}
        for name in names[: max(1, job.max_workers)]:
            each = job.gpus_per_pod or 1
            if part := min(idle[name], count - sum(taken.values())) // each * each:
                taken[name] = part
        if sum(taken.values()) == count:
            return taken
    return {}


def _end(world: ClusterSnapshot, job: Job) -> _Completion:
    node = world.node.get(job.node or "")
    kind = node.gpu_type if node else ""
    left = tuple((w.node, w.num_gpus) for w in job.workers) or ((job.node or "", job.num_gpus),)
    launch_s = 0.0
    if job.state in ("submitted", "initializing"):
        overheads = world.profiles.overheads(job.type)
        launch_s = overheads.k8s_init + overheads.proc_init
    known = world.profiles.speed(job.type, kind, job.num_gpus, len(job.workers) or 1)
    if known is None and job.rate and job.iterations_left is not None:
        # A type that has no profile yet: what this job shows of itself is what the list of jobs shows as its end.
        trains_s = min(max(job.iterations_left, 0.0) / job.rate, time_left_s(job), LARGEST)
        ends_s = trains_s + world.profiles.overheads(job.type).finish
        return _Completion(ends_s, job.id, left, not job.length_unsure)
    return _Completion(launch_s + t_keep(world.profiles, job, kind), job.id, left, end_is_certain(world, job))


def _started(world: ClusterSnapshot, job: Job, place: Mapping[str, int], at_s: float) -> _Completion:
    kind, count = world.node[next(iter(place))].gpu_type, sum(place.values())
    takes_s = t_new(world.profiles, job, kind, count, len(place))
    certain = is_certain(world.profiles, job, kind, count, len(place))
    return _Completion(at_s + takes_s, job.id, tuple(place.items()), certain)
