"""FlowCon (seed 001): CPU limits by growth efficiency."""

from __future__ import annotations

from adaptive_scheduler.decision import Limit
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot


def schedule_limits(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Limit, ...]:
    return ()
