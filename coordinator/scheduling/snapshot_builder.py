"""Builds the frozen snapshot that decisions are made on from the cache and from observations. No clock, no I/O.

Documents hold seconds since 1970; the snapshot uses the clock of `now`, which clock adjustments do not move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

from adaptive_scheduler.profiles.observations import Observations
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, GpuState, Job, JobState, Node, Worker
from coordinator.model import requirements, resumption
from coordinator.model import states as s
from coordinator.model.progress import (
    Moment,
    ObservedJob,
    TrainingSpeed,
    iteration_counts,
    iterations_left,
    last_measurement,
)
from coordinator.model.records import GpuRecord, JobRecord, number, takes_work
from coordinator.model.tables import NodeRow
from coordinator.scheduling import dependencies
from sidecar.protocol import Heartbeat

NOT_OBSERVED = ObservedJob(None)
JITTER_S = 1e-4  # between two readings of two clocks


@dataclass(frozen=True)
class SnapshotInputs:
    """Inputs of a snapshot beside jobs and GPUs."""

    profiles: Profiles = field(default_factory=Profiles)
    observations: Observations = field(default_factory=Observations)
    nodes: Mapping[str, NodeRow] = field(default_factory=dict)  # documents by node; some nodes have none
    checkpoints_last: bool = True  # checkpoints outlive their launch, unless a job says otherwise


class Basis(NamedTuple):
    """All that a job of a snapshot is made of, but the time."""

    make: Callable[..., Job]
    nodes: Mapping[str, str]
    ahead: float
    seen: ObservedJob

    def is_like(self, other: Basis) -> bool:
        same = self.make is other.make and self.nodes is other.nodes and self.ahead == other.ahead
        return same and self.seen == other.seen


class SnapshotBuilder:
    """Builds one snapshot after the other, and works out again only what depends on records that have changed."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[JobRecord, bool, Callable[..., Job]]] = {}  # record, `checkpoints_last`, job
        self._seen: dict[str, tuple[Basis, Callable[..., Job]]] = {}
        self._nodes: dict[str, str] = {}  # by GPU
        self._ahead = math.inf  # the clock of `now` less the wall clock
        self._gpus: Mapping[str, GpuRecord] | None = None  # as they were at the last snapshot
        self._promised: dict[str, str] = {}
        self._booked: set[str | None] = set()  # jobs that a GPU is promised to or held by
        self._by_node: dict[str, tuple[str, tuple[Gpu, ...]]] = {}  # GPU type, GPUs

    def build(
        self,
        jobs: Mapping[str, JobRecord],
        gpus: Mapping[str, GpuRecord],
        seen: Mapping[str, ObservedJob],
        known: SnapshotInputs,
        at: Moment,
    ) -> ClusterSnapshot:
        """The cluster as it will be after the operations in progress. `gpus` must not change any more."""
        at = self._steady(at)
        self._group(gpus, {g: j.id for j in jobs.values() if j.operation for g in j.operation.to})
        here: dict[str, list[Heartbeat | None]] = {name: [] for name in known.nodes.keys() | self._by_node.keys()}
        for job in jobs.values():
            if job.node in here and job.id in seen:
                here[job.node].append(seen[job.id].beat)
        nodes = [_node(n, *self._by_node.get(n, ("", ())), known.nodes.get(n, {}), here[n]) for n in sorted(here)]
        waiting = [j for j in jobs.values() if j.state not in s.ENDED and j.optional]
        waiting.sort(key=lambda j: (j.submit_ts, j.id))
        for job_id in self._jobs.keys() - jobs.keys():
            del self._jobs[job_id]
            self._seen.pop(job_id, None)  # not there if the job could not be worked out
        return ClusterSnapshot(
            nodes=tuple(nodes),
            jobs=tuple(self._job(j, seen.get(j.id, NOT_OBSERVED), at, known.checkpoints_last) for j in waiting),
            profiles=known.profiles,
            observations=known.observations,
        )

    def _group(self, gpus: Mapping[str, GpuRecord], promised: dict[str, str]) -> None:
        """Group GPUs by node, unless neither they nor the promises of operations have changed."""
        if gpus is self._gpus and promised == self._promised:
            return
        self._gpus, self._promised = gpus, promised
        self._booked = {job for gpu in gpus.values() for job in (gpu.job, gpu.held_by)}
        nodes = {gpu.id: gpu.node for gpu in gpus.values()}
        self._nodes = self._nodes if nodes == self._nodes else nodes
        members: dict[str, list[GpuRecord]] = {}
        for gpu in sorted(gpus.values(), key=lambda g: (g.doc.get("index", 0), g.id)):
            members.setdefault(gpu.node, []).append(gpu)
        self._by_node = {
            # a faulty GPU's type may be outdated
            name: (min(found, key=lambda g: g.faulty).gpu_type, tuple(_gpu(g, promised.get(g.id)) for g in found))
            for name, found in members.items()
        }

    def _job(
        self,
        job: JobRecord,
        seen: ObservedJob,
        at: Moment,
        checkpoints_last: bool,
    ) -> Job:
        record, lasting, make = self._jobs.get(job.id, (None, None, None))
        if make is None or record is not job or lasting is not checkpoints_last:
            make = _of_document(job, checkpoints_last)
            self._jobs[job.id] = job, checkpoints_last, make
        basis = Basis(make, self._nodes, self._ahead, seen)
        before, complete = self._seen.get(job.id, (None, None))
        if complete is None or before is None or not before.is_like(basis):
            complete = _observed(make, job, seen, self._nodes, at)
            self._seen[job.id] = basis, complete
        return _now(complete, job, seen, at, job.id in self._booked)

    def _steady(self, at: Moment) -> Moment:
        """The same moment, of which the distance of the clocks is the last one's unless they have drifted apart."""
        if not abs(at.now - at.wall - self._ahead) < JITTER_S:
            self._ahead = at.now - at.wall
        return Moment(at.now, at.now - self._ahead)


def _node(name: str, gpu_type: str, gpus: tuple[Gpu, ...], doc: NodeRow, beats: Sequence[Heartbeat | None]) -> Node:
    """A node. Its use comes from its agent (S18), else from the heartbeats of its jobs, `beats`."""
    cores, memory = number(doc.get("cores")) or 0.0, number(doc.get("memory")) or 0.0
    others = held_by_others(doc)
    usages = [beat.usage for beat in beats if beat is not None]
    return Node(
        name=name,
        gpu_type=gpu_type,
        gpus=gpus,
        cores=max(0.0, cores - others["cores"]),
        memory=max(1.0, memory - others["memory"]) if memory else 0.0,  # 0 would mean unknown
        schedulable=takes_work(doc),
        cpu_use=_known(doc.get("cpu_use"), _share(math.fsum(u.cpu_cores or 0.0 for u in usages), cores)),
        memory_use=_known(doc.get("memory_use"), _share(math.fsum(u.memory or 0 for u in usages), memory)),
        heard=doc.get("heard") is not False,
    )


def held_by_others(doc: NodeRow) -> dict[str, float]:
    """Requests of foreign pods on a node in cores and bytes, as the launcher counted them; else 0."""
    others = doc.get("others")
    found = others if isinstance(others, dict) else {}
    return {resource: number(found.get(resource)) or 0.0 for resource in ("cores", "memory")}


def _known(share: object, otherwise: float) -> float:
    return otherwise if (found := number(share)) is None else min(1.0, found)


def _share(used: float, whole: float) -> float:
    return min(1.0, used / whole) if whole else 0.0


def _gpu(gpu: GpuRecord, promised: str | None) -> Gpu:
    """A GPU; an idle one that an operation names counts as reserved before it is claimed."""
    if gpu.state == s.IDLE and promised is not None:
        return Gpu(gpu.id, "reserved", promised)
    return Gpu(gpu.id, cast(GpuState, gpu.state), gpu.job, gpu.held_by)


def _of_document(job: JobRecord, checkpoints_last: bool) -> Callable[..., Job]:
    """The job with the fields that its document alone decides; it needs those of `_observed`."""
    held = _held(job)
    stays = not (checkpoints_last or job.doc.get("checkpoint_claim"))
    target = requirements.target(job.doc)
    return partial(
        Job,
        id=job.id,
        type=job.job_type,
        state=cast(JobState, job.state),
        optional=job.optional,
        num_gpus=len(held),
        node=_place(job),
        rigid=resumption.rigid(job),
        forced=job.forced,
        grew_from=int(number(job.doc.get("grew_from")) or 0),
        wanted=job.wanted,
        reshape_cost_s=job.doc.get("reshape_cost_s"),
        relaunches=job.recreated and job.gpus_per_pod is None,
        gpu_type=job.doc.get("gpu_type"),
        pinned=job.doc.get("pinned") or (_place(job) if stays else None),
        stays=stays,
        max_workers=_hosts(job),
        gpus_per_pod=job.gpus_per_pod or 0,
        target=target.value if target else None,
        epoch_iterations=job.epoch_iterations,
        limitable=job.unlimitable is None,
        rebalanced=bool(job.doc.get("rebalanced")),
        sla_s=requirements.seconds(job.doc.get("sla")),
        tasks=requirements.tasks(job.doc),
        estimate_s=requirements.seconds(job.doc.get("estimate")),
        expected_s=number(job.doc.get("expected_s")),
        preempts=job.preempts,
        yields_to=(job.operation or job).yields_to,
    )


def _observed(
    make: Callable[..., Job], job: JobRecord, seen: ObservedJob, nodes: Mapping[str, str], at: Moment
) -> Callable[..., Job]:
    """The job with the fields that observations decide, too; it needs those of `_now`. `nodes`: of each GPU."""
    held = _held(job)
    done, total = iteration_counts(job, seen.beat)
    value, target = last_measurement(job, seen.beat), requirements.target(job.doc)
    return partial(
        make,
        submit_s=at.of(job.submit_ts),
        iterations_left=iterations_left(job, done, total, seen.needs),
        length_unsure=target is not None and seen.needs is None,
        iterations_done=done,
        cooling_until=seen.cooling_until,
        pods=_pods(job, held, nodes),
        workers=_workers(held, nodes),
        target_reached=target is not None and target.reached(*value),
        value=value[0],
        demand=_demand(job, seen.speed),
        rate=seen.speed.rate,
        share=seen.speed.cores,
        growth=seen.growth,
        efficiency=seen.efficiency,
        migrated_s=at.maybe(job.doc.get("migrated_ts")),
        move_refused_s=at.maybe(job.doc.get("move_refused_ts")),
    )


def _now(make: Callable[..., Job], job: JobRecord, seen: ObservedJob, at: Moment, booked: bool) -> Job:
    """The whole job, with the fields that the time decides. `booked`: a GPU is promised to it or held by it."""
    ran_s, (limit, limit_s) = job.ran_s(at.wall), job.limit_left(at.wall)
    return make(
        running_s=ran_s,
        leased=_leased(job, seen, booked, at.wall),
        unsaved_s=resumption.unsaved_s(job, seen.beat, ran_s) if _held(job) or job.uses_cpu else 0.0,
        cpu_limit=limit,
        limit_until_s=None if limit is None else at.now + limit_s,
        task_s=ran_s,
    )


def _demand(job: JobRecord, speed: TrainingSpeed) -> float:
    """Cores that its user asked for, or that it was seen to use if more; infinite without a request."""
    asked = [task.cores * task.replicas for task in requirements.tasks(job.doc)]
    return max(asked[0], speed.most) if asked and asked[0] > 0 else math.inf


def _place(job: JobRecord) -> str | None:
    """Return the job's node after the operation in progress."""
    op = job.operation
    if op is not None and op.kind == "move":
        return op.node
    gone = op is not None and op.kind in ("requeue", "finish")
    return job.node if (_held(job) or job.uses_cpu) and not gone else None


def _held(job: JobRecord) -> tuple[str, ...]:
    """Return the job's GPUs after the operation in progress."""
    return job.gpu_ids if job.operation is None else job.operation.to


def _workers(held: Sequence[str], nodes: Mapping[str, str]) -> tuple[Worker, ...]:
    """GPUs per host; empty if they are on one."""
    counts: dict[str, int] = {}
    for gpu_id in held:
        if gpu_id in nodes:
            counts[nodes[gpu_id]] = counts.get(nodes[gpu_id], 0) + 1
    return tuple(Worker(node, count) for node, count in counts.items()) if len(counts) > 1 else ()


def _hosts(job: JobRecord) -> int:
    """The most nodes that it may use: by default one, or one per pod of a gang."""
    most = max(job.optional, default=1) // job.gpus_per_pod if job.gpus_per_pod else 1
    return int(number(job.doc.get("max_workers"), 1) or most)


def _pods(job: JobRecord, held: Sequence[str], nodes: Mapping[str, str]) -> tuple[str, ...]:
    """The node of each pod of a gang; empty while unknown."""
    if job.gpus_per_pod is None or not held or any(gpu_id not in nodes for gpu_id in held):
        return ()
    return tuple(nodes[part[0]] for part in job.parts(held))


def _leased(job: JobRecord, seen: ObservedJob, booked: bool, wall: float) -> bool:
    """True if no new operation may begin: one is in progress, or the job's state is uncertain."""
    if job.operation is not None or job.cancel:
        return True
    if job.state == s.SUBMITTED:
        unfinished = job.launch > 0 and job.doc.get("down") != job.launch
        return wall < job.retry_ts or booked or unfinished or is_held(job)
    rests = job.state != s.RUNNING or wall < job.retry_ts
    return rests or seen.beat is None or seen.beat.shim.trainer != "running"


def is_held(job: JobRecord) -> bool:
    """True if something else than the scheduler keeps a waiting job from starting: an operator, Volcano, other jobs."""
    return bool(job.doc.get("held_back")) or dependencies.is_waiting(job) or job.suspended
