"""Tracks the two queues of Tiresias-L (Gu et al., NSDI 2019), which prefer jobs with little GPU time.

Level 0 is the higher one. GPU time counts from a job's last start, as in Voda. Called by `voda.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptive_scheduler.snapshot import ClusterSnapshot

THRESHOLD_S = 1800.0
"""GPU-seconds after which a job falls to the lower queue (Voda's branch `exp`)."""

PROMOTE = 4.0
"""A job of the lower queue rises once its wait exceeds this many times its last run (same branch).

Its last wait is not reset while it runs, so that a restarted job rises at once, as in Voda.
"""

TICK_S = 5.0
"""Interval at which Voda updates the queues."""


@dataclass(slots=True)
class _Stay:
    """Run time of one job since its last start, and wait since its last halt."""

    level: int = 0
    gpus: int = 0
    gpu_s: float = 0.0
    ran_s: float = 0.0
    waited_s: float = 0.0

    def pass_by(self, seconds: float) -> None:
        if self.gpus:
            self.ran_s += seconds
            self.gpu_s += seconds * self.gpus
        else:
            self.waited_s += seconds

    def turn(self, gpus: int) -> None:
        if gpus and not self.gpus:
            self.ran_s = self.gpu_s = 0.0
        elif self.gpus and not gpus:
            self.waited_s = 0.0
        self.gpus = gpus

    @property
    def seconds_to_change(self) -> float:
        if self.level:
            missing = PROMOTE * self.ran_s - self.waited_s
            return math.inf if self.gpus and missing > 0 else missing
        return (THRESHOLD_S - self.gpu_s) / self.gpus if self.gpus else math.inf


class TiresiasQueues:
    """The queue of each job. Times are seconds on the clock of the snapshots."""

    def __init__(self) -> None:
        self._stays: dict[str, _Stay] = {}
        self._at_s = 0.0

    def level(self, job: str) -> int:
        """Return the queue of a job; 0 for an unknown one."""
        return self._stays[job].level if job in self._stays else 0

    def look(self, snapshot: ClusterSnapshot, now: float) -> bool:
        """Record the jobs' GPUs; return whether any job changed its queue since the last call."""
        changed = False
        here = {job.id: self._stays.get(job.id) or _Stay() for job in snapshot.jobs}
        for job in snapshot.jobs:
            stay = here[job.id]
            if job.id in self._stays:
                stay.pass_by(now - self._at_s)
            if stay.seconds_to_change <= 1e-6:
                stay.level, changed = 1 - stay.level, True
            stay.turn(job.num_gpus)
        self._stays, self._at_s = here, now
        return changed

    @property
    def next_change_s(self) -> float:
        """Return the time at which the next job changes its queue; infinity if none does."""
        soonest = min((stay.seconds_to_change for stay in self._stays.values()), default=math.inf)
        return self._at_s + max(TICK_S, soonest)
