"""Finishes jobs whose measured value has reached their target accuracy (SideCar scheduling, III-C).

Predictions never end a job. Called by the engine. Pure."""

from __future__ import annotations

from adaptive_scheduler.decision import Explanation, Finish
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

TARGET = "target"


def schedule_finished(snapshot: ClusterSnapshot, now: float, settings: Settings) -> list[Finish]:
    """Return a Finish for each running job with its target reached and no operation under way."""
    return [Finish(job.id, Explanation(TARGET, _sentence(job))) for job in snapshot.where(_is_finished)]


def _is_finished(job: Job) -> bool:
    return job.target_reached and job.state == "running" and not job.busy


def _sentence(job: Job) -> str:
    """Return the reason with value, target and error of the prediction, where known."""
    reached = "has reached its target"
    if job.target is not None and job.value is not None:
        reached += f": {job.value:g}, where {job.target:g} was wanted"
    if job.iterations_left and job.epoch_iterations:
        reached += f", {job.iterations_left / job.epoch_iterations:.1f} epochs before the predicted end"
    return f"{job.id} {reached}. It ends with a checkpoint."
