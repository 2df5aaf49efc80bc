"""Progress of one job: iterations done and left, speed, the value measured last; a moment on both clocks. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptive_scheduler.profiles.convergence import clamped_left
from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from coordinator.model.records import JobRecord, number
from sidecar.protocol import Heartbeat


@dataclass(frozen=True)
class TrainingSpeed:
    """How fast a job trained lately, and on how much; a job that is being moved keeps what was last known."""

    rate: float | None = None  # iterations per second; None: not measured
    cores: float | None = None  # mean in use meanwhile; None: nobody reported any
    most: float = 0.0  # cores ever seen in use


UNTIMED = TrainingSpeed()


@dataclass(frozen=True)
class ObservedJob:
    """What the coordinator knows about one job beside its document."""

    beat: Heartbeat | None
    cooling_until: float = 0.0  # on the clock of `now`
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    needs: float | None = None  # iterations in all until its target, as predicted from its curve
    speed: TrainingSpeed = UNTIMED


@dataclass(frozen=True)
class Moment:
    """One moment on both clocks."""

    now: float
    wall: float

    def of(self, ts: float) -> float:
        """A time since 1970 on the clock of `now`."""
        return self.now - (self.wall - ts)

    def maybe(self, ts: object) -> float | None:
        return None if (known := number(ts)) is None else self.of(known)


def iterations_left(job: JobRecord, done: int, total: int | None, needs: float | None) -> float | None:
    """Iterations left: until the target, where that is predicted, but never beyond the job's own length (1.5)."""
    return clamped_left(needs, done, job.epoch_iterations or 1, total)


def iteration_counts(job: JobRecord, beat: Heartbeat | None) -> tuple[int, int | None]:
    """(done, whole length or None where nobody knows it)."""
    done, told = job.iterations_done, None
    if beat is not None:
        done, told = max(done, beat.progress.iterations), beat.progress.total_iterations
    return done, job.iterations or told


def last_measurement(job: JobRecord, beat: Heartbeat | None) -> tuple[float | None, str]:
    """The evaluation value measured last, and what the training calls it."""
    if beat is not None and beat.progress.value is not None:
        return beat.progress.value, beat.progress.value_name
    return number(job.doc.get("value"), -math.inf), str(job.doc.get("value_name") or "")
