"""Makes intervals of predictions, so wide that 90 % of the outcomes lie in them, by how wrong past ones were. Pure.

Split conformal prediction: the error of a prediction is the logarithm of what came over what was predicted, and an
interval holds the middle 90 % of the errors of the newest jobs. Of errors nothing is assumed but that those to come
are like those that came, so what causes them is in both: speeds that differ from the profile, jobs that others submit
later, reshapes that take longer. While few jobs have ended, `PRIOR` counts beside them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

LEVEL = 0.9
NEWEST = 200  # jobs whose errors count
PRIOR_JOBS = 10  # as many jobs the prior counts
PRIOR_POINTS = 20  # values of its distribution that stand for it

Kind = Literal["start", "end while waiting", "end", "start, not simulated", "end, not simulated"]
PRIOR: Mapping[Kind, tuple[float, float]] = {
    "start": (0.6, 2.1),
    "end while waiting": (0.75, 2.0),
    "end": (0.75, 2.0),
    "start, not simulated": (0.4, 3.5),
    "end, not simulated": (0.6, 1.7),
}
"""By kind: times of what was predicted between which 90 % of the outcomes lie, by workloads S and W3 with later
arrivals and speeds that differ from the profile by a fifth (`reshape_papers/validation/coverage.py`); log-normal."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The earliest and the latest time, on the caller's clock."""

    earliest: float
    latest: float

    def holds(self, at: float) -> bool:
        return self.earliest <= at <= self.latest

    def moved_by(self, seconds: float) -> Interval:
        return Interval(self.earliest + seconds, self.latest + seconds)

    def not_before(self, at: float) -> Interval:
        return Interval(max(at, self.earliest), max(at, self.latest))


@dataclass(frozen=True, slots=True)
class WhenExpected:
    """When a job starts, None once it has; and when it ends. None where that is not known."""

    start: Interval | None = None
    end: Interval | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted `at` a time: so many seconds from then on, and the interval made of it.

    `unit_s`: what a launch takes; errors much shorter than that are none.
    """

    kind: Kind
    at: float
    predicted_s: float
    unit_s: float
    interval: Interval

    def error(self, real_s: float) -> float:
        return math.log((max(0.0, real_s) + self.unit_s) / (self.predicted_s + self.unit_s))


class Calibration:
    """The errors of the newest jobs, by kind of prediction; each job counts once, however much was predicted of it."""

    def __init__(self) -> None:
        self._errors: dict[Kind, deque[Sequence[float]]] = {kind: deque(maxlen=NEWEST) for kind in PRIOR}
        self._bounds: dict[Kind, tuple[float, float]] = {}

    def learn(self, kind: Kind, errors: Sequence[float]) -> None:
        """Take the errors of all predictions of one job."""
        if errors:
            self._errors[kind].append(errors)
            self._bounds.pop(kind, None)

    def predict(self, kind: Kind, now: float, predicted_s: float, unit_s: float) -> Prediction:
        if kind not in self._bounds:
            self._bounds[kind] = self._found(kind)
        low, high = (max(0.0, (predicted_s + unit_s) * math.exp(error) - unit_s) for error in self._bounds[kind])
        return Prediction(kind, now, predicted_s, unit_s, Interval(now + low, now + high))

    def _found(self, kind: Kind) -> tuple[float, float]:
        """Errors between which the middle of all lies."""
        weighted = [(error, 1.0 / len(errors)) for errors in self._errors[kind] for error in errors]
        weighted += [(error, PRIOR_JOBS / PRIOR_POINTS) for error in _prior(kind)]
        outside = (1.0 - LEVEL) / 2
        return _quantile(weighted, outside), _quantile(weighted, 1.0 - outside)


def _prior(kind: Kind) -> list[float]:
    low, high = map(math.log, PRIOR[kind])
    spread = NormalDist((low + high) / 2, (high - low) / 2 / NormalDist().inv_cdf((1.0 + LEVEL) / 2))
    return [spread.inv_cdf((place + 0.5) / PRIOR_POINTS) for place in range(PRIOR_POINTS)]


def _quantile(weighted: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest value below or at which lies at least this share of all weight."""
    ordered = sorted(weighted)
    left = share * math.fsum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 1e-9:
            return value
    return ordered[-1][0]
