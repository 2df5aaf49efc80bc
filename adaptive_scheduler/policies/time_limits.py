"""Ends jobs that have trained for as long as their users allow (`time_limit`).

Whoever builds the snapshot says whose time is up: some time before the limit, so that a job has saved when it is
reached. Called by the engine. Pure."""

from __future__ import annotations

from adaptive_scheduler.decision import End, Explanation
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

TIME_LIMIT = "time limit"


def schedule_ends(snapshot: ClusterSnapshot) -> list[End]:
    """Return an End for each job whose time is up, whatever its state."""
    return [End(job.id, Explanation(TIME_LIMIT, _sentence(job))) for job in snapshot.where(_is_up)]


def _is_up(job: Job) -> bool:
    return job.time_is_up


def _sentence(job: Job) -> str:
    return f"{job.id} comes to its time limit of {in_words(job.time_limit_s or 0.0)}: it saves and ends."


def in_words(seconds: float) -> str:
    """Return a limit as its user may have written it: 45 s, 90 min, 2 h."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:g} s"
