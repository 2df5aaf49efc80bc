"""Which job the end of all work hangs on, whatever becomes of the others (ours; the paper is silent).

A makespan predicted from placed jobs alone says nothing of those that wait. Here all work left counts, at the counts
that waste least: as long as a job ends before that, others hold up the end; one that ends later is critical. Called by
`search.py`. Pure; times are seconds from now.
"""

from __future__ import annotations

import math

from adaptive_scheduler.models.prediction import assumed_s
from adaptive_scheduler.profiles.profiles import LARGEST, Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Job


def all_work_s(snapshot: ClusterSnapshot) -> float:
    """What all jobs on GPUs, also waiting ones, take together on all working GPUs, each on its thriftiest count."""
    gpus = sum(node.healthy for node in snapshot.nodes if node.schedulable)
    kinds = tuple(sorted({node.gpu_type for node in snapshot.nodes if node.gpus}))
    each: dict[object, float | None] = {}
    work = math.fsum(_gpu_s(snapshot.profiles, job, kinds, each) for job in snapshot.jobs if not job.uses_cpu)
    return work / gpus if gpus else math.inf


def _gpu_s(profiles: Profiles, job: Job, kinds: tuple[str, ...], each: dict[object, float | None]) -> float:
    key = job.type, job.optional
    if key not in each:
        speeds = ((n, profiles.speed(job.type, kind, n)) for kind in kinds for n in job.optional)
        each[key] = min((n * speed.seconds for n, speed in speeds if speed is not None), default=None)
    seconds = each[key]
    if job.iterations_left is None or seconds is None:
        return min(assumed_s(job), LARGEST) * max(1, job.num_gpus)
    return min(max(job.iterations_left, 0.0) * seconds, LARGEST)
