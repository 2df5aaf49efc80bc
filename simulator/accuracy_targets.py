"""Jobs that train until their accuracy reaches a target, and what a scheduler believes of their length (W4, 1.10).

`AccuracyTarget` has the true curve, of which the scheduler sees only what has been measured so far: it predicts by the
convergence fit (1.5), as the coordinator does. `told` lets a policy believe something else, to see what wrong
predictions cost. Called by `view.py` and the workloads. Pure.
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
    """Jobs of one type share it: they have the same curve and so the same predictions, made once for each point."""

    target: float  # Top-5 accuracy, 0..1
    curve: tuple[Point, ...]  # the truth, measured point by point; ascending iterations
    known: tuple[Point, ...]  # what other jobs of the type have shown before
    epoch: float  # iterations
    most: float  # iterations at which it ends if its target was not reached

    @property
    def length(self) -> float:
        """Iterations after which its target is measured, or its maximum."""
        return next((k for k, value in self.curve if value >= self.target and k <= self.most), self.most)

    def left(self, done: float) -> float:
        """How many iterations the scheduler believes are left."""
        needed = _needed(self, self._seen(done))
        return clamped_left(needed, done, self.epoch, self.most) or 0.0

    def unsure(self, done: float) -> bool:
        """Whether no progress is visible yet, so that its maximum is believed."""
        return _needed(self, self._seen(done)) is None

    def value(self, done: float) -> float | None:
        """What was measured last."""
        seen = self._seen(done)
        return self.curve[seen - 1][1] if seen else None

    def _seen(self, done: float) -> int:
        return bisect_right(self.curve, done, key=lambda point: point[0])


@lru_cache(maxsize=10_000)
def _needed(aim: AccuracyTarget, seen: int) -> int | None:
    return iterations_to([*aim.known, *aim.curve[:seen]], aim.target)


class JobWithLength(Protocol):
    """A job with its true length."""

    @property
    def id(self) -> str: ...

    @property
    def iterations(self) -> float: ...


class LengthPlan(Protocol):
    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]: ...


def told(jobs: Iterable[JobWithLength], plan: LengthPlan, error: float = 0.0, seed: int = 0) -> LengthPlan:
    """The same policy, believing each job's true length, or one that is wrong by up to `error` either way.

    Uniform and fixed once per job; a job that is believed to be over counts with one iteration more.
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
