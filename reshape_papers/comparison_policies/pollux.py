"""Implements Pollux (OSDI 2021): maximises goodput with fairness. Stateful: one object per run.

Source: its section 4.2 and the settings of its simulator: power mean of speed-ups with p = -1; a restart discounts the
gain of a changed job; no job gets more than twice its largest count so far. With p = -1 the mean is largest where a sum
over jobs is least, so that dynamic programming finds the best counts exactly, where Pollux uses a genetic search.
Pollux also places jobs; here the caller does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest

RESTART_S = 30.0
NO_GPU = 0.004
"""Added to each speed-up, so that a job without GPUs has a cost that is finite (1e-3 on its scale of 4 GPUs a node)."""


class Pollux:
    """Minimises the sum over jobs of 1 / (speed-up over the fair share)."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}  # largest count a job has had

    def __call__(self, jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
        """Return the allotment; ties go to smaller counts of later jobs. O(jobs x GPUs x counts)."""
        self._most = {job.id: max(job.has, self._most.get(job.id, 0)) for job in jobs}
        fair = math.ceil(gpus / max(1, len(jobs)))
        least = np.zeros(gpus + 1)
        chosen: list[NDArray[np.int64]] = []
        for job in jobs:
            counts = np.array([0, *self._reachable(job)])
            costs = np.array(_costs(job, counts.tolist(), fair))
            # Row i: the jobs so far share `total - counts[i]` GPUs, for every total; impossible ones cost infinity.
            before = np.arange(gpus + 1)[None, :] - counts[:, None]
            ways = np.where(before >= 0, least[np.maximum(before, 0)], math.inf) + costs[:, None]
            pick = ways.argmin(axis=0)
            chosen.append(counts[pick])
            least = ways.min(axis=0)
        given: dict[str, int] = {}
        for job, counts in zip(reversed(jobs), reversed(chosen), strict=True):
            given[job.id] = int(counts[gpus])
            gpus -= given[job.id]
        return {job.id: given[job.id] for job in jobs if given[job.id]}

    def _reachable(self, job: AllotmentRequest) -> tuple[int, ...]:
        cap = max(job.counts[0], 2 * self._most[job.id])
        return tuple(n for n in job.counts if n <= cap)


def _costs(job: AllotmentRequest, counts: Sequence[int], fair: int) -> list[float]:
    """Return the cost of each count: 1 / (speed-up over the fair share), higher if it means a restart."""
    share = job.seconds(max((n for n in job.counts if n <= fair), default=job.counts[0]))
    discount = max(job.age_s - job.restarts * RESTART_S, 0.0) / (job.age_s + RESTART_S)
    costs = []
    for count in counts:
        speed_up = share / max(job.seconds(count), 1e-9) if count else 0.0
        costs.append(1.0 / (speed_up * (1.0 if count == job.has else discount) + NO_GPU))
    return costs
