"""Orders the queue by arrival, length or deadline, with aging against starvation.

Shortest first lowers the mean completion time of a full queue and keeps its makespan; aging (`is_aged`) bounds the wait
of long jobs. Ties go by submission, then id, for equal order in every process. Called by the engine. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from adaptive_scheduler.candidates import nodes_for
from adaptive_scheduler.models.prediction import time_left_s
from adaptive_scheduler.policies import deadline
from adaptive_scheduler.policies.deadline_feasibility import diagnose
from adaptive_scheduler.profiles.profiles import LARGEST
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

PATIENCE = 2.0
"""Multiple of its own length that a job must have waited to be aged: one of a month is not aged after a day."""


class Queue:
    """The queue of one tick in the order of `Settings.queue_order`; each length is predicted once."""

    def __init__(self, now: float, settings: Settings) -> None:
        self.now, self.settings = now, settings
        self._lengths: dict[str, float] = {}
        self._quickest: dict[object, float | None] = {}

    def in_order(self, snapshot: ClusterSnapshot) -> list[Job]:
        """Return aged jobs first, the longest waiting one in front, then the others by the setting; none that yields
        (D7)."""
        queue = deadline.in_order(snapshot, self.now, self.settings)
        if self.settings.queue_order == "arrival":
            queue = tuple(sorted(queue, key=_arrival))
        elif self.settings.queue_order == "shortest":
            queue = self._shortest(snapshot, queue)
        aged = {job.id for job in queue if self.is_aged(snapshot, job)}
        first = sorted((job for job in queue if job.id in aged), key=_arrival)
        return [*first, *(job for job in queue if job.id not in aged)]

    def is_aged(self, snapshot: ClusterSnapshot, job: Job) -> bool:
        """Return whether the job has waited so long that it goes first and GPUs are reserved for it. Without SideCar
        scheduling never: the paper's baselines let jobs starve."""
        after_s, waited_s = self.settings.reserve_after_s, self.now - job.submit_s
        if "elastic" not in self.settings.systems or not 0 < after_s <= waited_s:
            return False
        length_s = self.length_s(snapshot, job)
        return waited_s >= PATIENCE * length_s or length_s == math.inf

    def length_s(self, snapshot: ClusterSnapshot, job: Job) -> float:
        """Return its seconds on the best GPU type and count, else by past tasks or its user (Slaml); inf if unknown."""
        if job.id not in self._lengths:
            self._lengths[job.id] = self._predicted_s(snapshot, job)
        return self._lengths[job.id]

    def _shortest(self, snapshot: ClusterSnapshot, queue: tuple[Job, ...]) -> tuple[Job, ...]:
        """Sort by length, except that a job with a deadline keeps its place by latest start."""
        acts = "deadline" in self.settings.systems
        free = [job for job in queue if job.sla_s is None or not acts]
        by_length = iter(sorted(free, key=lambda job: (self.length_s(snapshot, job), *_arrival(job))))
        return tuple(next(by_length) if job.sla_s is None or not acts else job for job in queue)

    def _predicted_s(self, snapshot: ClusterSnapshot, job: Job) -> float:
        each_s = self._seconds_each(snapshot, job)
        most_s = time_left_s(job)
        if job.iterations_left is not None and each_s is not None:
            return min(max(job.iterations_left, 0.0) * each_s, most_s, LARGEST)
        te_s = diagnose(job, snapshot, self.settings).te_s
        return most_s if te_s is None else min(te_s, most_s)

    def _seconds_each(self, snapshot: ClusterSnapshot, job: Job) -> float | None:
        """Return the best seconds per iteration, cached for jobs of equal placement; None without a known speed."""
        key = job.type, job.optional, job.gpu_type, job.pinned
        if key not in self._quickest:
            self._quickest[key] = min(_speeds(snapshot, job), default=None)
        return self._quickest[key]


def _speeds(snapshot: ClusterSnapshot, job: Job) -> Iterable[float]:
    for kind in sorted({node.gpu_type for node in nodes_for(snapshot, job)}):
        for count in job.optional:
            speed = snapshot.profiles.speed(job.type, kind, count) if count else None
            if speed is not None:
                yield speed.seconds


def _arrival(job: Job) -> tuple[float, str]:
    return job.submit_s, job.id
