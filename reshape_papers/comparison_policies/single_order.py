"""Implements EDF and SRTF: policies that serve the jobs in one sorted order. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest, in_order


def edf(jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
    """Serve the earliest deadline first, greedy and elastic, as ElasticFlow's baseline (ASPLOS 2023, section 6.1).

    Gives each job, by deadline, the largest allowed count that is left; jobs without a deadline come last.
    """
    given: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: math.inf if job.due_s is None else job.due_s):
        count = max((n for n in job.counts if n <= gpus), default=0)
        if count:
            given[job.id] = count
            gpus -= count
    return given


def srtf(jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
    """Serve the shortest remaining time first, preemptive: minimises mean JCT on one machine (Schrage 1968).

    Sorts by remaining seconds on the requested count and skips jobs that do not fit, like the baselines of Tiresias
    (NSDI 2019, section 2.2) and Voda.
    """
    return in_order(sorted(jobs, key=lambda job: (job.seconds(job.asked), job.submit_s, job.id)), gpus)
