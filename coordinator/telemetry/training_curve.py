"""Keeps how a training went: its value and its speed by iterations, and how many GPUs it had meanwhile.

Promises a bounded size however long a job trains, and few writes: a curve is stored when it has twice the points that
were stored before, so a training of a day costs some seven writes and one of twenty minutes none; as the job is closed,
together with that; and as the coordinator leaves. After a crash of the coordinator it lacks what came since. Used by
`coordinator/telemetry/progress_tracker.py` under its lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from adaptive_scheduler.profiles.convergence import Point
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from sidecar.protocol import Heartbeat

SHOWN_POINTS = 64  # of each of the two lines
MOST_COUNTS = 64  # changes of the GPU count
FIRST_POINTS = 256  # before which nothing is stored while it trains
GROWN_BY = 2  # since it was stored, until it is stored again
DIGITS = 6  # of a value that is kept


class ThinnedPoints:
    """Points of a line, at most `most` and the newest one: where there are more, every second one is dropped."""

    def __init__(self, most: int, points: Sequence[Point] = (), count: int = 0, every: int = 1) -> None:
        """`points`, `count` and `every`: what another one had, which goes on."""
        self._most = most
        self.count = max(count, len(points))  # of all that were added
        self.every = max(1, every)  # one of so many is kept
        self._points = list(points[: math.ceil(self.count / self.every)])
        self._newest: Point | None = points[-1] if points else None

    @property
    def points(self) -> list[Point]:
        """The kept points and the newest one."""
        newest = [self._newest] if self._newest is not None and self._newest not in self._points[-1:] else []
        return self._points + newest

    def add(self, at: float, value: float) -> None:
        """Add a point; one that does not lie behind the last one is passed over."""
        if self._newest is not None and at <= self._newest[0]:
            return
        self._newest = (at, value)
        if self.count % self.every == 0:
            self._points.append(self._newest)
        self.count += 1
        if len(self._points) > self._most:
            self._points = self._points[::2]
            self.every = 2 * self.every


class KeptLine(msgspec.Struct):
    """Line of a curve as it is stored."""

    points: list[Point] = []
    count: int = 0
    every: int = 1

    def thinned(self) -> ThinnedPoints:
        return ThinnedPoints(SHOWN_POINTS, self.points[: SHOWN_POINTS + 1], self.count, self.every)


class KeptCurve(msgspec.Struct):
    """The field `curve` of a job's document. `values`: of its evaluations; `speeds`: seconds per iteration."""

    name: str = ""  # of the value
    values: KeptLine = msgspec.field(default_factory=KeptLine)
    speeds: KeptLine = msgspec.field(default_factory=KeptLine)
    gpus: list[tuple[int, int]] = []  # (iterations, GPUs from there on)

    @classmethod
    def from_row(cls, doc: JobRow) -> KeptCurve:
        """The curve in a job's document; an empty one where there is none, or none that can be read."""
        try:
            return msgspec.convert(doc.get("curve") or {}, cls)
        except (msgspec.ValidationError, OverflowError):
            return cls()

    def shown(self, job_id: str | int) -> dict[str, Any]:
        """The view that callers of the API get."""
        return {
            "job_id": job_id,
            "value_name": self.name or None,
            "values": [list(point) for point in self.values.points],
            "speeds": [list(point) for point in self.speeds.points],
            "gpus": [list(change) for change in self.gpus],
        }


class TrainingCurve:
    """The curve of one open job."""

    def __init__(self, kept: KeptCurve | None = None) -> None:
        """`kept`: what a coordinator before this one stored, which goes on."""
        kept = kept or KeptCurve()
        self._name = kept.name
        self._values, self._speeds = kept.values.thinned(), kept.speeds.thinned()
        self._gpus = kept.gpus[:MOST_COUNTS]
        self._evaluation: tuple[int, float] | None = None  # the last one: its number and value
        self._stored_count = self._count

    @property
    def _count(self) -> int:
        return max(self._values.count, self._speeds.count)

    @property
    def is_due(self) -> bool:
        """Return whether it has grown so much that it is to be stored."""
        return self._count >= max(FIRST_POINTS, GROWN_BY * self._stored_count)

    @property
    def is_new(self) -> bool:
        """Return whether anything has come since it was stored."""
        return self._count > self._stored_count

    @property
    def kept(self) -> KeptCurve:
        """Return it as it is now."""
        values, speeds = (KeptLine(line.points, line.count, line.every) for line in (self._values, self._speeds))
        return KeptCurve(self._name, values, speeds, list(self._gpus))

    @property
    def field(self) -> dict[str, Any]:
        """Return it as a field of the job's document: with lists, as a store returns it."""
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.kept))
        return found

    def stored(self) -> dict[str, Any]:
        """The same; it counts as stored from now on."""
        self._stored_count = self._count
        return self.field

    def heard(self, job: JobRecord, beat: Heartbeat, trains: bool) -> None:
        """Take what a heartbeat tells; `trains`: it is of a training that runs undisturbed on the job's GPUs."""
        p = beat.progress
        evaluation = None if p.value is None else (p.evaluations, p.value)
        if p.value is not None and evaluation != self._evaluation:
            self._name = p.value_name
            self._evaluation = evaluation
            self._values.add(p.iterations, _rounded(p.value))
        if p.seconds_per_iteration is not None and p.seconds_per_iteration > 0:
            self._speeds.add(p.iterations, _rounded(p.seconds_per_iteration))
        count = len(job.gpu_ids)
        if trains and count and p.iterations and (not self._gpus or self._gpus[-1][1] != count):
            self._gpus.append((p.iterations if self._gpus else 0, count))
            if len(self._gpus) > MOST_COUNTS:
                del self._gpus[_shortest(self._gpus)]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _shortest(changes: Sequence[tuple[int, int]]) -> int:
    """The index of the change that the next one followed soonest; never the first one."""
    return min(range(1, len(changes) - 1), key=lambda i: changes[i + 1][0] - changes[i][0])
