"""Deadlines (seed 003): who must start when, and who gives way."""

from __future__ import annotations

from adaptive_scheduler.decision import Requeue, Start
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job


def in_order(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Job, ...]:
    return snapshot.queue


def schedule_overdue(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Start | Requeue, ...]:
    return ()
