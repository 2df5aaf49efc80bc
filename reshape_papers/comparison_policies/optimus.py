"""Implements Optimus (EuroSys 2018), section 4.1: one unit for each job, then greedily by marginal gain. Pure.

With true remaining times it is the "Optimus+Oracle" of Pollux's evaluation (OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from reshape_papers.comparison_policies.allotment import Allotment, AllotmentRequest, next_count


def optimus(jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
    """Give each job its smallest count by submission, then add steps by gain per GPU."""
    given: dict[str, int] = {}
    for job in jobs:
        if job.counts[0] <= gpus:
            given[job.id] = job.counts[0]
            gpus -= job.counts[0]
    by_id = {job.id: job for job in jobs if job.id in given}
    # Ties go to the first submitted, as in Optimus.
    gains = [(-_gain(job, given[job.id]), place, job.id) for place, job in enumerate(by_id.values())]
    heapify(gains)
    while gains and gains[0][0] < 0:
        _, place, job_id = heappop(gains)
        job = by_id[job_id]
        bigger = next_count(job, given[job_id])
        if bigger is not None and bigger - given[job_id] <= gpus:
            gpus -= bigger - given[job_id]
            given[job_id] = bigger
            heappush(gains, (-_gain(job, bigger), place, job_id))
    # The smallest first, so that placing large ones does not split them.
    return dict(sorted(given.items(), key=lambda item: item[1]))


def _gain(job: AllotmentRequest, count: int) -> float:
    """Return the seconds saved per GPU of the next step; 0 if there is none."""
    bigger = next_count(job, count)
    return 0.0 if bigger is None else (job.seconds(count) - job.seconds(bigger)) / (bigger - count)
