"""Progress of one job: iterations done and left, speed and the last evaluation; conversion of clocks. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptive_scheduler.profiles.convergence import clamped_left
from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from coordinator.model.records import JobRecord, number
from sidecar.protocol import Heartbeat


@dataclass(frozen=True)
class TrainingSpeed:
    """Recent speed of a job and the cores it used; a job that is being moved keeps its last values."""

    rate: float | None = None  # iterations per second; None: not measured
    cores: float | None = None  # mean in use meanwhile; None: not reported
    most: float = 0.0  # cores ever seen in use


UNTIMED = TrainingSpeed()


@dataclass(frozen=True)
class ObservedJob:
    """What the coordinator has observed of one job beside its document."""

    beat: Heartbeat | None
    cooling_until: float = 0.0  # on the clock of `now`
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    needs: float | None = None  # total iterations to its target, predicted from its accuracy curve
    speed: TrainingSpeed = UNTIMED


@dataclass(frozen=True)
class Moment:
    """One instant on both clocks: `now` never jumps, `wall` is seconds since 1970."""

    now: float
    wall: float

    def of(self, ts: float) -> float:
        """Convert a time since 1970 to the clock of `now`."""
        return self.now - (self.wall - ts)

    def maybe(self, ts: object) -> float | None:
        return None if (known := number(ts)) is None else self.of(known)


def iterations_left(job: JobRecord, done: int, total: int | None, needs: float | None) -> float | None:
    """Iterations left: to the predicted target, at most to the job's own length (1.5); None if unknown."""
    return clamped_left(needs, done, job.epoch_iterations or 1, total)


def iteration_counts(job: JobRecord, beat: Heartbeat | None) -> tuple[int, int | None]:
    """(done, total); total is None if unknown."""
    done, reported = job.iterations_done, None
    if beat is not None:
        done, reported = max(done, beat.progress.iterations), beat.progress.total_iterations
    return done, job.iterations or reported


def last_measurement(job: JobRecord, beat: Heartbeat | None) -> tuple[float | None, str]:
    """The last evaluation value and its name as the training prints it."""
    if beat is not None and beat.progress.value is not None:
        return beat.progress.value, beat.progress.value_name
    return number(job.doc.get("value"), -math.inf), str(job.doc.get("value_name") or "")
