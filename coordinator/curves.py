"""The curve of what a job measures, drawn from its heartbeats, and where it leads (`algorithms.md` 1.5).

Promises a bounded number of points, evenly thinned, whatever the sidecar sends. Kept in memory only: after a restart
of the coordinator the curve begins anew, and until it has points again others of the type speak for it. Called by
`monitors.py`, which holds its lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_scheduler.convergence import Point, falls_to, points_of
from adaptive_scheduler.profiles import Accuracy
from coordinator.core import asks
from coordinator.core.asks import Target
from coordinator.core.records import JobRecord
from sidecar.protocol import Heartbeat

MOST_POINTS = 128


class Curve:
    """Of one job: (iterations, value) of what its target names, or without a target of its Top-5 accuracy."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._every = 1  # of so many evaluations one is kept
        self._newest: Point | None = None
        self._count = 0
        self._last: tuple[int, float] | None = None  # evaluation, value
        self._of_top5 = False
        self._basis: tuple[object, ...] | None = None  # of the last prediction
        self._needs: int | None = None

    @property
    def points(self) -> list[Point]:
        """Those kept, and the newest."""
        newest = [self._newest] if self._newest is not None and self._newest not in self._points[-1:] else []
        return self._points + newest

    @property
    def top5(self) -> list[Point]:
        """The same if it is a Top-5 accuracy between 0 and 1, which other jobs of the type can use; else nothing."""
        return [point for point in self.points if 0 <= point[1] <= 1 <= point[0]] if self._of_top5 else []

    def heard(self, job: JobRecord, beat: Heartbeat) -> None:
        """One more point, if the job has evaluated since the last one; a count of iterations that stood still has one.

        The iterations are those of the heartbeat, at most its interval after the evaluation.
        """
        target, p = asks.target(job.doc), beat.progress
        measured = None if p.value is None else (p.evaluations, p.value)
        if p.value is None or measured == self._last or not _meant(target, p.value_name):
            return
        self._last, self._of_top5 = measured, asks.is_top5(p.value_name, target)
        if self._newest is not None and p.iterations <= self._newest[0]:
            return
        self._newest = (float(p.iterations), p.value)
        if self._count % self._every == 0:
            self._points.append(self._newest)
        self._count += 1
        if len(self._points) > MOST_POINTS:
            self._points, self._every = self._points[::2], 2 * self._every

    def needs(self, target: Target, profile: Sequence[Accuracy]) -> int | None:
        """Iterations in all until the target, by the convergence fit on `profile` and on its own points.

        None where no progress is visible. `profile` counts only towards a Top-5. Fitted again only when something
        is new.
        """
        top5 = target.top5 or self._of_top5 or asks.is_top5(target.name, target)
        known = tuple(profile) if top5 else ()
        basis = (target, known, self._count)
        if basis != self._basis:
            self._basis, self._needs = basis, self._predicted(target, known)
        return self._needs

    def _predicted(self, target: Target, known: Sequence[Accuracy]) -> int | None:
        own = self.points
        if any(value >= target.value if target.above else value <= target.value for _, value in own):
            return 0
        points = points_of(known, own)
        if target.above:
            return falls_to([(k, 1.0 - value) for k, value in points], 1.0 - target.value)
        return falls_to(points, target.value)


def _meant(target: Target | None, name: str) -> bool:
    return target.means(name) if target is not None else asks.is_top5(name, None)
