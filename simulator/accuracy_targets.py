"""Models accuracy targets: true and predicted length of a job that trains until it reaches one (W4, 1.10).

`AccuracyTarget` has the true accuracy curve. The scheduler sees the part measured so far and predicts the rest with the
convergence fit (1.5), as the coordinator does. `told` gives a policy other lengths, to measure the cost of wrong
predictions. Called by `snapshots.py` and the workloads. Pure.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.profiles.convergence import Point, clamped_left, iterations_to
from adaptive_scheduler.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class AccuracyTarget:
    """The target of all jobs of one type. They share curve and predictions, which are computed once per point."""

    target: float  # Top-5 accuracy, 0..1
    curve: tuple[Point, ...]  # the true curve, by ascending iterations
    known: tuple[Point, ...]  # measured earlier by other jobs of the type
    epoch: float  # iterations
    most: float  # maximum length in iterations

    @property
    def length(self) -> float:
        """Return the iterations at which the target is measured, or the maximum."""
        return next((k for k, value in self.curve if value >= self.target and k <= self.most), self.most)

    def left(self, done: float) -> float:
        """Return the remaining iterations that the scheduler predicts."""
        needed = _needed(self, self._seen(done))
        return clamped_left(needed, done, self.epoch, self.most) or 0.0

    def unsure(self, done: float) -> bool:
        """Return whether the curve shows no progress yet, so that the maximum is assumed."""
        return _needed(self, self._seen(done)) is None

    def value(self, done: float) -> float | None:
        """Return the last measured accuracy."""
        seen = self._seen(done)
        return self.curve[seen - 1][1] if seen else None

    def _seen(self, done: float) -> int:
        return bisect_right(self.curve, done, key=lambda point: point[0])


@lru_cache(maxsize=10_000)
def _needed(aim: AccuracyTarget, seen: int) -> int | None:
    return iterations_to([*aim.known, *aim.curve[:seen]], aim.target)


class JobWithLength(Protocol):
    """A job that knows its true length in iterations."""

    @property
    def id(self) -> str: ...

    @property
    def iterations(self) -> float: ...


class LengthPlan(Protocol):
    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]: ...


def told(jobs: Iterable[JobWithLength], plan: LengthPlan, error: float = 0.0, seed: int = 0) -> LengthPlan:
    """Return `plan` with other job lengths: the true ones, or ones that are wrong by up to the share `error`.

    The error is uniform and drawn once per job. A job past its assumed length has one iteration left.
    """
    rng = random.Random(seed)
    lengths = {job.id: job.iterations * rng.uniform(1.0 - error, 1.0 + error) for job in jobs}

    def answer(snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        believing = tuple(
            replace(job, iterations_left=max(1.0, lengths[job.id] - job.iterations_done), length_unsure=False)
            for job in snapshot.jobs
        )
        return plan(replace(snapshot, jobs=believing), now)

    return answer
