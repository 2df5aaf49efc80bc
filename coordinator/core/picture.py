"""From the books to the frozen snapshot that decisions are made on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from adaptive_scheduler.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, GpuState, Job, JobState, Node
from coordinator.core import states as s
from coordinator.core.records import GpuRecord, JobRecord
from sidecar.protocol import Heartbeat


@dataclass(frozen=True)
class Seen:
    """What the coordinator knows about one job beside its document."""

    beat: Heartbeat | None
    cooling_until: float = 0.0  # on the clock of `now`


def picture(
    jobs: Mapping[str, JobRecord],
    gpus: Mapping[str, GpuRecord],
    seen: Mapping[str, Seen],
    profiles: Profiles,
    wall: float,
) -> ClusterSnapshot:
    """The cluster as it will be once the operations under way are done."""
    promised = {g: j.id for j in jobs.values() if j.operation for g in j.operation.to}
    nodes: dict[str, list[GpuRecord]] = {}
    for gpu in sorted(gpus.values(), key=lambda g: (g.doc.get("index", 0), g.id)):
        nodes.setdefault(gpu.node, []).append(gpu)
    waiting = [j for j in jobs.values() if j.state not in s.ENDED and j.optional]
    return ClusterSnapshot(
        nodes=tuple(_node(name, members, promised) for name, members in sorted(nodes.items())),
        jobs=tuple(
            _job(j, seen.get(j.id, Seen(None)), gpus, wall) for j in sorted(waiting, key=lambda j: (j.submit_ts, j.id))
        ),
        profiles=profiles,
    )


def _node(name: str, gpus: list[GpuRecord], promised: Mapping[str, str]) -> Node:
    kind = min(gpus, key=lambda g: g.faulty).gpu_type  # those that are gone do not tell
    return Node(name=name, gpu_type=kind, gpus=tuple(_gpu(g, promised.get(g.id)) for g in gpus))


def _gpu(gpu: GpuRecord, promised: str | None) -> Gpu:
    """An idle GPU that an intent names is given away, though nobody has claimed it yet."""
    if gpu.state == s.IDLE and promised is not None:
        return Gpu(gpu.id, "reserved", promised)
    return Gpu(gpu.id, cast(GpuState, gpu.state), gpu.job, gpu.held_by)


def _job(job: JobRecord, seen: Seen, gpus: Mapping[str, GpuRecord], wall: float) -> Job:
    op = job.operation
    held = job.gpu_ids if op is None else op.to
    done, total = iterations(job, seen.beat)
    start = job.doc.get("start_ts")
    return Job(
        id=job.id,
        type=job.job_type,
        state=cast(JobState, job.state),
        optional=job.optional,
        submit_s=job.submit_ts,
        num_gpus=len(held),
        node=job.node if held else None,
        iterations_left=None if total is None else max(0, total - done),
        iterations_done=done,
        running_s=max(0.0, wall - start) if isinstance(start, int | float) else 0.0,
        leased=_leased(job, seen, gpus, wall),
        cooling_until=seen.cooling_until,
        wanted=job.wanted,
        reshape_cost_s=job.doc.get("reshape_cost_s"),
        gpu_type=job.doc.get("gpu_type"),
    )


def iterations(job: JobRecord, beat: Heartbeat | None) -> tuple[int, int | None]:
    """(done, whole length or None where nobody knows it)."""
    done, told = job.iterations_done, None
    if beat is not None:
        done, told = max(done, beat.progress.iterations), beat.progress.total_iterations
    return done, job.iterations or told


def _leased(job: JobRecord, seen: Seen, gpus: Mapping[str, GpuRecord], wall: float) -> bool:
    """Whether no new operation may begin: one is under way, or it is not known how the job stands."""
    if job.operation is not None or job.cancel:
        return True
    if job.state == s.SUBMITTED:
        booked = any(job.id in (g.job, g.held_by) for g in gpus.values())
        return wall < job.retry_ts or booked or (job.launch > 0 and job.doc.get("down") != job.launch)
    return job.state != s.RUNNING or seen.beat is None or seen.beat.shim.trainer != "running"
