"""Implements Tiresias (NSDI 2019): discretised least attained service. Stateful: one object per run.

Source: its sections 3.2 and 4.1. The limits differ between evaluations: Pollux's simulator has two queues, split at 16
GPU-hours; ElasticFlow's has three, split at 3,250 and 7,200 GPU-seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest, in_order

LIMITS_GPU_S = (16 * 3600.0,)


class Tiresias:
    """Least attained service first; preemptive, every job on its requested count.

    A queue is first in, first out; with `running_first` running jobs go before waiting ones, which saves restarts.
    """

    def __init__(self, limits_gpu_s: Sequence[float] = LIMITS_GPU_S, running_first: bool = False) -> None:
        self._limits = tuple(limits_gpu_s)
        self._running_first = running_first
        self._queues: list[list[str]] = [[] for _ in range(len(self._limits) + 1)]

    def __call__(self, jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
        by_id = {job.id: job for job in jobs}
        self._sort_in(by_id)
        given = in_order((by_id[job] for queue in self._queues for job in queue), gpus)
        if self._running_first:
            for queue in self._queues:
                queue.sort(key=lambda job: job not in given)
        return given

    def next_change_s(self, jobs: Sequence[AllotmentRequest], now: float) -> float:
        """Return the time at which the next running job falls to a lower queue; infinity if none does."""
        last = set(self._queues[-1])
        soon = [self._limit(job) - job.attained for job in jobs if job.has and job.id not in last]
        each = [job.has for job in jobs if job.has and job.id not in last]
        return now + min((left / has for left, has in zip(soon, each, strict=True)), default=math.inf)

    def _sort_in(self, jobs: dict[str, AllotmentRequest]) -> None:
        """Add new jobs to the first queue, demote jobs over their limit, and drop ended ones."""
        self._queues = [[job for job in queue if job in jobs] for queue in self._queues]
        known = {job for queue in self._queues for job in queue}
        self._queues[0] += [job for job in jobs if job not in known]
        falling = [
            (level, job)
            for level, limit in enumerate(self._limits)
            for job in self._queues[level]
            if jobs[job].attained >= limit
        ]
        order = {job: place for place, job in enumerate(jobs)}
        for level, job in sorted(falling, key=lambda fall: order[fall[1]]):
            self._queues[level].remove(job)
            self._queues[level + 1].append(job)

    def _limit(self, job: AllotmentRequest) -> float:
        level = next(i for i, queue in enumerate(self._queues) if job.id in queue)
        return self._limits[level]
