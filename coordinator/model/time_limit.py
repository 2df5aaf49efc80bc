"""Says when a job with a `time_limit` is asked to end, and how it ended. Pure; seconds of training.

It is asked a grace before the limit (`coordinator/model/grace.py`), so that it has saved when that is reached; of a
short limit no earlier than after nine tenths.
"""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_scheduler.policies.time_limits import in_words
from coordinator.model import grace, requirements
from coordinator.model.records import JobRecord, Moment, number
from sidecar.protocol import Heartbeat

LATEST_SHARE = 0.1  # of a limit, in which it may be asked to end


def limit_s(job: JobRecord) -> float | None:
    """Return the seconds that it may train; None without a limit."""
    return requirements.seconds(job.doc.get("time_limit"))


def asked_after_s(job: JobRecord, usual_grace_s: float) -> float | None:
    """Return the seconds of training after which it is asked to save and end; None without a limit."""
    limit = limit_s(job)
    return None if limit is None else limit - min(grace.at_least_s(job, usual_grace_s), LATEST_SHARE * limit)


def left_s(job: JobRecord, at: Moment) -> float | None:
    """Return the seconds that it may still train; None without a limit."""
    limit = limit_s(job)
    return None if limit is None else max(0.0, limit - job.ran_s(at))


def describe_end(job: JobRecord, beat: Heartbeat | None) -> str:
    """Return how a job ended that had trained for as long as it may: with what checkpoint, and what can be done."""
    written = job.doc.get("checkpoint")
    known = number(written.get("step")) if isinstance(written, Mapping) else None
    step = beat.checkpoint.step if beat is not None and beat.checkpoint is not None else known
    saved = "it has no checkpoint" if step is None else f"its newest checkpoint is of step {step:.0f}"
    again = f"`reshape rerun {job.id}` trains it again from the beginning"
    return f"stopped at its time limit of {in_words(limit_s(job) or 0.0)}; {saved}; {again}"
