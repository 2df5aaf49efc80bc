"""Computes tardiness: which deadlines a decision would break (`algorithms.md` 5.4 and X7).

A job is late only beyond its target and the tolerance (`Deadlines.beta`), and a decision breaks only a deadline that
held before. Called by Slaml's and SideCar scheduling's policies. Pure; seconds from now, as in `RemainingTimes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from adaptive_scheduler.models.prediction import RemainingTimes
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot


class Tardiness:
    """Limits of all jobs with a deadline, and by how much each is predicted to exceed its own."""

    def __init__(self, limits: Mapping[str, float], before: Mapping[str, float]) -> None:
        self.limits = limits
        self._before = before
        # By job, so that one change is a subtraction instead of another pass over all jobs.
        self.late = {i: max(0.0, before[i] - limit) for i, limit in sorted(limits.items()) if i in before}
        self.total = math.fsum(self.late.values())

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, times: RemainingTimes, now: float, settings: Settings) -> Tardiness:
        """Return that of all jobs with a deadline; of none where deadlines are switched off."""
        if "deadline" not in settings.systems:
            return cls({}, {})
        beta = settings.deadlines.beta
        limits = {j.id: j.submit_s + (1 + beta) * j.sla_s - now for j in snapshot.jobs if j.sla_s is not None}
        return cls(limits, times.seconds)

    def broken_by(self, after: Mapping[str, float]) -> dict[str, float]:
        """Return by how many seconds these jobs would miss a deadline that held before.

        For a waiting job, one that is past already did not hold.
        """
        limits = {job: self.limits[job] for job in after if job in self.limits}
        return {
            job: after[job] - limit for job, limit in limits.items() if self._before.get(job, 0.0) <= limit < after[job]
        }
