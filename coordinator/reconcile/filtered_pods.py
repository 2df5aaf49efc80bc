"""Has GPUs closed to a job's pods before another job may have them, and opened before its trainer starts.

Promises: the reconciler takes no GPU from a job before the filters of its pods are closed, and no trainer starts
before theirs are open, whatever a coordinator that was killed in between leaves: both are said again, and the second
time changes nothing. The generation fences them: a call of a coordinator that no longer acts is refused. That of a job
at rest counts one more, since its trainer of that generation must not be let in again. Called by the reconciler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import PodAccess
from coordinator.reconcile.actions import StartTrainer, WriteGpu
from coordinator.reconcile.observed_state import ObservedState


def open_before(access: PodAccess, job: JobRecord, step: StartTrainer) -> None:
    """Open the GPUs of a start to the job's pods, and no others. `Transient` until it is done."""
    if not job.uses_cpu:
        access.open(job.doc, step.generation, job.parts(step.gpu_ids))


def close_before(access: PodAccess, observed: ObservedState, steps: Sequence[WriteGpu]) -> None:
    """Close what these writes take from jobs to the pods of those jobs. `Transient` until it is done."""
    for holder, taken in _taken_by_holder(observed, steps).items():
        job = observed.jobs.get(holder)
        if job is None or (job.id == observed.job.id and observed.lost):  # its pods are gone, and their filters
            continue
        at_rest = is_at_rest(job)
        keeps = () if at_rest else tuple(gpu_id for gpu_id in job.gpu_ids if gpu_id not in taken)
        generation = job.generation + 1 if at_rest else job.generation
        for launch in _launches_of(job):
            access.keep({**job.doc, "launch": launch}, generation, keeps)


def _taken_by_holder(observed: ObservedState, steps: Iterable[WriteGpu]) -> dict[str, set[str]]:
    """Return by job which of the GPUs that it may train on these writes take from it."""
    taken: dict[str, set[str]] = {}
    for step in steps:
        holder = observed.gpus[step.gpu].held_by
        if holder is not None and step.changes.get("held_by", holder) != holder:
            taken.setdefault(holder, set()).add(step.gpu)
    return taken


def is_at_rest(job: JobRecord) -> bool:
    """True if nothing of a job is to train now."""
    return job.state in s.ENDED or job.state == s.SUBMITTED


def _launches_of(job: JobRecord) -> list[int]:
    """Return its present launch, and the one that a move has left."""
    left = job.operation.leaves if job.operation is not None else None
    return [launch for launch in (job.launch, left) if launch]
