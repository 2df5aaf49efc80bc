"""Works out the jobs of a snapshot, and again only those of which something has changed. No clock, no I/O.

Documents hold seconds since 1970; the snapshot uses the clock of `now`, which clock adjustments do not move.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from adaptive_scheduler.snapshot import Job, JobState, Preemption, Worker
from coordinator.model import pod_fields, requirements, resumption, time_limit
from coordinator.model import states as s
from coordinator.model.owner_names import owner_of_job
from coordinator.model.progress import (
    ObservedJob,
    TrainingSpeed,
    iteration_counts,
    iterations_left,
    last_measurement,
    state_of,
)
from coordinator.model.records import JobRecord, Moment, number
from coordinator.model.schema import image_fields
from coordinator.model.schema.job_fields import LEAST_WEIGHT
from coordinator.scheduling import dependencies
from coordinator.telemetry.changed_jobs import changed

NOT_OBSERVED = ObservedJob(None)
PARTS = 128  # the time that a job has trained is told in steps of at most this part of it, and of at least 1 s


class Basis(NamedTuple):
    """What all jobs of a snapshot have in common."""

    nodes: Mapping[str, str]  # by GPU
    ahead: float  # the clock of `now` less the wall clock
    checkpoints_last: bool
    in_pods: bool
    grace_s: float  # of a job whose record says nothing
    default_owner: str


@dataclass
class _Kept:
    """A job as it was worked out last, and from what. `job` is None for one that is left out of snapshots."""

    record: JobRecord
    seen: ObservedJob
    booked: bool
    of_document: Callable[..., Job]
    job: Job | None
    until: float  # wall clock time at which it has to be worked out again
    submit_s: float

    def submitted(self, record: JobRecord, at: Moment) -> float:
        """When it was submitted, where only the wall clock tells: no jump of that makes a job wait longer.

        Of what the clock said before and what it says now the shorter wait counts, as either may be wrong.
        """
        submit_s = at.from_epoch(record.submit_ts)
        same = (record.uid, record.submit_ts) == (self.record.uid, self.record.submit_ts)
        if same and (submit_s < self.submit_s or submit_s > at.now):
            return self.submit_s
        return submit_s


class SnapshotJobs:
    """The jobs of one snapshot after the other. A job of which nothing has changed is the same object as before."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._kept: dict[str, _Kept] = {}
        self._basis: Basis | None = None
        self._of: tuple[Mapping[str, JobRecord], Mapping[str, ObservedJob], Collection[str]] = {}, {}, ()
        self._until: list[tuple[float, str]] = []  # a heap of `_Kept.until`, some of them outdated
        self._expired: set[str] = set()  # jobs to be worked out again because of the time
        self._order: list[tuple[float, str]] = []  # submission and id of each of `_jobs`
        self._jobs: list[Job] = []
        self.jobs: tuple[Job, ...] = ()  # the oldest first

    def stale(
        self,
        jobs: Mapping[str, JobRecord],
        seen: Mapping[str, ObservedJob],
        basis: Basis,
        wall: float,
        booked: Collection[str],
    ) -> set[str]:
        """Ids of the jobs to be worked out again or dropped. `booked`: jobs that a GPU is promised to or held by.

        `jobs`, `seen` and `booked` may not change any more.
        """
        before = self._basis
        if before is None or before.nodes is not basis.nodes or before[1:] != basis[1:]:
            return self._kept.keys() | jobs.keys()
        old_jobs, old_seen, old_booked = self._of
        found = {*changed(old_jobs, jobs), *changed(old_seen, seen)}
        found |= old_seen.keys() - seen.keys() if seen is not old_seen else set()
        found |= frozenset(old_booked) ^ frozenset(booked) if booked is not old_booked else set()
        found |= self._kept.keys() - jobs.keys() if jobs is not old_jobs else set()
        while self._until and self._until[0][0] <= wall:
            _, job_id = heapq.heappop(self._until)
            if (kept := self._kept.get(job_id)) is not None and kept.until <= wall:
                self._expired.add(job_id)
        return {job_id for job_id in found | self._expired if job_id in jobs or job_id in self._kept}

    def update(
        self,
        stale: Collection[str],
        jobs: Mapping[str, JobRecord],
        seen: Mapping[str, ObservedJob],
        basis: Basis,
        at: Moment,
        booked: Collection[str],
    ) -> None:
        """Work out what `stale` has named. `seen` is without an entry for a job of which nothing was observed."""
        alike = self._basis is not None and self._basis[2:] == basis[2:]
        self._basis = None  # until all are worked out: an error leaves them stale
        for job_id in stale:
            self._give_way()
            kept, record = self._kept.get(job_id), jobs.get(job_id)
            if record is None:
                self._put(job_id, None)
                continue
            same = kept is not None and kept.record is record and alike
            of_document = kept.of_document if kept and same else _of_document(record, basis)
            found = seen.get(job_id, NOT_OBSERVED)
            submit_s = record.submitted(at)
            if submit_s is None:
                submit_s = at.from_epoch(record.submit_ts) if kept is None else kept.submitted(record, at)
            is_booked = job_id in booked
            made = _kept(record, found, basis.nodes, at, is_booked, of_document, submit_s, basis.grace_s)
            self._put(job_id, made)
        self._basis, self._of = basis, (jobs, seen, booked)
        self._expired.clear()
        if stale:
            self.jobs = tuple(self._jobs)

    def _put(self, job_id: str, now: _Kept | None) -> None:
        """Keep a job and its place in the order; None: drop it."""
        before = self._kept.pop(job_id, None)
        if before is not None and before.job is not None:
            place = bisect_left(self._order, (before.record.submit_ts, job_id))
            del self._order[place], self._jobs[place]
        if now is None:
            return
        self._kept[job_id] = now
        if now.until < math.inf and (before is None or now.until != before.until):
            heapq.heappush(self._until, (now.until, job_id))
        if now.job is not None:
            place = bisect_left(self._order, key := (now.record.submit_ts, job_id))
            self._order.insert(place, key)
            self._jobs.insert(place, now.job)


def _kept(
    record: JobRecord,
    seen: ObservedJob,
    nodes: Mapping[str, str],
    at: Moment,
    booked: bool,
    of_document: Callable[..., Job],
    submit_s: float,
    grace_s: float,
) -> _Kept:
    if record.state in s.ENDED or not record.optional:
        return _Kept(record, seen, booked, of_document, None, math.inf, submit_s)
    observed = _observed(of_document, record, seen, nodes, at, submit_s)
    made = _now(observed, record, seen, at, booked, grace_s)
    return _Kept(record, seen, booked, of_document, made, _until(record, at, grace_s), submit_s)


def _of_document(job: JobRecord, basis: Basis) -> Callable[..., Job]:
    """The job with the fields that its document alone decides; it needs those of `_observed`."""
    held = held_gpus(job)
    # One that waits for other jobs or its image says so, not this.
    suspended = job.suspended and not dependencies.is_waiting(job) and not image_fields.is_wanted(job.doc)
    stays = job.keeps_pod or not (basis.checkpoints_last or job.doc.get("checkpoint_claim"))
    beside = pod_fields.requested_beside(job.doc) if basis.in_pods and job.uses_cpu else pod_fields.SidecarRequests()
    target = requirements.target(job.doc)
    return partial(
        Job,
        id=job.id,
        type=job.job_type,
        state=cast(JobState, job.state),
        optional=(1,) if job.frozen else job.optional,
        num_gpus=len(held),
        node=_place(job),
        rigid=resumption.stays_unasked(job),
        freezes=resumption.freezable(job),
        frozen=job.frozen is not None,
        unfrozen=job.unfrozen,
        forced=job.forced,
        grew_from=int(number(job.doc.get("grew_from")) or 0),
        wanted=job.wanted,
        suspended=suspended,
        held=_why_held(job) if suspended else "",
        reshape_cost_s=job.doc.get("reshape_cost_s"),
        relaunches=job.recreated and job.gpus_per_pod is None,
        gpu_type=job.doc.get("gpu_type"),
        pinned=job.frozen or job.doc.get("pinned") or (_place(job) if stays else None),
        stays=stays,
        keeps_pod=job.keeps_pod,
        max_workers=_hosts(job),
        gpus_per_pod=job.gpus_per_pod or 0,
        target=target.value if target else None,
        epoch_iterations=job.epoch_iterations,
        beside_cores=beside.cores,
        beside_memory=beside.memory,
        limitable=job.unlimitable is None,
        rebalanced=bool(job.doc.get("rebalanced")),
        time_limit_s=requirements.seconds(job.doc.get("time_limit")),
        sla_s=requirements.seconds(job.doc.get("sla")),
        tasks=requirements.tasks(job.doc),
        estimate_s=requirements.seconds(job.doc.get("estimate")),
        expected_s=number(job.doc.get("expected_s")),
        preempts=job.preempts,
        yields_to=(job.operation or job).yields_to,
        owner=owner_of_job(job.doc, basis.default_owner),
        pool=job.pool,
        queue=str(job.doc.get("queue") or ""),
        priority=int(number(job.doc.get("priority"), -math.inf) or 0),
        weight=number(job.doc.get("weight"), LEAST_WEIGHT) or 1.0,
        preemption=_preemption(job),
    )


def _preemption(job: JobRecord) -> Preemption:
    """Return what may be taken of it for others; all of it only where it can be launched anew."""
    asked = job.doc.get("preemption")
    if asked == "never":
        return "never"
    return "shrink" if asked == "shrink" or job.keeps_pod else "any"


def _why_held(job: JobRecord) -> str:
    """Return why a suspended job is not started again, or was not started at all; empty if somebody suspended it."""
    if job.held:
        return resumption.describe_hold(job)
    if job.doc.get("hold") and job.launch == 0:
        return f"{job.id} was submitted to wait: `reshape release {job.id}` lets it start."
    return ""


def _observed(
    make: Callable[..., Job],
    job: JobRecord,
    seen: ObservedJob,
    nodes: Mapping[str, str],
    at: Moment,
    submit_s: float,
) -> Callable[..., Job]:
    """The job with the fields that observations decide, too; it needs those of `_now`. `nodes`: of each GPU."""
    held = held_gpus(job)
    done, total = iteration_counts(job, seen.beat)
    value, target = last_measurement(job, seen.beat), requirements.target(job.doc)
    state_bytes, state_path = state_of(seen.beat)
    return partial(
        make,
        submit_s=submit_s,
        iterations_left=iterations_left(job, done, total, seen.needs),
        length_unsure=bool(job.stalled) or (target is not None and seen.needs is None),
        iterations_done=done,
        cooling_until=seen.cooling_until,
        state_bytes=state_bytes,
        state_path=state_path,
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
        queued_s=at.maybe(job.doc.get("queued_ts")) if job.state == s.SUBMITTED else None,
        started_s=at.maybe(job.runs_since),
    )


def _now(make: Callable[..., Job], job: JobRecord, seen: ObservedJob, at: Moment, booked: bool, grace_s: float) -> Job:
    """The whole job, with the fields that the time decides, until `_until`."""
    ran_s, _ = _coarse(job.ran_s(at))
    ends_after_s = time_limit.asked_after_s(job, grace_s)
    limit, limit_s = job.limit_left(at)
    return make(
        running_s=ran_s,
        time_is_up=ends_after_s is not None and job.ran_s(at) >= ends_after_s and not job.cancel,
        busy=_is_busy(job, seen, booked, at),
        unsaved_s=resumption.unsaved_s(job, seen.beat, ran_s) if held_gpus(job) or job.uses_cpu else 0.0,
        cpu_limit=limit,
        limit_until_s=None if limit is None else at.now + limit_s,
        task_s=ran_s,
    )


def _coarse(ran_s: float) -> tuple[float, float]:
    """(A time in whole steps, the step): with each second other, all jobs would change at each turn."""
    step = 2.0 ** max(0, math.frexp(ran_s / PARTS)[1] - 1)
    return ran_s // step * step, step


def _until(job: JobRecord, at: Moment, grace_s: float) -> float:
    """When a field that the time decides changes next, by the wall clock; infinite if none will."""
    wall = at.wall
    _, limit_s = job.limit_left(at)
    until = [wall + left_s for left_s in (job.rest_s(at), limit_s) if left_s > 0]
    if job.runs_since is not None:
        ran_s = job.ran_s(at)
        told_s, step = _coarse(ran_s)
        until.append(wall + told_s + step - ran_s)
        ends_after_s = time_limit.asked_after_s(job, grace_s)
        if ends_after_s is not None and ends_after_s > ran_s:
            until.append(wall + ends_after_s - ran_s)
    return min(until, default=math.inf)


def _demand(job: JobRecord, speed: TrainingSpeed) -> float:
    """Cores that its user asked for, or that it was seen to use if more; infinite without a request."""
    asked = [task.cores * task.replicas for task in requirements.tasks(job.doc)]
    return max(asked[0], speed.most) if asked and asked[0] > 0 else math.inf


def _place(job: JobRecord) -> str | None:
    """Return the job's node after the operation in progress."""
    if job.state == s.SUBMITTED:  # whatever somebody wrote into its document
        return None
    op = job.operation
    if op is not None and op.kind == "move":
        return op.node
    gone = op is not None and op.kind in ("requeue", "finish")
    return job.node if (held_gpus(job) or job.uses_cpu) and not gone else None


def held_gpus(job: JobRecord) -> tuple[str, ...]:
    """Return the ids of the job's GPUs after the operation in progress."""
    if job.state == s.SUBMITTED:
        return ()
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


def _is_busy(job: JobRecord, seen: ObservedJob, booked: bool, at: Moment) -> bool:
    """True if no new operation may begin: one is in progress, or the job's state is uncertain."""
    if job.operation is not None or job.cancel:
        return True
    if job.state == s.SUBMITTED:
        unfinished = job.launch > 0 and job.doc.get("down") != job.launch
        if job.frozen:
            unfinished = seen.beat is None or seen.beat.shim.trainer != "frozen"
        return job.rest_s(at) > 0 or booked or unfinished or is_held(job)
    rests = job.state != s.RUNNING or job.rest_s(at) > 0
    return rests or seen.beat is None or seen.beat.shim.trainer != "running"


def is_held(job: JobRecord) -> bool:
    """True if something else than the scheduler keeps a waiting job from starting, such as Volcano or its image."""
    waits = dependencies.is_waiting(job) or image_fields.is_wanted(job.doc)
    return bool(job.doc.get("held_back")) or waits or job.suspended
