"""Progress of one job: iterations done and left, speed, evaluation, missed deadline. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptive_scheduler.profiles.convergence import clamped_left
from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from adaptive_scheduler.profiles.profiles import StatePath
from coordinator.model import requirements
from coordinator.model import states as s
from coordinator.model.events import DeadlineMissed
from coordinator.model.records import JobRecord, number
from coordinator.model.tables import JobRow
from sidecar.protocol import STAYS, Heartbeat


@dataclass(frozen=True)
class TrainingSpeed:
    """Recent speed of a job and the cores it used; a job that is being moved keeps its last values."""

    rate: float | None = None  # iterations per second; None: not measured
    cores: float | None = None  # mean in use meanwhile; None: not reported
    most: float = 0.0  # cores ever seen in use


UNTIMED = TrainingSpeed()


@dataclass(frozen=True)
class ObservedJob:
    """Observations of one job that its document does not hold."""

    beat: Heartbeat | None
    cooling_until: float = 0.0  # on the clock of `now`
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    needs: float | None = None  # total iterations to its target, predicted from its accuracy curve
    speed: TrainingSpeed = UNTIMED


def iterations_left(job: JobRecord, done: int, total: int | None, needs: float | None) -> float | None:
    """Iterations left: to the predicted target, at most to the job's own length (1.5); None if unknown."""
    return clamped_left(needs, done, job.epoch_iterations or 1, total)


def iteration_counts(job: JobRecord, beat: Heartbeat | None) -> tuple[int, int | None]:
    """(done, total); total is None if unknown."""
    done, reported = job.iterations_done, None
    if beat is not None:
        done, reported = max(done, beat.progress.iterations), beat.progress.total_iterations
    return done, job.iterations or reported


MOST_BYTES = 10**15  # of a state; more than that is no size


def state_of(beat: Heartbeat | None, relaunches: bool = False) -> tuple[float, StatePath]:
    """Return the bytes of its newest checkpoint, 0 while they are not known, and the path that its state takes.

    Whole megabytes: what is so small delays nothing, and a few bytes more are no news. `relaunches`: its launch ends
    with the reshape, which leaves nothing but the disk.
    """
    if beat is None:
        return 0.0, "disk"
    size = float(round(min(max(0, beat.checkpoint_bytes), MOST_BYTES), -6))
    if relaunches:
        return size, "disk"
    if beat.shim.on_gpu.startswith(STAYS):
        return size, "GPU"
    return size, "host memory" if beat.shim.in_memory else "disk"


def last_measurement(job: JobRecord, beat: Heartbeat | None) -> tuple[float | None, str]:
    """The last evaluation value and its name as the training prints it."""
    if beat is not None and beat.progress.value is not None:
        return beat.progress.value, beat.progress.value_name
    return number(job.doc.get("value"), -math.inf), str(job.doc.get("value_name") or "")


def deadline_ts(doc: JobRow) -> float | None:
    """Its `sla` as a time in seconds since 1970; None without one, and before intake has noted its submission."""
    target, since = requirements.seconds(doc.get("sla")), number(doc.get("submit_ts"))
    return None if target is None or since is None else since + target


def tardiness_s(doc: JobRow, wall: float) -> float | None:
    """Seconds past the job's `sla` at its end, or now; None without a deadline or while it holds."""
    deadline = deadline_ts(doc)
    if deadline is None or doc.get("state") == s.CANCELLED:
        return None
    ended = number(doc.get("finish_ts")) if doc.get("state") in s.ENDED else None
    if ended is not None and (known := number(doc.get("late_s"))) is not None:
        return known or None
    late = (wall if ended is None else ended) - deadline
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
