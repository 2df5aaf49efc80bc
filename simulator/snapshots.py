"""Converts simulated GPUs and jobs to their views in a scheduler snapshot. Pure.

Called by `cluster.py` and its parts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from adaptive_scheduler.snapshot import Gpu, GpuState, Job, Worker
from simulator.state import SimulatedGpu, SimulatedJob


def gpu_view(gpu: SimulatedGpu) -> Gpu:
    """Return a GPU for the snapshot; one that is not promised to any job counts as idle."""
    state: GpuState = "idle" if gpu.owner is None else "in use" if gpu.owner == gpu.holder else "reserved"
    return Gpu(gpu.id, "faulty" if gpu.faulty or not gpu.is_up else state, gpu.owner, gpu.holder)


def job_view(job: SimulatedJob, now: float) -> Job:
    """Return a job for the snapshot at time `now`."""
    given, done, aim = job.given, job.done_by(now), job.given.accuracy_target
    if given.like is not None:
        return _live_view(job, given.like, now)
    return Job(
        id=given.id,
        type=given.type,
        state=job.state,
        optional=given.optional,
        submit_s=given.arrival_s,
        num_gpus=len(job.gpus),
        node=job.node,
        iterations_left=given.left(done),
        iterations_done=done,
        running_s=0.0 if job.trained_from_s is None else now - job.trained_from_s,
        busy=job.busy,
        cooling_until=job.cooling_until,
        grew_from=job.grew_from,
        reshape_cost_s=job.reshape_cost_s,
        pinned=given.node if job.began_s is None else None,
        max_workers=given.max_workers,
        workers=_workers(job) if given.max_workers > 1 else (),
        target=aim.target if aim else None,
        value=aim.value(done) if aim else None,
        epoch_iterations=round(aim.epoch) if aim else None,
        length_unsure=aim is not None and aim.unsure(done),
        demand=job.demand,
        rate=job.rate,
        share=job.rated_on,
        cpu_limit=job.cpu_limit,
        limit_until_s=job.limit_until_s,
        growth=job.growth,
        efficiency=job.efficiency,
        migrated_s=job.migrated_s,
        rebalanced=job.rebalanced,
        move_refused_s=job.move_refused_s,
        sla_s=given.sla_s,
        tasks=given.tasks[job.task :],
        estimate_s=given.estimate_s,
        expected_s=job.expected_s,
        task_s=job.ran_by(now),
        preempts=job.preempts,
        yields_to=job.yields_to,
        owner=given.owner,
        queue=given.queue,
        priority=given.priority,
        queued_s=job.queued_s,
        started_s=job.started_s,
    )


def _live_view(job: SimulatedJob, like: Job, now: float) -> Job:
    """Return the job as a live scheduler knows it, with what has changed since."""
    done, each = job.done_by(now), like.gpus_per_pod
    trained_s = 0.0 if job.trained_from_s is None else now - job.trained_from_s
    return replace(
        like,
        state=job.state,
        num_gpus=len(job.gpus),
        node=job.node,
        busy=job.busy,
        iterations_left=None if like.iterations_left is None else job.given.left(done),
        iterations_done=like.iterations_done + done,
        running_s=like.running_s + trained_s,
        cooling_until=job.cooling_until,
        grew_from=job.grew_from,
        reshape_cost_s=job.reshape_cost_s,
        workers=_workers(job),
        pods=tuple(gpu.node for gpu in job.gpus[::each]) if each else (),
        task_s=like.task_s + job.ran_by(now),
        expected_s=like.expected_s if job.expected_s is None else job.expected_s,
        preempts=like.preempts + job.preempts,
        yields_to=job.yields_to,
        unsaved_s=0.0,
        queued_s=like.queued_s if job.queued_s is None else job.queued_s,
        started_s=like.started_s if job.started_s is None else job.started_s,
    )


def _workers(job: SimulatedJob) -> tuple[Worker, ...]:
    counts = Counter(gpu.node for gpu in job.gpus)
    return tuple(Worker(node, count) for node, count in counts.items()) if len(counts) > 1 else ()
