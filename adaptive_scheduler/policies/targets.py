"""Jobs that train until a target accuracy end when the measured value is there (seed 004, III-C).

Never by the prediction: that only says how long it may still take. Called by the engine.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Explanation, Finish
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

TARGET = "target"


def schedule_finished(snapshot: ClusterSnapshot, now: float, settings: Settings) -> list[Finish]:
    """One for each running job whose target is reached, unless an operation is under way on it."""
    return [
        Finish(job.id, Explanation(TARGET, _sentence(job)))
        for job in snapshot.jobs
        if job.target_reached and job.state == "running" and not job.leased
    ]


def _sentence(job: Job) -> str:
    """With the value, its target, and how far the prediction was off, as far as the caller told them."""
    reached = "has reached its target"
    if job.target is not None and job.value is not None:
        reached += f": {job.value:g}, where {job.target:g} was wanted"
    if job.iterations_left and job.epoch_iterations:
        reached += f", {job.iterations_left / job.epoch_iterations:.1f} epochs before the predicted end"
    return f"{job.id} {reached}. It ends with a checkpoint."
