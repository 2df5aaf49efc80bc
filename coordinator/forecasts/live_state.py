"""Reads the live state of a system from a snapshot, and changes the copy: jobs, GPUs, nodes, deadlines, policy.

Times are seconds from now. Nothing here touches the system. Raises `Rejected` with a sentence for a change that cannot
be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from coordinator.errors import Rejected
from coordinator.model.records import JobRecord, Moment
from coordinator.model.tables import JobRow, plain
from coordinator.scheduling import intake
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs

TABLES = ("speed_profiles", "overheads", "accuracy_profiles")


@dataclass(frozen=True)
class LiveState:
    """The system now, or as it could be."""

    snapshot: ClusterSnapshot
    settings: Settings
    relaunches: bool = False  # a reshape is another launch
    left_out: tuple[str, ...] = ()  # ids of jobs on CPU, and of those that wait for something else than GPUs

    @classmethod
    def read(cls, view: Mapping[str, Any], profiles: Profiles) -> LiveState:
        """Of what the coordinator answers at `/v1/snapshot`."""
        nodes = tuple(msgspec.convert(doc, Node) for doc in view["nodes"])
        shares = msgspec.convert(view.get("shares", {}), Shares)
        used = {JobOwner(str(queue), str(user)): float(use) for queue, user, use in view.get("used", ())}
        jobs = tuple(msgspec.convert(doc, Job) for doc in view["jobs"])
        reservations = msgspec.convert(view.get("reservations", []), tuple[Reservation, ...])
        spent = {str(key): float(value) for key, value in view.get("spent", {}).items()}
        given = ClusterSnapshot(nodes, jobs, profiles, shares=shares, used=used, reservations=reservations, spent=spent)
        settings = msgspec.convert(view["settings"], Settings)
        state = cls(given, settings, bool(view["relaunches"]), tuple(view["left_out"]))
        return state.as_of(float(view["now"]), view["silent_s"])

    def as_of(self, now: float, silent_s: Mapping[str, float]) -> LiveState:
        """With times that count from `now`. `silent_s`: by running job, seconds since the report of its progress."""
        jobs = (_as_of_now(self.snapshot, job, now, float(silent_s.get(job.id, 0.0))) for job in self.snapshot.jobs)
        reservations = (
            replace(one, from_s=one.from_s - now, until_s=one.until_s - now) for one in self.snapshot.reservations
        )
        return self._with(jobs=tuple(jobs), reservations=tuple(reservations))

    def with_jobs(self, documents: Iterable[Mapping[str, Any]]) -> LiveState:
        """As if these job documents were submitted now."""
        added = list[Job]()
        for number, given in enumerate(documents, 1):
            doc: dict[str, Any] = {"job_id": f"new-{number}", **given, "state": "submitted"}
            if problems := intake.problems(cast(JobRow, doc)):
                raise Rejected(f"Job {doc['job_id']} would not be accepted: {'; '.join(problems)}.")
            added.append(self._new(doc))
        taken = {job.id for job in self.snapshot.jobs}
        if again := [job.id for job in added if job.id in taken]:
            raise Rejected(f"There is a job {again[0]} already; give the new one another job_id.")
        return self._with(jobs=(*self.snapshot.jobs, *added)) if added else self

    def _new(self, doc: dict[str, Any]) -> Job:
        """The job as the coordinator would see it."""
        record = JobRecord(doc | plain(intake.acceptance_fields(cast(JobRow, doc), "new", 1.0)))
        inputs = SnapshotInputs(self.snapshot.profiles)
        found = SnapshotBuilder().build({record.id: record}, {}, {}, inputs, Moment(0.0, 1.0))
        if not found.jobs or found.jobs[0].uses_cpu:
            raise Rejected(f"Job {record.id} trains on CPU: only jobs on GPUs are simulated; leave it out.")
        return found.jobs[0]

    def with_gpus(self, count: int, gpu_type: str) -> LiveState:
        """With more GPUs, on the node of their type that has most, or on a new one; or with fewer idle ones."""
        of_type = [node for node in self.snapshot.nodes if node.gpu_type == gpu_type and node.gpus]
        if count < 0:
            return self._without(-count, gpu_type, of_type)
        more = tuple(Gpu(f"added-{gpu_type}-{i}") for i in range(count))
        if not of_type:
            return self._with(nodes=(*self.snapshot.nodes, Node(f"added-{gpu_type}", gpu_type, more)))
        largest = max(of_type, key=lambda node: (len(node.gpus), node.name))
        return self._with_node(replace(largest, gpus=(*largest.gpus, *more)))

    def _without(self, count: int, gpu_type: str, nodes: Iterable[Node]) -> LiveState:
        state, left = self, count
        for node in nodes:
            idle = [gpu.id for gpu in node.gpus if gpu.state == "idle"][:left]
            left -= len(idle)
            state = state._with_node(replace(node, gpus=tuple(g for g in node.gpus if g.id not in idle)))
        if left:
            raise Rejected(f"Only {count - left} {gpu_type} are idle, so {count} cannot be taken away; drain a node.")
        return state

    def drained(self, name: str) -> LiveState:
        """With a node that takes no new work and that its jobs leave as `reshape drain` lets them."""
        node = self.snapshot.node.get(name)
        if node is None:
            known = ", ".join(sorted(self.snapshot.node)) or "none"
            raise Rejected(f"There is no node {name!r}; there are: {known}.")
        return self._with_node(replace(node, schedulable=False, drained=True))

    def with_deadline(self, job_id: str, seconds: float) -> LiveState:
        """With another deadline of a job, from its submission."""
        if job_id not in self.snapshot.job:
            raise Rejected(f"There is no job {job_id!r} on GPUs that waits or runs.")
        jobs = (replace(job, sla_s=seconds) if job.id == job_id else job for job in self.snapshot.jobs)
        return self._with(jobs=tuple(jobs))

    def _with_node(self, node: Node) -> LiveState:
        return self._with(nodes=tuple(node if one.name == node.name else one for one in self.snapshot.nodes))

    def _with(self, **parts: Any) -> LiveState:
        return replace(self, snapshot=replace(self.snapshot, **parts))


def _as_of_now(world: ClusterSnapshot, job: Job, now: float, silent_s: float) -> Job:
    """The job with times from now, and with the progress that it has made since its last report."""
    job = replace(
        job,
        submit_s=job.submit_s - now,
        cooling_until=job.cooling_until - now,
        queued_s=None if job.queued_s is None else job.queued_s - now,
        started_s=None if job.started_s is None else job.started_s - now,
    )
    node, hosts = world.node.get(job.node or ""), len(job.workers) or 1
    speed = world.profiles.speed(job.type, node.gpu_type, job.num_gpus, hosts) if node else None
    if speed is None or job.state != "running" or job.iterations_left is None:
        return job
    more = min(silent_s / speed.seconds, job.iterations_left)
    return replace(job, iterations_left=job.iterations_left - more, iterations_done=job.iterations_done + more)
