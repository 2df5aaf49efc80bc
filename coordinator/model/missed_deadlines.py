"""Computes the tardiness of a job: seconds past its deadline. Pure; called by the decision loop, recorder and views."""

from __future__ import annotations

from coordinator.model import requirements
from coordinator.model import states as s
from coordinator.model.events import DeadlineMissed
from coordinator.model.records import JobRecord, number
from coordinator.model.tables import JobRow


def tardiness_s(doc: JobRow, wall: float) -> float | None:
    """Seconds past the job's `sla` at its end, or now; None without a deadline or while it holds."""
    target, since = requirements.seconds(doc.get("sla")), number(doc.get("submit_ts"))
    if target is None or since is None or doc.get("state") == s.CANCELLED:
        return None
    ended = number(doc.get("finish_ts")) if doc.get("state") in s.ENDED else None
    late = (wall if ended is None else ended) - since - target
    return late if late > 0 else None


def missed_event(job: JobRecord, wall: float) -> DeadlineMissed | None:
    """The event to record: once as the deadline passes, once with the whole delay as the job ends; None if it holds."""
    late = tardiness_s(job.doc, wall)
    if late is None:
        return None
    goes_on = "" if job.state in s.ENDED else " so far"
    return DeadlineMissed(late, f"{job.id} missed its deadline by {format_duration(late)}{goes_on}.")


def format_duration(value: float) -> str:
    """Format seconds as 45 s, 12 m or 3 h 20 m."""
    if value < 90:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} m" if minutes < 60 else f"{minutes // 60} h {minutes % 60} m"
