"""Computes the grace of a training that is told to stop: the time until it is killed. Pure; seconds.

One that has announced that it saves when asked is not killed by a stop that nobody asked for: it is waited for
(`sidecar/protocol.py:StopCall`). This is the time of all others, and of one that is cancelled.
"""

from __future__ import annotations

from coordinator.model.records import JobRecord, number
from sidecar.protocol import Heartbeat

MOST_S = 3600.0
ENDLESS_S = 86_400.0  # as much as a sidecar takes
SAVES = 2.0  # a save may take so many times as long as the newest one: another may be under way when it is told


def at_least_s(job: JobRecord, usual_s: float) -> float:
    """Return the grace by its record, else the usual one."""
    return number(job.doc.get("grace_s")) or usual_s


def grace_s(job: JobRecord, beat: Heartbeat, usual_s: float) -> float:
    """Return the grace of a stop now: more where its saves, or what it does between two steps, take longer.

    `usual_s`: of a job whose record says nothing.
    """
    progress = beat.progress
    measured = SAVES * (progress.save_s or 0.0) + progress.longest_gap_s
    return max(at_least_s(job, usual_s), min(measured, MOST_S))
