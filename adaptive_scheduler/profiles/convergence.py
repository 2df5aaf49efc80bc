"""Predicts how many iterations a job needs to reach a target accuracy, from the points of its curve so far.

Fits the curve of Optimus (EuroSys 2018) to the error: 1 / (b0 k + b1) + b2 after k iterations, by non-negative least
squares (`algorithms.md` 1.5). A prediction for the scheduler only: a job ends on its measured value. Called by snapshot
builders, reports of loss curves and the simulator's validation. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_scheduler.profiles.profiles import LARGEST, Accuracy

Point = tuple[float, float]
"""Iterations since the start of the training, and the value measured then."""

SEGMENTS = 50
"""Number of floors b2 that are tried."""

FEWEST = 3
"""Points at different iterations that a curve of three unknowns needs."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The curve 1 / (b0 k + b1) + b2 with b0 > 0, which falls towards b2."""

    b0: float
    b1: float
    b2: float
    squares: float  # sum of squared residuals

    def at(self, iterations: float) -> float:
        """Return the value after so many iterations; infinite where the curve is not yet finite."""
        slope = self.b0 * iterations + self.b1
        return 1.0 / slope + self.b2 if slope > 0 else math.inf

    def reaches(self, value: float) -> float:
        """Return the iterations after which the curve reaches `value`; infinity at or below its floor."""
        return (1.0 / (value - self.b2) - self.b1) / self.b0 if value > self.b2 else math.inf


def fit(points: Sequence[Point], below: float = math.inf, segments: int = SEGMENTS) -> Fit | None:
    """Return the best falling curve through positive values, such as errors or losses, with its floor under `below`.
    None with fewer than three different iterations, a value that is not positive, or no fall. O(segments x points)."""
    lowest = min((value for _, value in points), default=0.0)
    if lowest <= 0 or below <= 0 or len({iterations for iterations, _ in points}) < FEWEST:
        return None
    longest = max(iterations for iterations, _ in points)
    # On a scale of 0 to 1, so that squares of millions of iterations lose no digits.
    k = np.array([iterations / longest for iterations, _ in points])
    values = np.array([value for _, value in points])
    floors = np.linspace(0.0, 0.99 * min(lowest, below), segments)
    b0, b1 = _non_negative(k, 1.0 / (values[None, :] - floors[:, None]))
    with np.errstate(divide="ignore", invalid="ignore"):
        curves = 1.0 / (b0[:, None] * k + b1[:, None]) + floors[:, None]
    squares = np.where(b0 > 0, ((curves - values) ** 2).sum(axis=1), math.inf)
    best = int(np.argmin(np.nan_to_num(squares, nan=math.inf)))
    if not math.isfinite(squares[best]):
        return None
    return Fit(float(b0[best]) / longest, float(b1[best]), float(floors[best]), float(squares[best]))


def iterations_to(points: Sequence[Point], target: float, segments: int = SEGMENTS) -> int | None:
    """Return the iterations from the start to accuracy `target` (0 to 1); 0 if a point has reached it. None without
    visible progress: the caller takes the job's maximum, with low confidence, and clamps the answer."""
    if any(value >= target for _, value in points):
        return 0
    return falls_to([(iterations, 1.0 - value) for iterations, value in points], 1.0 - target, segments)


def falls_to(points: Sequence[Point], value: float, segments: int = SEGMENTS) -> int | None:
    """Return the iterations from the start until an error or loss falls to `value`, by the best curve; None as above.
    Points that have reached it count like any other: other jobs of the type did, this one still has to. Values of 0 or
    below lie on no curve and are left out."""
    curve = fit([point for point in points if point[1] > 0], value, segments)
    needed = math.inf if curve is None else curve.reaches(value)
    return max(0, math.ceil(needed)) if needed <= LARGEST else None


def clamped_left(needed: float | None, done: float, epoch: float, most: float | None) -> float | None:
    """Return the iterations left of a job that needs `needed` in all and has done `done`. At least one epoch, since its
    target is not measured yet, and at most up to its maximum (1.5). Up to its maximum without a prediction; None
    without either."""
    if needed is None:
        return None if most is None else max(0.0, most - done)
    end = max(needed, done + epoch)
    return (end if most is None else max(min(end, most), done)) - done


def points_of(profile: Iterable[Accuracy], live: Iterable[Point]) -> list[Point]:
    """Return the points of the type's profile, then the job's own."""
    return [*((float(point.iterations), point.top5) for point in profile), *live]


def _non_negative(k: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return b0, b1 >= 0 that bring b0 k + b1 nearest to each row of y: NNLS of two unknowns, all rows at once. Where
    the free solution has a negative one, that one is 0 and the other is fitted alone."""
    mean_k, mean_y = k.mean(), y.mean(axis=1)
    b0 = ((k - mean_k) * (y - mean_y[:, None])).sum(axis=1) / ((k - mean_k) ** 2).sum()
    b1 = mean_y - b0 * mean_k
    through_zero = (k * y).sum(axis=1) / (k**2).sum()
    level = np.maximum(mean_y, 0.0)
    return (
        np.where(b0 < 0, 0.0, np.where(b1 < 0, np.maximum(through_zero, 0.0), b0)),
        np.where(b0 < 0, level, np.maximum(b1, 0.0)),
    )
