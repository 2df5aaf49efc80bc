"""Jobs that train until a target accuracy end when the measured value is there (seed 004, III-C).

Never by the prediction: that only says how long it may still take. Called by the engine.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Explanation, Finish
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot

TARGET = "target"


def schedule_finished(snapshot: ClusterSnapshot, now: float, settings: Settings) -> list[Finish]:
    """One for each running job whose target is reached, unless an operation is under way on it."""
    return [
        Finish(job.id, Explanation(TARGET, f"{job.id} has reached its target and ends with a checkpoint."))
        for job in snapshot.jobs
        if job.target_reached and job.state == "running" and not job.leased
    ]
