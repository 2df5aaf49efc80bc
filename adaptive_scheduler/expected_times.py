"""When a waiting job starts and a placed one ends if nothing is reshaped: told to people who ask, never decided on.

The queue in its order, each job on the fewest GPUs that it may start on, as soon as running jobs have left so many on
nodes where it may run. Computed anew from the snapshot of the moment, because it is old within seconds. Pure; called
by the coordinator's desk. Times are seconds from now.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from adaptive_scheduler.candidates import min_start_gpus, nodes_for
from adaptive_scheduler.models.prediction import end_is_certain, is_certain, t_keep, t_new
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

MOST = 200
"""Waiting jobs that are told when they start: of those far behind in a long queue nothing sensible can be said."""


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """Of a waiting job its start, of a placed one its end; both None where nobody can say."""

    start_s: float | None = None
    end_s: float | None = None
    guesses: tuple[str, ...] = ()  # jobs of unknown length or speed that this rests on

    @property
    def guess(self) -> bool:
        """Whether it rests on a length or speed that nobody knows."""
        return bool(self.guesses)


@dataclass(frozen=True, slots=True, order=True)
class _Ends:
    """A job's end, and what it then leaves."""

    at_s: float
    job: str
    leaves: tuple[tuple[str, int], ...]
    certain: bool


def jobs_of_unknown_end(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """Placed jobs whose end nobody knows: a makespan that counts them is a guess."""
    return tuple(job.id for job in snapshot.placed if not end_is_certain(snapshot, job))


def expected_times(snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS) -> dict[str, ExpectedTimes]:
    """By job. `now` is on the clock of the snapshot's times. Jobs trained on CPU are left out: they share cores."""
    world = replace(snapshot, profiles=snapshot.profiles.scaled(settings.batch_scaling))
    running = [_end(world, job) for job in world.placed]
    placed = {e.job: ExpectedTimes(end_s=e.at_s) if e.certain else ExpectedTimes(guesses=(e.job,)) for e in running}
    queue = [job for job in Queue(now, settings).in_order(world) if not job.uses_cpu]
    return placed | dict(_starts(world, running, queue[:MOST], settings))


def _starts(
    world: ClusterSnapshot, running: list[_Ends], queue: list[Job], settings: Settings
) -> Iterator[tuple[str, ExpectedTimes]]:
    idle = {node.name: node.idle for node in world.nodes}
    nodes = {job.id: [n for n in nodes_for(world, job) if n.open] for job in queue}
    names = {job_id: frozenset(node.name for node in there) for job_id, there in nodes.items()}
    counts = {job.id: min_start_gpus(world, job, settings) for job in queue}
    ends, seen, at_s = sorted(running), list(running), 0.0
    freed: frozenset[str] | None = None  # nodes that have more than in the round before; None: all are looked at
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


def _rests_on(nodes: list[Node], seen: list[_Ends]) -> tuple[str, ...]:
    """A job of unknown length on these nodes may end at any time, and all who wait for them then start earlier."""
    names = {node.name for node in nodes}
    return tuple(e.job for e in seen if not e.certain and any(name in names for name, _ in e.leaves))


def _place(job: Job, count: int, nodes: list[Node], idle: Mapping[str, int]) -> dict[str, int]:
    """So many idle GPUs of one type on as few nodes as the job may be spread over; empty where there are none."""
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


def _end(world: ClusterSnapshot, job: Job) -> _Ends:
    node = world.node.get(job.node or "")
    kind = node.gpu_type if node else ""
    left = tuple((w.node, w.num_gpus) for w in job.workers) or ((job.node or "", job.num_gpus),)
    launch_s = 0.0
    if job.state in ("submitted", "initializing"):
        overheads = world.profiles.overheads(job.type)
        launch_s = overheads.k8s_init + overheads.proc_init
    return _Ends(launch_s + t_keep(world.profiles, job, kind), job.id, left, end_is_certain(world, job))


def _started(world: ClusterSnapshot, job: Job, place: Mapping[str, int], at_s: float) -> _Ends:
    kind, count = world.node[next(iter(place))].gpu_type, sum(place.values())
    takes_s = t_new(world.profiles, job, kind, count, len(place))
    certain = is_certain(world.profiles, job, kind, count, len(place))
    return _Ends(at_s + takes_s, job.id, tuple(place.items()), certain)
