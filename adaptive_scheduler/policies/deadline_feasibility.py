"""Computes how long a job may wait and still hold its deadline: Slaml, Algorithm 1 (`algorithms.md` 4.3).

Called by the deadline policy and by intake, which reports deadlines that cannot hold. Pure; seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from adaptive_scheduler.candidates import nodes_for
from adaptive_scheduler.models.prediction import t_keep, t_new, time_left_s
from adaptive_scheduler.profiles.observations import RESOURCES, ExpectedExecution, Resource, still_left
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Task


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Expected time of the tasks a job has left, and the wait that it allows, counted from submission. Without a
    deadline, or with an unknown length, the wait is infinite."""

    dominant: Resource  # largest share of the cluster's (D1)
    te_s: float | None  # expected time of its tasks; None: unknown
    tw_s: float = math.inf  # longest wait, the tolerance included (4.2); negative: the deadline cannot hold
    tw_safe_s: float = math.inf  # without tolerance (D9): for queue order and Volcano's annotation
    minimum_target_s: float | None = None  # smallest target that would hold, if this one does not
    lacking: Resource | None = None  # requested, but no open node has any
    low_confidence: bool = False  # rests on smaller tasks, or on one that ran longer than all known (D4)


def diagnose(job: Job, snapshot: ClusterSnapshot, settings: Settings) -> Diagnosis:
    """Estimate from past tasks with the same requests, else the user's estimate, else the job's own speed."""
    asked = _asked(job, job.tasks)
    capacity = snapshot.capacity
    dominant = _dominant(asked, capacity, settings)
    expected = _expected(job, snapshot, dominant, settings)
    lacking = next((r for r in RESOURCES if asked[r] and not capacity[r] and _is_missed(r, job)), None)
    if expected is None or job.sla_s is None:
        te_s = None if expected is None else expected.seconds
        return Diagnosis(dominant, te_s, lacking=lacking, low_confidence=expected is not None and expected[1])
    tolerant = 1 + settings.deadlines.beta
    tw_s = job.sla_s * tolerant - expected.seconds
    minimum = expected.seconds / tolerant if tw_s < 0 else None
    tw_safe_s = job.sla_s - expected.seconds
    return Diagnosis(dominant, expected.seconds, tw_s, tw_safe_s, minimum, lacking, expected.low_confidence)


def alert(job: Job, diagnosis: Diagnosis) -> str:
    """Return a sentence on why the deadline cannot hold and what to do; empty if it can."""
    if diagnosis.lacking is not None:
        return f"{job.id} asks for {diagnosis.lacking}, of which no open node has any; register a node that has."
    if diagnosis.minimum_target_s is None:
        return ""
    smallest = math.ceil(diagnosis.minimum_target_s * 10) / 10  # rounded so that it holds
    return (
        f"{job.id} cannot hold its deadline of {job.sla_s:g} s: it is expected to take {diagnosis.te_s:.1f} s; "
        f"the smallest target that would hold is {smallest:.1f} s. It is run as if it had none."
    )


def present_task_s(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> float | None:
    """Return the expected seconds of the present task, to be stored as it starts (4.4); None if unknown."""
    return diagnose(replace(job, tasks=job.tasks[:1]), snapshot, settings).te_s


def wait_left_s(job: Job, found: Diagnosis, now: float) -> float | None:
    """Return how long it may still wait and hold its target, without the tolerance (D9); at least a second. None
    without a deadline and for a lost one: such a job runs as if it had none (4.8)."""
    if job.sla_s is None or now > job.submit_s + found.tw_s:
        return None
    wait_s = job.sla_s if found.te_s is None else found.tw_safe_s
    return max(1.0, job.submit_s + wait_s - now)


def heaviness(job: Job, snapshot: ClusterSnapshot) -> float:
    """Return the largest share of any cluster resource that its present task has or requests (D6)."""
    asked = _asked(job, job.tasks[:1])
    return max(_share(asked[r], snapshot.capacity[r]) for r in RESOURCES)


def _asked(job: Job, tasks: tuple[Task, ...]) -> dict[Resource, float]:
    """Return the requests of all replicas (D3); of a GPU job its GPUs, before its start at least its smallest count."""
    asked: dict[Resource, float] = {r: math.fsum(getattr(t, r) * t.replicas for t in tasks) for r in RESOURCES}
    asked["gpus"] = job.num_gpus or max(asked["gpus"], min(job.optional, default=0))
    return asked


def _is_missed(resource: Resource, job: Job) -> bool:
    """Return whether the job needs a resource that no node has: cores only for CPU training; memory may be unknown."""
    return resource == "gpus" or (resource == "cores" and job.uses_cpu)


def _share(asked: float, capacity: float) -> float:
    return asked / capacity if capacity else 0.0


def _dominant(asked: Mapping[Resource, float], capacity: Mapping[Resource, float], settings: Settings) -> Resource:
    share = {r: _share(asked[r], capacity[r]) for r in RESOURCES}
    if settings.deadlines.gpu_branch == "argmax":
        return max(RESOURCES, key=share.__getitem__)  # the first of equals
    if share["cores"] == share["memory"]:
        return "gpus"
    return "cores" if share["cores"] > share["memory"] else "memory"


def _expected(job: Job, snapshot: ClusterSnapshot, dominant: Resource, settings: Settings) -> ExpectedExecution | None:
    """Estimate what is left of its tasks; at most what its time limit leaves."""
    found = _without_limit(job, snapshot, dominant, settings)
    return None if found is None else found._replace(seconds=min(found.seconds, time_left_s(job)))


def _without_limit(
    job: Job, snapshot: ClusterSnapshot, dominant: Resource, settings: Settings
) -> ExpectedExecution | None:
    """Estimate from past tasks if there are any for all tasks left, else the user's estimate, else from its speed."""
    tasks, ran_s = _looked_up(job, settings), itertools.chain((job.task_s,), itertools.repeat(0.0))
    found = [_of_task(task, ran, snapshot, dominant, settings) for task, ran in zip(tasks, ran_s, strict=False)]
    known = [one for one in found if one is not None]
    if found and len(known) == len(found):
        return ExpectedExecution(math.fsum(one.seconds for one in known), any(one.low_confidence for one in known))
    if job.estimate_s is not None:
        return still_left((min(job.estimate_s, LARGEST),), 1.0, job.task_s)
    return _from_speed(job, snapshot)


def _looked_up(job: Job, settings: Settings) -> tuple[Task, ...]:
    """Return the tasks left, or as printed one task with their total requests (D2)."""
    if settings.deadlines.te == "tasks" or not job.tasks:
        return job.tasks
    total = {r: sum(getattr(t, r) * t.replicas for t in job.tasks) for r in RESOURCES}
    return (replace(job.tasks[0], replicas=1, cores=total["cores"], memory=total["memory"], gpus=int(total["gpus"])),)


def _of_task(
    task: Task, ran_s: float, snapshot: ClusterSnapshot, dominant: Resource, settings: Settings
) -> ExpectedExecution | None:
    """Estimate one task that has run `ran_s`, by the job's dominant resource or, without a request for it, its own."""
    d, capacity = settings.deadlines, snapshot.capacity
    column = dominant
    if not getattr(task, dominant) and d.gpu_branch == "argmax":
        column = max(RESOURCES, key=lambda r: _share(getattr(task, r), capacity[r]))
    on_gpus = task.gpus > 0 if d.gpu_branch == "argmax" else dominant == "gpus"
    return snapshot.observations.lookup(on_gpus, column, getattr(task, column), d.percentile, ran_s)


def _from_speed(job: Job, snapshot: ClusterSnapshot) -> ExpectedExecution | None:
    """Estimate from the iterations left: as placed now, else at the cluster's best speed."""
    if job.iterations_left is None:
        return None
    if job.uses_cpu:
        return ExpectedExecution(min(max(job.iterations_left, 0.0) / job.rate, LARGEST)) if job.rate else None
    profiles, node = snapshot.profiles, snapshot.node.get(job.node or "")
    if node is not None and job.num_gpus:
        speed = profiles.speed(job.type, node.gpu_type, job.num_gpus, len(job.workers) or 1)
        return ExpectedExecution(t_keep(profiles, job, node.gpu_type), speed.low_confidence) if speed else None
    estimates = [
        ExpectedExecution(t_new(profiles, job, kind, count), speed.low_confidence)
        for kind in sorted({n.gpu_type for n in nodes_for(snapshot, job)})
        for count in job.optional
        if (speed := profiles.speed(job.type, kind, count)) is not None
    ]
    return min(estimates, default=None)
